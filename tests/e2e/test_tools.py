"""Tool calls of the shipped model to unmodified clients, through a running mesh.

The shipped model was never taught to call; that what it calls is valid is the grammar's doing.
"""

import json

import grpc
import jsonschema
import openai
import pytest
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from tests.support.running import running_mesh

pytestmark = pytest.mark.mesh
MODEL = "chatmesh-tiny"
HELLO = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Tells it.", "parameters": WEATHER},
    },
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object", "additionalProperties": False}}


@pytest.fixture(scope="module")
def torch_copy(tmp_path_factory):
    with running_mesh(tmp_path_factory.mktemp("tools"), INFERENCE_ENGINE="torch") as copy:
        yield copy


@pytest.fixture
def client(torch_copy):
    with openai.OpenAI(
        base_url=torch_copy.base_url, api_key=torch_copy.api_key, max_retries=0, timeout=60
    ) as client:
        yield client


def request(**more):
    return {"model": MODEL, "messages": HELLO, "max_tokens": 200, "tools": TOOLS, **more}


def check(calls):
    """All calls name a tool, and their arguments validate."""
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


def streamed(chunks):
    """Text, calls and reason of a stream, put together as clients do; every piece in its place."""
    text, calls, reason = "", [], None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                assert piece.index in (len(calls) - 1, len(calls))
                if piece.index == len(calls):
                    assert piece.id
                    assert piece.function.name
                    calls.append([piece.id, piece.function.name, ""])
                calls[piece.index][2] += piece.function.arguments
            reason = choice.finish_reason or reason
    return text, [tuple(call) for call in calls], reason


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_required_calls_are_valid_and_the_stream_says_the_same(client, seed):
    asked = request(tool_choice="required", seed=seed)
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason in ("tool_calls", "length")
    if choice.finish_reason == "tool_calls":
        check(choice.message.tool_calls)
    assert choice.message.content is None
    text, calls, reason = streamed(client.chat.completions.create(**asked, stream=True))
    whole = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert [call[1:] for call in calls] == whole
    assert (text, reason) == ("", choice.finish_reason)


def test_a_named_tool_is_called_once(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = client.chat.completions.create(**request(tool_choice=named, seed=4)).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check(choice.message.tool_calls)
    assert choice.finish_reason == "tool_calls"


def test_only_what_is_allowed_is_called(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    asked = request(tool_choice=choice, parallel_tool_calls=False)
    answer = client.chat.completions.create(**asked).choices[0]
    assert [call.function.name for call in answer.message.tool_calls] == ["now"]
    assert answer.message.tool_calls[0].function.arguments == "{}"


def test_none_and_a_shy_model_answer_in_words(client):
    for choice in ("none", "auto"):
        answer = client.chat.completions.create(**request(tool_choice=choice, seed=5)).choices[0]
        assert answer.message.content
        assert not answer.message.tool_calls


def test_a_call_that_is_cut_is_said_to_be(client):
    named = {"type": "function", "function": {"name": "get_weather"}}
    asked = request(tool_choice=named, seed=1) | {"max_tokens": 45}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice.message.tool_calls[-1].function.arguments or "{")


def test_each_of_several_answers_calls(client):
    asked = request(tool_choice="required", n=3, seed=6, parallel_tool_calls=False)
    choices = client.chat.completions.create(**asked).choices
    assert len({choice.message.tool_calls[0].id for choice in choices}) == 3
    for choice in choices:
        check(choice.message.tool_calls)


def test_a_result_is_read_and_the_thread_keeps_what_was_called(client, torch_copy):
    named = {"type": "function", "function": {"name": "get_weather"}}
    asked = request(tool_choice=named, seed=4, extra_body={"store": True})
    first = client.chat.completions.create(**asked)
    (call,) = first.choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "It will rain."}
    thread = first.model_extra["conversation_id"]
    second = client.chat.completions.create(
        model=MODEL,
        messages=[result],
        tools=TOOLS,
        max_tokens=20,
        extra_body={"conversation_id": thread},
    )
    # The same without the thread: the model read the same.
    by_hand = [*HELLO, first.choices[0].message.model_dump(exclude_none=True), result]
    third = client.chat.completions.create(
        model=MODEL, messages=by_hand, tools=TOOLS, max_tokens=20
    )
    assert second.usage.prompt_tokens == third.usage.prompt_tokens
    kept = client.get(f"{torch_copy.root_url}/api/conversations/{thread}", cast_to=dict)
    question, calling, told, _ = kept["messages"]
    assert question["content"] == HELLO[0]["content"]
    assert [each["id"] for each in calling["tool_calls"]] == [call.id]
    assert calling["finish_reason"] == "tool_calls"
    assert told["tool_call_id"] == call.id


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools[1].function.name", {"tools": [TOOLS[1], TOOLS[1]]}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tools": None, "tool_choice": "required"}),
        ("stop", {"stop": ["x"]}),
        ("functions", {"functions": [{"name": "f"}]}),
        (
            "messages[1].tool_calls[0].function.arguments",
            {
                "messages": [
                    *HELLO,
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {
                                "id": "a",
                                "type": "function",
                                "function": {"name": "now", "arguments": "{"},
                            }
                        ],
                    },
                ]
            },
        ),
        (
            "tools",
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"type": "object", "not": {}},
                        },
                    }
                ]
            },
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(client, param, change):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**request() | change)
    assert refused.value.param == param


def test_langchain_binds_tools(torch_copy):
    model = ChatOpenAI(
        model=MODEL,
        base_url=torch_copy.base_url,
        api_key=torch_copy.api_key,
        max_retries=0,
        max_tokens=200,
        seed=4,
    )
    bound = model.bind_tools(TOOLS, tool_choice="get_weather")
    whole = bound.invoke(HELLO[0]["content"])
    (call,) = whole.tool_calls
    jsonschema.validate(call["args"], WEATHER)
    chunks = list(bound.stream(HELLO[0]["content"]))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert [each["args"] for each in total.tool_calls] == [call["args"]]
    again = model.invoke([("user", "Hi"), whole, ToolMessage("Rain.", tool_call_id=call["id"])])
    assert again.content


async def test_the_typed_face_streams_calls_and_follows_them(torch_copy):
    use = content_pb2.ToolUse(choice=content_pb2.TOOL_CHOICE_REQUIRED, single_call=True)
    use.tools.add(name="get_weather", parameters_json=json.dumps(WEATHER))
    asked = chat_pb2.ChatRequest(max_tokens=200, seed=4, tool_use=use)
    asked.messages.add(role=content_pb2.ROLE_USER, content=HELLO[0]["content"])
    metadata = (("authorization", f"Bearer {torch_copy.api_key}"),)
    async with grpc.aio.insecure_channel(torch_copy.plain_address) as channel:
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        events = [event async for event in stub.Chat(asked, metadata=metadata)]
        turn_id = events[0].started.turn_id
        deltas = [(event.cursor, call) for event in events for call in event.delta.calls]
        arguments = "".join(call.arguments_json for _, call in deltas)
        jsonschema.validate(json.loads(arguments), WEATHER)
        assert deltas[0][1].name == "get_weather"
        ended = next(e.choice_finished for e in events if e.HasField("choice_finished"))
        assert ended.finish_reason == content_pb2.FINISH_REASON_TOOL_CALLS
        # Whoever comes back, wherever it was, is told the rest.
        for event in events:
            follow = chat_pb2.FollowRequest(turn_id=turn_id, after=event.cursor)
            rest = [r.event async for r in stub.Follow(follow, metadata=metadata)]
            assert [(e.sequence, e.delta.calls) for e in rest] == [
                (e.sequence, e.delta.calls) for e in events if e.sequence > event.sequence
            ]
        asked_turn = chat_pb2.GetTurnRequest(turn_id=turn_id)
        turn = (await stub.GetTurn(asked_turn, metadata=metadata)).turn
        assert turn.choices[0].calls[0].arguments_json == arguments
