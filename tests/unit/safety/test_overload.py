"""More is asked of the classifier than it can answer: who waits, who is refused, who fails."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from prometheus_client import REGISTRY

from chatmesh.safety.v1 import safety_pb2 as pb
from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError
from safety_svc.backends.base import BackendError, OverloadedError
from safety_svc.backends.conversations import (
    NEW_LENGTH_MAX,
    WAITING_COUNT_MAX,
    WAITING_OWNER_COUNT_MAX,
)
from safety_svc.backends.queue import HANGING_THREAD_COUNT_MAX
from safety_svc.backends.threads import ThreadBackend
from safety_svc.conversation import Found
from safety_svc.detectors.base import Audience, Finding, Turn
from safety_svc.reply import PENDING_LOOK_COUNT_MAX
from tests.unit.safety.scanning import edited
from tests.unit.safety.test_service import END, delta, prompt, refused, reply, serving, start

# Longer than any test: the model is held by events, not by time.
NEVER_S = 20
LINE = "A line of quite ordinary words, as many as there are. "
STREAM_COUNT = 32
TRY_COUNT = 1_000_000
NO_CONTEXT: Any = None  # ScreenPrompt asks it nothing


class Held:
    """A model that works when it may: texts with "hang" wait for `let_go`, all others for `go`."""

    name, digest, short_length = "held", "0123", 0

    def __init__(self, go: bool = True) -> None:
        self.go, self.let_go = threading.Event(), threading.Event()
        self.began = threading.Event()
        self.batches: list[list[str]] = []
        if go:
            self.go.set()

    def clears(self, text: str, audience: Audience) -> bool:
        return False

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
        self.batches.append(list(texts))
        self._work("".join(texts))
        return [[] for _ in texts]

    def lessened(self, finding: Finding, audience: Audience) -> Finding:
        return finding

    def _work(self, text: str) -> None:
        self.began.set()
        assert (self.let_go if "hang" in text else self.go).wait(NEVER_S)


def gauge(name: str, what: str) -> float | None:
    labels = {"backend": Held.name, "what": what}
    return REGISTRY.get_sample_value(f"chatmesh_safety_backend_{name}", labels)


async def until(name: str, count: int) -> None:
    """Returns when the gauge of looks stands at `count`."""
    for _ in range(TRY_COUNT):
        if gauge(name, "look") == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{name} is {gauge(name, 'look')}, not {count}")


async def began(model: Held) -> None:
    await asyncio.to_thread(model.began.wait, NEVER_S)


async def test_a_long_queue_fails_nobody(tmp_path: Path) -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    async with serving(tmp_path, edited(), backend=backend) as served:
        text = LINE * 40  # some 40 looks
        calls = [served.stub.ScreenReply() for _ in range(STREAM_COUNT)]
        for call in calls:
            await call.write(start())
            await call.write(delta(LINE, 8))
            await call.write(delta(text, 500))
        await began(model)
        for call in calls:  # what the window lets leave before any look
            assert (await call.read()).release.release_up_to_offset > 0
        await until("waiting", STREAM_COUNT * PENDING_LOOK_COUNT_MAX - len(model.batches[0]))
        model.go.set()
        for call in calls:
            await call.write(END)
            await call.done_writing()
            while not (response := await call.read()).HasField("cleared"):
                pass
            assert response.cleared.verdict.action == pb.ACTION_ALLOW
        assert gauge("waiting", "look") == 0
    await backend.close()


async def test_a_batch_that_hangs_fails_its_own_looks_and_no_others(tmp_path: Path) -> None:
    model = Held()
    backend = ThreadBackend(model, 0.05)
    with structlog.testing.capture_logs() as logs:
        async with serving(tmp_path, edited(), backend=backend) as served:
            hanging = asyncio.create_task(reply(served, start(), delta("hang " * 20, 20), END))
            await began(model)
            # Those wait longer than the limit, behind what hangs.
            others = [
                asyncio.create_task(reply(served, start(), delta(LINE * 8, 100), END))
                for _ in range(STREAM_COUNT)
            ]
            async with refused(grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"):
                await hanging
            assert gauge("hanging_threads", "look") == 1
            for responses in await asyncio.gather(*others):
                assert responses[-1].cleared.verdict.action == pb.ACTION_ALLOW
    failed = [log for log in logs if log["event"] == "classifier_failed"]
    assert [(log["cause"], log["count"]) for log in failed] == [("timeout", len(model.batches[0]))]
    model.let_go.set()
    await backend.close()


async def test_a_failure_is_logged_once_a_batch() -> None:
    class Broken(Held):
        def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
            raise ValueError("weights are gone")

    backend = ThreadBackend(Broken(), NEVER_S)
    with structlog.testing.capture_logs() as logs:
        asked = [backend.inspect(str(number), Audience.REPLY, "me") for number in range(20)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, BackendError) for one in answers)
    assert [(log["cause"], log["count"], log["problem"]) for log in logs] == [
        ("error", 20, "ValueError")
    ]
    await backend.close()


async def test_a_model_that_only_hangs_fails_at_once() -> None:
    model = Held()
    backend = ThreadBackend(model, 0.01)
    for _ in range(HANGING_THREAD_COUNT_MAX + 1):
        with pytest.raises(BackendError):
            await backend.inspect("hang", Audience.REPLY, "me")
    assert len(model.batches) == HANGING_THREAD_COUNT_MAX
    model.let_go.set()
    await until("hanging_threads", 0)
    assert await backend.inspect("fine", Audience.REPLY, "me") == []
    await backend.close()


def asks(backend: ThreadBackend, text: str, owner: str) -> "asyncio.Task[Found]":
    return asyncio.create_task(backend.conversation([Turn(Audience.USER, text)], owner))


async def test_prompts_beyond_the_queue_are_refused_at_once(tmp_path: Path) -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    first = asks(backend, "first", "acct-0")
    await began(model)
    others = [
        asks(backend, f"{number}", f"acct-{number % 4 + 1}")
        for number in range(WAITING_COUNT_MAX - 1)
    ]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await asks(backend, "one more", "acct-9")
    async with serving(tmp_path, edited(), backend=backend) as served:
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"):
            await served.stub.ScreenPrompt(prompt("and one more"))
        assert not served.store.rows  # no decision was made
    opened = edited(backend_failure="closed>open")
    async with serving(tmp_path, opened, backend=backend) as served:
        verdict = (await served.stub.ScreenPrompt(prompt("and another"))).verdict
        assert verdict.action == pb.ACTION_ALLOW
        assert served.store.rows[0].backend_failed
    for one in others[1:]:  # who gives up does not reach the model
        one.cancel()
    model.go.set()
    await asyncio.gather(first, others[0])
    await backend.close()
    assert model.batches == [["first"], ["0"]]


async def test_one_account_does_not_fill_the_queue() -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    waiting = [asks(backend, f"{number}", "busy") for number in range(WAITING_OWNER_COUNT_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="of the account"):
        await asks(backend, "one more", "busy")
    other = asks(backend, "mine", "other")
    model.go.set()
    await asyncio.gather(*waiting, other)
    await asks(backend, "again", "busy")
    await backend.close()


DOCUMENT = "A line of a long document that somebody fetched. " * 80
DOCUMENT_COUNT = 16


def documents(number: int) -> list[Turn]:
    return [Turn(Audience.TOOL, f"{number}.{index} {DOCUMENT}") for index in range(DOCUMENT_COUNT)]


async def test_accounts_take_turns_whatever_each_of_them_asks() -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    busy = [asyncio.create_task(backend.conversation(documents(n), "busy")) for n in range(10)]
    await began(model)
    others = [asks(backend, f"mine {'and more ' * 80}", f"acct-{number}") for number in range(3)]
    await asyncio.sleep(0)
    model.go.set()
    await asyncio.gather(*others)
    # Batches before the last of the others: theirs, and no more of the busy one's than of any.
    texts = [text for batch in model.batches for text in batch]
    mine = [place for place, text in enumerate(texts) if "mine" in text]
    assert len(mine) == len(others)
    assert mine[-1] <= 2 * len(others)
    await asyncio.gather(*busy)
    assert sum(map(len, model.batches)) == 10 * DOCUMENT_COUNT + len(others)
    await backend.close()


async def test_what_its_caller_left_is_judged_no_further() -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    leaving = asyncio.create_task(backend.conversation(documents(0), "busy"))
    await began(model)
    leaving.cancel()
    staying = asks(backend, "mine", "other")
    await asyncio.sleep(0)
    model.go.set()
    await staying
    assert len(model.batches) == 2
    await backend.close()


async def test_a_long_chat_costs_what_is_new() -> None:
    model = Held()
    backend = ThreadBackend(model, NEVER_S)
    chat: list[Turn] = []
    lengths = []
    for number in range(30):
        chat.append(Turn(Audience.USER, f"Question {number}: {LINE}"))
        model.batches.clear()
        assert await backend.conversation(chat, "me") == Found([], [])
        lengths.append(sum(len(text) for batch in model.batches for text in batch))
        chat.append(Turn(Audience.ASSISTANT, f"Answer {number}: {LINE * 20}"))
    # The answer and the question that are new, and the last questions together.
    assert max(lengths[2:]) <= min(lengths[2:]) + 64
    model.batches.clear()
    await backend.conversation(chat, "other")  # another account's chat is its own
    assert sum(len(text) for batch in model.batches for text in batch) > 10 * lengths[-1]
    await backend.close()


async def test_what_is_too_much_is_told_and_judged_when_there_is_less_of_it(tmp_path: Path) -> None:
    model = Held()
    backend = ThreadBackend(model, NEVER_S)
    many = 2 * NEW_LENGTH_MAX // len(LINE * 90) // 3
    half = [f"{number} {LINE * 90}" for number in range(many)]
    texts = [*(f"old {one}" for one in half), *(f"new {one}" for one in half), "the last one"]
    async with serving(tmp_path, edited(), backend=backend) as served:
        verdict = (await served.stub.ScreenPrompt(prompt(*texts))).verdict
        assert (verdict.action, verdict.category) == (pb.ACTION_BLOCK, pb.CATEGORY_UNSPECIFIED)
        assert "several turns" in verdict.message
        left_out = [one.message_index for one in verdict.unjudged]
        assert left_out == list(range(left_out[-1] + 1))  # the oldest
        assert verdict.unjudged[0].start_offset == 0
        assert verdict.unjudged[0].end_offset == len(texts[0])
        # What was judged is remembered: with the next try the rest has room.
        verdict = (await served.stub.ScreenPrompt(prompt(*texts))).verdict
        assert (verdict.action, len(verdict.unjudged)) == (pb.ACTION_ALLOW, 0)
    open_policy = edited(
        backend_failure="closed\n  unread_text: closed>closed\n  unread_text: open"
    )
    async with serving(tmp_path, open_policy, backend=ThreadBackend(model, NEVER_S)) as served:
        verdict = (await served.stub.ScreenPrompt(prompt(*texts))).verdict
        assert verdict.action == pb.ACTION_ALLOW
        assert verdict.unjudged
    await backend.close()


async def test_a_prompt_is_refused_before_its_caller_gives_up(tmp_path: Path) -> None:
    model = Held(go=False)
    backend = ThreadBackend(model, NEVER_S)
    first = asks(backend, "first", "acct-0")
    await began(model)
    async with serving(tmp_path, edited(), backend=backend) as served:
        deadlines.enter(0.5)  # as the chassis does for a call
        with pytest.raises(MeshError) as caught:
            await served.service.ScreenPrompt(prompt("waits"), NO_CONTEXT)
        assert (caught.value.code, caught.value.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OVERLOADED",
        )
        assert caught.value.retry_after_s
        left_s = deadlines.remaining_s()
        assert left_s is not None
        assert left_s > 0  # the caller hears it
        deadlines.enter(None)
        model.go.set()
        await first
        verdict = (await served.stub.ScreenPrompt(prompt("comes again"))).verdict
        assert verdict.action == pb.ACTION_ALLOW
    await backend.close()
    assert model.batches == [["first"], ["comes again"]]
