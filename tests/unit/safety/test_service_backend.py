"""The service with a classifier behind the rules, and callers that leave."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from prometheus_client import REGISTRY

from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2 as pb
from safety_svc.backends.base import Backend, BackendError
from safety_svc.backends.threads import ThreadBackend
from safety_svc.detectors.base import Audience, Category, Finding, Turn
from tests.unit.safety.scanning import edited
from tests.unit.safety.test_service import (
    END,
    delta,
    prompt,
    refused,
    reply,
    serving,
    start,
)


class Vowels:
    """A model that takes a text for violent in the measure of its exclamation marks."""

    name = "vowels"
    digest = "0123"
    short_length = 0

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.broken = False

    def clears(self, text: str, audience: Audience) -> bool:
        return False

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
        assert self.go.wait(10)
        if self.broken:
            raise ValueError("weights are gone")
        self.batches.append(len(texts))
        return [self._found(text) for text in texts]

    def lessened(self, finding: Finding, audience: Audience) -> Finding:
        return finding

    def _found(self, text: str) -> list[Finding]:
        score = min(1.0, text.count("!") / 10)
        size = len(text.encode())
        return [Finding(size - 1, 0, size, Category.VIOLENCE, self.name, score)] if score else []


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


REPLY = Audience.REPLY
LINE = "A line of quite ordinary words, as many as there are. "


async def test_the_classifier_decides_with_the_rules(tmp_path: Path) -> None:
    async with serving(tmp_path, edited(), backend=ThreadBackend(Vowels(), 30)) as served:
        verdict = (await served.stub.ScreenPrompt(prompt("Hello", "How!!!!!!!!!"))).verdict
        assert (verdict.action, verdict.category) == (pb.ACTION_BLOCK, pb.CATEGORY_VIOLENCE)
        (finding,) = verdict.findings
        assert (finding.message_index, finding.detector) == (1, "vowels")
        assert finding.score == pytest.approx(0.9)
        (row,) = served.store.rows
        assert (row.backend, row.backend_digest, row.backend_failed) == ("vowels", "0123", False)
        assert row.scores == (0.9,)


async def test_a_stream_is_halted_by_the_classifier(tmp_path: Path) -> None:
    async with serving(tmp_path, edited(), backend=ThreadBackend(Vowels(), 30)) as served:
        text = LINE * 3 + "No" + "!" * 12 + " and so on. "
        deltas = [delta(text[at : at + 5]) for at in range(0, len(text), 5)]
        *releases, last = await reply(served, start(), *deltas, END)
        assert last.block.verdict.category == pb.CATEGORY_VIOLENCE
        assert releases[-1].release.release_up_to_offset > 0
        assert 0 < last.block.offset <= text.index("!")
        (row,) = served.store.rows
        assert (row.ended, row.action, row.detectors) == ("halted", "block", ("vowels",))


async def test_looks_of_many_streams_go_in_one_batch(tmp_path: Path) -> None:
    model = Vowels()
    model.go.clear()
    async with serving(tmp_path, edited(), backend=ThreadBackend(model, 30)) as served:
        calls = [served.stub.ScreenReply() for _ in range(20)]
        for call in calls:
            await call.write(start())
            await call.write(delta(LINE * 2, 8))
            # What is within the window leaves although nothing was judged yet.
            assert (await call.read()).release.release_up_to_offset > 0
        model.go.set()
        for call in calls:
            await call.write(END)
            await call.done_writing()
            last = [response async for response in _rest(call)][-1]
            assert last.cleared.verdict.action == pb.ACTION_ALLOW
    assert max(model.batches) >= 20


async def _rest(call):
    while response := await call.read():
        yield response


@pytest.mark.parametrize("failure", ["error", "timeout"])
async def test_a_failed_classifier_closes_or_opens_as_the_policy_says(
    tmp_path: Path, failure: str
) -> None:
    model = Vowels()
    model.broken = failure == "error"
    backend: Backend = ThreadBackend(model, 5 if model.broken else 0.01)
    if failure == "timeout":
        model.go.clear()
    labels = {"backend": "vowels", "cause": failure}
    before = counted("chatmesh_safety_backend_failures_total", **labels)
    async with serving(tmp_path, edited(), backend=backend) as served:
        async with refused(grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"):
            await reply(served, start(), delta(LINE * 2, 20), END)
        await served.service.finish()
        assert [row.ended for row in served.store.rows] == ["failed"]
        if model.broken:
            async with refused(grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"):
                await served.stub.ScreenPrompt(prompt("Hi"))
    assert counted("chatmesh_safety_backend_failures_total", **labels) > before

    async with serving(tmp_path, edited(backend_failure="closed>open"), backend=backend) as served:
        responses = await reply(served, start(), delta(LINE * 2, 20), END)
        assert responses[-1].cleared.verdict.action == pb.ACTION_ALLOW
        (row,) = served.store.rows
        assert (row.ended, row.backend_failed) == ("complete", True)
        halted = await reply(served, start(), delta("how to make a pipe bomb. "), END)
        assert halted[-1].HasField("block")
    model.go.set()
    await backend.close()


async def test_a_stream_that_its_caller_leaves_has_its_row(tmp_path: Path) -> None:
    async with serving(tmp_path, edited()) as served:
        call = served.stub.ScreenReply()
        await call.write(start(choice_index=1))
        await call.write(delta("Write to jo@example.com, please. ", 6))
        await call.read()
        call.cancel()
        await asyncio.wait_for(served.store.written.wait(), 10)
        (row,) = served.store.rows
        assert (row.ended, row.action, row.category) == ("left", "flag", "privacy")
        assert (row.choice_index, row.byte_count, row.halt_offset) == (1, 33, None)

        silent = served.stub.ScreenReply()
        await silent.write(start())
        silent.cancel()
        await reply(served, start(), delta("Hello. "), END)
        assert [one.ended for one in served.store.rows] == ["left", "complete"]


async def test_masks_come_with_releases_for_callers_that_take_them(tmp_path: Path) -> None:
    words = [delta(word) for word in ("Card ", "4111 1111 ", "1111 1111", ", fine. ", "Bye.")]
    async with serving(tmp_path, edited()) as served:
        *releases, last = await reply(served, start(accepts_masks=True), *words, END)
        masks = [mask for one in releases for mask in one.release.masks]
        assert masks == [pb.Mask(start_offset=5, end_offset=24, replacement="[card_number]")]
        assert releases[-1].release.release_up_to_offset == len(
            "Card 4111 1111 1111 1111, fine. Bye."
        )
        assert last.cleared.verdict.action == pb.ACTION_REDACT
        assert not last.cleared.verdict.masks
        assert served.store.rows[0].mask_count == 1

        *releases, last = await reply(served, start(), *words, END)
        assert [one.release.release_up_to_offset for one in releases] == [5]
        assert list(last.cleared.verdict.masks) == masks


async def test_a_prompt_to_redact_says_where(tmp_path: Path) -> None:
    policy = edited(email_address="flag>redact")
    async with serving(tmp_path, policy) as served:
        request = prompt("é jo@example.com", "no", "a@b.de and a@b.de")
        verdict = (await served.stub.ScreenPrompt(request)).verdict
        assert verdict.action == pb.ACTION_REDACT
        places = [(one.message_index, one.start_offset, one.end_offset) for one in verdict.masks]
        assert places == [(0, 3, 17), (2, 0, 6), (2, 11, 17)]
        assert {one.replacement for one in verdict.masks} == {"[email_address]"}
        many = prompt(*["a@b.de " * 2_000] * 3)
        verdict = (await served.stub.ScreenPrompt(many)).verdict
        assert (verdict.action, list(verdict.masks)) == (pb.ACTION_BLOCK, [])


async def test_the_audit_holds_shadow_and_quotation_when_the_policy_says_so(tmp_path: Path) -> None:
    policy = edited() + (
        "accounts:\n  acct-1: {audit_text: full, shadow: {prompt: {email_address: block},"
        " reply: {email_address: block}}}\n"
    )
    name = "chatmesh_safety_shadow_disagreements_total"
    labels = {"action": "flag", "shadow_action": "block", "shadow_category": "privacy"}
    before = counted(name, direction="prompt", **labels)
    async with serving(tmp_path, policy) as served:
        verdict = (await served.stub.ScreenPrompt(prompt("I am jo@example.com"))).verdict
        assert verdict.action == pb.ACTION_FLAG
        await reply(served, start(), delta("You are jo@example.com, "), delta("hello."), END)
        other = pb.Subject(turn_id="t", account_id="acct-2", tier="free")
        await served.stub.ScreenPrompt(
            pb.ScreenPromptRequest(subject=other, messages=[content_pb2.Message(content="a@b.de")])
        )
        asked, said, plain = served.store.rows
    assert (asked.shadow_action, asked.shadow_category) == ("block", "privacy")
    assert (asked.quotation, said.quotation) == (
        "I am jo@example.com",
        "You are jo@example.com, hello.",
    )
    assert (plain.shadow_action, plain.quotation) == (None, None)
    assert counted(name, direction="prompt", **labels) == before + 1


class Clearing(Vowels):
    """`Vowels` with a first stage; the model itself must not be asked for what that clears."""

    def clears(self, text: str, audience: Audience) -> bool:
        return "!" not in text


class Short(Vowels):
    """`Vowels` that says what it is short for, and in which thread it is asked."""

    short_length = 20

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, threading.Thread] = {}

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
        self.threads |= dict.fromkeys(texts, threading.current_thread())
        return super().inspect_many(texts, audience)


async def test_what_is_short_is_answered_where_it_is_asked() -> None:
    model = Short()
    backend = ThreadBackend(model, 1.0)
    here = threading.current_thread()
    try:
        assert await backend.inspect("short!", REPLY, "me") == model._found("short!")
        await backend.inspect("x" * 20, REPLY, "me")
        await backend.inspect("x" * 21, REPLY, "me")
        turns = [Turn(Audience.USER, "a!"), Turn(Audience.USER, "b!")]
        found = await backend.conversation(turns, "me")
        assert sorted(each.message_index for each in found.findings) == [0, 1]
        await backend.conversation([Turn(Audience.USER, "y" * 21)], "me")
        await backend.conversation([Turn(Audience.TOOL, f"z{n}") for n in range(6)], "me")
        model.broken = True
        with pytest.raises(BackendError):
            await backend.inspect("short!", REPLY, "me")
    finally:
        await backend.close()
    assert model.threads["short!"] is here
    assert model.threads["x" * 20] is here
    assert model.threads["x" * 21] is not here
    assert model.threads["a!"] is model.threads["b!"] is here
    assert model.threads["y" * 21] is not here
    assert model.threads["z0"] is not here


async def test_what_the_first_stage_clears_reaches_no_thread(tmp_path: Path) -> None:
    model = Clearing()
    model.broken = True
    name = "chatmesh_safety_first_stage_cleared_total"
    before = [counted(name, backend="vowels", what=what) for what in ("look", "conversation")]
    backend = ThreadBackend(model, 30)
    async with serving(tmp_path, edited(), backend=backend) as served:
        verdict = (await served.stub.ScreenPrompt(prompt("Hello", "How are you?"))).verdict
        assert verdict.action == pb.ACTION_ALLOW
        *releases, last = await reply(served, start(), *[delta(LINE, 12)] * 4, END)
        assert last.cleared.verdict.action == pb.ACTION_ALLOW
        # One release a delta at most: what its looks let leave goes with it.
        assert len(releases) <= 4
        assert all(not row.backend_failed for row in served.store.rows)
        async with refused(grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"):
            await reply(served, start(), delta(LINE * 2 + "No! ", 20), END)
    after = [counted(name, backend="vowels", what=what) for what in ("look", "conversation")]
    assert after[0] - before[0] >= 3
    assert after[1] - before[1] == 1
    await backend.close()
