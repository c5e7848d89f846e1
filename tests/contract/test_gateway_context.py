"""What goes into a prompt, through a whole gateway: the operator's prompt, and what is left out."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2 as pb
from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2
from gateway.content import PARTS
from gateway.context.parts import ORDER, Overflow
from gateway.context.room import TOKEN_BYTES_MAX
from gateway.context.source import OperatorPromptsFile
from mesh.chassis.errors import MeshError
from tests.support.fakes import CONTEXT, MODEL, Fakes, failure
from tests.support.gateway_turns import TURN, failed, identity, running_gateway
from tokenizer_svc.model_folder import read_folder
from tokenizer_svc.prompt import ChatTokenizer
from tokenizer_svc.service import TokenizerService
from tokenizer_svc.settings import DEFAULT_MODEL

SYSTEM, USER, ASSISTANT = 1, 2, 3


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.yaml"
    path.write_text('default: "You are {model}."\naccounts: {acc_2: "Be Ada."}\n')
    return path


def read(fakes: Fakes, index: int = -1) -> list[tuple[int, str]]:
    """What the model read."""
    return [(each.role, each.content) for each in fakes.tokenizer.requests[index].messages]


async def test_the_operators_prompt_stands_first_and_the_common_case_is_one_encode(document):
    prompts = OperatorPromptsFile(document)
    async with running_gateway(prompts=prompts) as gateway:
        first = await gateway.post({"messages": [system("Be kind."), user("Hi")]})
        await gateway.post({}, identity("acc_2"))
    fakes = gateway.fakes
    assert read(fakes, 0) == [(SYSTEM, f"You are {MODEL}."), (SYSTEM, "Be kind."), (USER, "Hi")]
    assert read(fakes, 1) == [(SYSTEM, "Be Ada."), (USER, "How are you?")]
    assert all(each.has_operator_prompt for each in fakes.safety.prompts)
    assert len(fakes.tokenizer.requests) == 2
    assert fakes.tokenizer.counted == []
    # It is what the model read, so that it is charged.
    assert first.json["usage"]["prompt_tokens"] == 6
    assert fakes.billing.holds[TURN].prompt_token_count == 5


async def test_it_shows_the_utc_date(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text('default: "Today is {date}."')
    before = datetime.now(UTC).date()
    async with running_gateway(prompts=OperatorPromptsFile(path)) as gateway:
        await gateway.post({})
    text = read(gateway.fakes)[0][1]
    assert text in {f"Today is {day}." for day in (before, datetime.now(UTC).date())}


async def test_it_is_neither_screened_nor_stored_nor_shown(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("default: FORBIDDEN is a word of ours.")
    async with running_gateway(prompts=OperatorPromptsFile(path)) as gateway:
        answer = await gateway.post({"store": True})
        thread = answer.json["conversation_id"]
        second = await gateway.post(
            {"conversation_id": thread, "messages": [user("And?")], "stream": True}
        )
        await gateway.background.finish()
    fakes = gateway.fakes
    assert (answer.status, second.status) == (200, 200)
    for request in fakes.safety.prompts:
        assert all("ours" not in each.content for each in request.messages)
    kept = fakes.conversation.threads["acc_1", thread]
    assert [each.content for each in kept][::2] == ["How are you?", "And?"]
    assert b"ours" not in answer.body + second.body
    assert [text for _, text in read(fakes)] == [
        "FORBIDDEN is a word of ours.",
        "How are you?",
        "Hello wide world.",
        "And?",
    ]


async def test_masks_find_their_message_behind_it(document):
    fakes = Fakes()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_REDACT
    mask = safety_pb2.Mask(start_offset=2, end_offset=11, replacement="[it]", message_index=1)
    fakes.safety.bad_prompt_masks = [mask]
    messages = [system("Be kind."), user("a FORBIDDEN word")]
    async with running_gateway(fakes, OperatorPromptsFile(document)) as gateway:
        await gateway.post({"messages": messages, "store": True})
        await gateway.background.finish()
    assert [text for _, text in read(fakes)] == [f"You are {MODEL}.", "Be kind.", "a [it] word"]
    stored = [(each.content, each.token_count) for each in fakes.conversation.appended[0].messages]
    assert stored[:2] == [("Be kind.", 2), ("a [it] word", 3)]


async def test_a_changed_file_speaks_in_the_next_turn(document):
    prompts = OperatorPromptsFile(document)
    async with running_gateway(prompts=prompts) as gateway:
        following = asyncio.create_task(prompts.follow(interval_s=0))
        try:
            document.write_text("default: Be brief.")
            async with asyncio.timeout(10):
                while "brief." not in prompts.current.default:  # noqa: ASYNC110  # nobody announces
                    await asyncio.sleep(0)
        finally:
            following.cancel()
        await gateway.post({})
        document.write_text("default: '{nobody}'")
        assert prompts.refresh() is False
        await gateway.post({})
    assert [read(gateway.fakes, index)[0][1] for index in (0, 1)] == ["Be brief.", "Be brief."]


async def test_equal_openings_go_to_one_node_whatever_the_operator_says(document):
    prompts = OperatorPromptsFile(document)
    async with running_gateway(prompts=prompts) as gateway:
        gateway.pool.replace({f"inference-{number}": "" for number in range(5)})
        for text in ("one", "two", "three"):
            document.write_text(f"default: {text}")
            assert prompts.refresh()
            await gateway.post({})
    assert len(set(gateway.fakes.inference.pins)) == 1


async def test_a_prompt_that_does_not_fit_tells_the_operators_share(document):
    """CONTEXT_LENGTH_EXCEEDED."""
    fakes = Fakes()
    fakes.tokenizer.context = 4
    async with running_gateway(fakes, OperatorPromptsFile(document)) as gateway:
        answers = [await gateway.post({}) for _ in range(2)]
        call = gateway.chat.Chat(
            pb.ChatRequest(
                messages=[pb.Message(role=content_pb2.ROLE_USER, content="How are you?")]
            ),
            metadata=gateway.identity(),
        )
        error = MeshError.from_rpc(await failed(call))
    for answer in answers:
        shown = answer.json["error"]
        assert (answer.status, shown["code"]) == (400, "context_length_exceeded")
        assert shown["message"].endswith("Of these the operator's instructions take 3.")
        assert shown["param"] == "messages"
        assert shown["metadata"]["operator_count"] == "3"
    assert (error.reason, error.metadata["operator_count"]) == ("CONTEXT_LENGTH_EXCEEDED", "3")
    assert len(fakes.tokenizer.counted) == 1  # one text of one model is counted once
    assert fakes.inference.requests == []


async def test_without_an_operators_prompt_the_failure_is_as_it_was():
    fakes = Fakes()
    fakes.tokenizer.context = 2
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
    assert "operator" not in str(answer.json)
    assert fakes.tokenizer.counted == []


async def test_when_nobody_counts_the_failure_is_told_without_a_share(document):
    fakes = Fakes()
    fakes.tokenizer.context = 4
    fakes.tokenizer.faults.add("CountTokens", failure(grpc.StatusCode.UNAVAILABLE))
    async with running_gateway(fakes, OperatorPromptsFile(document)) as gateway:
        answer = await gateway.post({})
    assert answer.json["error"]["code"] == "context_length_exceeded"
    assert "operator" not in answer.json["error"]["message"]


async def test_the_operator_gets_half_of_the_context_and_no_more(tmp_path):
    half = CONTEXT // 2
    path = tmp_path / "prompts.yaml"
    path.write_text("default: " + "w " * half)
    prompts = OperatorPromptsFile(path)
    async with running_gateway(prompts=prompts) as gateway:
        fitting = [await gateway.post({}) for _ in range(2)]
        path.write_text("default: " + "w " * (half + 1))
        assert prompts.refresh()
        refused = await gateway.post({})
    assert [each.status for each in fitting] == [200, 200]
    shown = refused.json["error"]
    assert (refused.status, shown["code"], shown["param"]) == (
        400,
        "context_length_exceeded",
        "model",
    )
    assert shown["metadata"] == {
        "part": "operator",
        "limit": str(half),
        "count": str(half + 1),
    }
    fakes = gateway.fakes
    assert [len(each.texts) for each in fakes.tokenizer.counted] == [1, 1]
    assert len(fakes.tokenizer.requests) == len(fakes.safety.prompts) == 2
    assert fakes.billing.calls.count("Hold") == 2


async def conversation(gateway) -> str:
    """Makes a stored one of two turns; a word is a token."""
    first = await gateway.post({"store": True})
    thread = first.json["conversation_id"]
    await gateway.post({"conversation_id": thread, "messages": [user("And then?")]})
    return thread


async def test_what_was_left_out_is_told_in_the_body_and_the_first_chunk(document):
    fakes = Fakes()
    async with running_gateway(fakes, OperatorPromptsFile(document)) as gateway:
        thread = await conversation(gateway)
        counts = [each.token_count for each in fakes.conversation.threads["acc_1", thread]]
        asked = {"conversation_id": thread, "messages": [user("a b"), user("c")]}
        fakes.conversation.omit, fakes.tokenizer.drop = 1, 4
        whole = await gateway.post(asked)
        fakes.conversation.omit, fakes.tokenizer.drop = 2, 1
        streamed = await gateway.post(asked | {"stream": True, "n": 2})
        fakes.conversation.omit = fakes.tokenizer.drop = 0
        all_read = await gateway.post(asked | {"stream": True})
    assert counts == [3, 4, 2, 4]
    assert whole.json["left_out"] == [
        {"part": "history", "messages": 4, "tokens": 13},
        {"part": "messages", "messages": 1},
    ]
    first, *others = [data for _, data in streamed.frames[:-1]]
    assert first["left_out"] == [{"part": "history", "messages": 3, "tokens": 9}]
    assert first["choices"][0]["index"] == 0
    assert all("left_out" not in each for each in others)
    assert b"left_out" not in all_read.body


async def test_what_was_left_out_is_told_in_the_typed_face():
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        thread = await conversation(gateway)
        fakes.conversation.omit, fakes.tokenizer.drop = 1, 4
        messages = [pb.Message(role=content_pb2.ROLE_USER, content=text) for text in ("a b", "c")]
        request = pb.ChatRequest(conversation_id=thread, messages=messages)
        call = gateway.chat.Chat(request, metadata=identity())
        events = [each async for each in call]
    started = events[0].started
    assert started.dropped_message_count == 5
    history, asked = started.left_out
    assert (history.part, history.message_count) == (pb.PROMPT_PART_HISTORY, 4)
    assert history.token_count == 13
    assert (asked.part, asked.message_count) == (pb.PROMPT_PART_MESSAGES, 1)
    assert not asked.HasField("token_count")


async def test_what_no_context_holds_is_neither_screened_nor_rendered_nor_stored():
    fakes = Fakes()
    fakes.tokenizer.drop = 2
    messages = [user(f"{number} " + "x" * 4000) for number in range(250)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"messages": messages, "store": True})
        await gateway.background.finish()
        refused = await gateway.post({"messages": [user("x" * 100_000)]})
    bytes_max = CONTEXT * TOKEN_BYTES_MAX
    (screened,) = fakes.safety.prompts
    (rendered,) = fakes.tokenizer.requests
    for request in (screened, rendered):
        assert 0 < sum(len(each.content) for each in request.messages) <= bytes_max
        assert request.messages[-1].content == messages[-1]["content"]
    (left_out,) = answer.json["left_out"]
    assert left_out == {"part": "messages", "messages": 250 - len(rendered.messages) + 2}
    (appended,) = fakes.conversation.appended
    *stored, _ = appended.messages
    assert [each.content for each in stored] == [each.content for each in rendered.messages[2:]]
    assert all(each.token_count for each in stored)
    error = refused.json["error"]
    assert (refused.status, error["code"]) == (400, "context_length_exceeded")
    assert error["metadata"] == {"limit": str(CONTEXT), "count": str(100_000 // TOKEN_BYTES_MAX)}


async def test_the_names_of_authors_are_screened():
    async with running_gateway() as gateway:
        await gateway.post({"messages": [user("Hi") | {"name": "Ada"}]})
    assert [each.name for each in gateway.fakes.safety.prompts[0].messages] == ["Ada"]


def test_every_part_that_can_be_left_out_has_its_word_in_the_contract():
    shortened = {rule.name for rule in ORDER if rule.overflow is not Overflow.REFUSE}
    assert PARTS.keys() == shortened
    assert len(set(PARTS.values())) == len(PARTS)
    words = {name: f"PROMPT_PART_{name.upper()}" for name in shortened}
    assert {name: pb.PromptPart.Name(part) for name, part in PARTS.items()} == words


async def stored_counts(prompts: OperatorPromptsFile | None) -> list[int]:
    """What the shipped model's own tokenizer counts of those of three new messages that fit."""
    fakes = Fakes()
    service = TokenizerService({MODEL: ChatTokenizer(read_folder(DEFAULT_MODEL), 1 << 20)})
    fakes.tokenizer = service
    messages = [system("Be kind."), user("hello " * 3000), user("Who are you?")]
    try:
        async with running_gateway(fakes, prompts) as gateway:
            answer = await gateway.post({"messages": messages, "store": True})
            await gateway.background.finish()
    finally:
        service.close()
    assert answer.json["left_out"] == [{"part": "messages", "messages": 1}]
    stored = fakes.conversation.appended[0].messages
    assert [each.content for each in stored[:-1]] == ["Be kind.", "Who are you?"]
    return [each.token_count for each in stored[:-1]]


async def test_stored_counts_are_the_same_behind_an_operators_prompt(document):
    plain = await stored_counts(None)
    assert await stored_counts(OperatorPromptsFile(document)) == plain
    assert len(plain) == 2
    assert all(0 < count < 20 for count in plain)
