"""The typed face: the same turn, numbered events, public reasons."""

import asyncio

import grpc
import pytest
from google.protobuf import text_format

from chatmesh.chat.v1 import chat_pb2 as pb
from chatmesh.content.v1 import content_pb2
from mesh.chassis.errors import MeshError
from tests.support.fakes import MODEL, Fakes, Script
from tests.support.gateway_turns import TURN, failed, identity, running_gateway


def asking(**fields) -> pb.ChatRequest:
    message = pb.Message(role=content_pb2.ROLE_USER, content="How are you?")
    return pb.ChatRequest(**({"messages": [message]} | fields))


async def events_of(gateway, request: pb.ChatRequest) -> list[pb.ChatResponse]:
    return [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]


async def test_a_turn_event_by_event():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Hi", " there"])]
    async with running_gateway(fakes) as gateway:
        events = await events_of(gateway, asking(seed=4, temperature=0, max_tokens=5))
    shown = [text_format.MessageToString(each, as_one_line=True) for each in events]
    assert shown == [
        f'started {{ turn_id: "{TURN}" model: "{MODEL}" journaled: true }} cursor: "{TURN}:0:0"',
        f'sequence: 2 delta {{ text: "Hi" token_count: 1 }} cursor: "{TURN}:0:2"',
        f'sequence: 8 delta {{ text: " there" token_count: 2 }} cursor: "{TURN}:0:8"',
        f'sequence: 9 choice_finished {{ finish_reason: FINISH_REASON_STOP }} cursor: "{TURN}:0:9"',
        "sequence: 10 finished { usage { prompt_token_count: 3 cached_token_count: 2 "
        f'completion_token_count: 2 }} }} cursor: "{TURN}:0:10"',
    ]
    request = fakes.inference.requests[0]
    assert (request.sampling.seed, request.sampling.temperature, request.max_tokens) == (4, 0, 5)


async def test_absent_is_not_zero():
    async with running_gateway() as gateway:
        await events_of(gateway, asking())
    assert not gateway.fakes.inference.requests[0].sampling.HasField("temperature")


async def test_finish_reasons():
    fakes = Fakes()
    fakes.inference.choose = lambda request: [
        Script(["a"], finish=2),
        Script(["b POISON"]),
    ][request.choice_index]
    async with running_gateway(fakes) as gateway:
        events = await events_of(gateway, asking(n=2))
    reasons = {
        each.choice_finished.choice_index: each.choice_finished.finish_reason
        for each in events
        if each.HasField("choice_finished")
    }
    assert reasons == {
        0: content_pb2.FINISH_REASON_LENGTH,
        1: content_pb2.FINISH_REASON_CONTENT_FILTER,
    }


async def test_dropped_messages_are_told_and_a_conversation_is_named():
    fakes = Fakes()
    fakes.tokenizer.drop = 1
    old = pb.Message(role=content_pb2.ROLE_USER, content="long ago")
    new = pb.Message(role=content_pb2.ROLE_USER, content="now it is")
    async with running_gateway(fakes) as gateway:
        events = await events_of(gateway, asking(store=True, messages=[old, new]))
    started = events[0].started
    assert started.dropped_message_count == 1
    assert started.conversation_id.startswith("thr_")
    counts = [each.token_count for each in fakes.conversation.appended[0].messages]
    assert counts == [3, 4]  # what the model did not read is not kept


TEXT = content_pb2.Part(text="How are")
CALL = content_pb2.Part(tool_call=content_pb2.ToolCall(id="1", name="clock", arguments_json="{}"))


def made_of(*parts: content_pb2.Part, content: str = "") -> pb.Message:
    return pb.Message(role=content_pb2.ROLE_USER, content=content, parts=parts)


@pytest.mark.parametrize("content", ["", "How are you?"])
async def test_parts_that_are_texts_are_joined(content):
    message = made_of(TEXT, content_pb2.Part(text=" you?"), content=content)
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        await events_of(gateway, asking(messages=[message]))
    (screened,) = fakes.safety.prompts
    assert [(each.content, len(each.parts)) for each in screened.messages] == [("How are you?", 0)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [pb.Message(content="x")]}, "messages[0].role"),
        ({"messages": [made_of(CALL)]}, "messages[0].tool_calls"),
        ({"messages": [made_of(TEXT, content_pb2.Part())]}, "messages[0].parts[1]"),
        ({"messages": [made_of(TEXT, content="another")]}, "messages[0].content"),
        ({"n": 5}, "n"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 1 << 30}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"user": "x" * 257}, "user"),
    ],
)
async def test_wrong_parameters(fields, param):
    async with running_gateway() as gateway:
        call = gateway.chat.Chat(asking(**fields), metadata=identity())
        error = MeshError.from_rpc(await failed(call))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMETER")
    assert error.metadata["param"] == param


async def test_cancelling_the_call_cancels_the_generation():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["a", "b"], gate_at=1)]
    async with running_gateway(fakes) as gateway:
        call = gateway.chat.Chat(asking(), metadata=identity())
        await call.read()
        await call.read()
        call.cancel()
        await asyncio.wait_for(fakes.inference.cancelled.wait(), 10)
        await asyncio.wait_for(fakes.billing.concluded.wait(), 10)
    assert fakes.billing.settled[TURN].output_token_count == 1


async def test_a_stalled_reader_ends_the_turn():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["x" * 4000] * 1000)]
    async with running_gateway(fakes, reader_stall_s_max=0.2) as gateway:
        call = gateway.chat.Chat(asking(), metadata=identity())
        await call.read()
        await asyncio.wait_for(fakes.billing.concluded.wait(), 20)
        call.cancel()
    assert fakes.billing.settled[TURN].output_token_count < 1000


async def test_a_conversation_asks_for_background_turns():
    async with running_gateway() as gateway:
        events = await events_of(gateway, asking(store=True))
        thread = events[0].started.conversation_id
        update = pb.UpdateConversationRequest(conversation_id=thread, background=True)
        changed = await gateway.conversations.UpdateConversation(update, metadata=identity())
        nothing = pb.UpdateConversationRequest(conversation_id=thread)
        call = gateway.conversations.UpdateConversation(nothing, metadata=identity())
        error = MeshError.from_rpc(await failed(call))
        got = await gateway.conversations.GetConversation(
            pb.GetConversationRequest(conversation_id=thread), metadata=identity()
        )
    assert (changed.conversation.background, changed.conversation.title) == (True, "A title")
    assert (error.reason, error.metadata["param"]) == ("INVALID_PARAMETER", "title")
    assert got.conversation.background


async def test_models_conversations_and_usage():
    async with running_gateway() as gateway:
        models = await gateway.chat.ListModels(pb.ListModelsRequest(), metadata=identity())
        events = await events_of(gateway, asking(store=True))
        thread = events[0].started.conversation_id
        listed = await gateway.conversations.ListConversations(
            pb.ListConversationsRequest(), metadata=identity()
        )
        got = await gateway.conversations.GetConversation(
            pb.GetConversationRequest(conversation_id=thread), metadata=identity()
        )
        renamed = await gateway.conversations.RenameConversation(
            pb.RenameConversationRequest(conversation_id=thread, title="New"), metadata=identity()
        )
        await gateway.conversations.DeleteConversation(
            pb.DeleteConversationRequest(conversation_id=thread), metadata=identity()
        )
        gone = gateway.conversations.GetConversation(
            pb.GetConversationRequest(conversation_id=thread), metadata=identity()
        )
        error = MeshError.from_rpc(await failed(gone))
        usage = await gateway.usage.GetUsage(pb.GetUsageRequest(), metadata=identity())
    assert [model.id for model in models.models] == [MODEL]
    assert [each.id for each in listed.conversations] == [thread]
    assert [(each.role, each.content) for each in got.conversation.messages] == [
        (content_pb2.ROLE_USER, "How are you?"),
        (content_pb2.ROLE_ASSISTANT, "Hello wide world."),
    ]
    assert got.conversation.messages[1].finish_reason == content_pb2.FINISH_REASON_STOP
    assert renamed.conversation.title == "New"
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "CONVERSATION_NOT_FOUND")
    assert (usage.period, usage.input_token_count, usage.budget_nanousd) == ("2026-11", 100, -1)
