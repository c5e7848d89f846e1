"""Tool calls over both faces: streamed, whole, followed, adopted, screened and kept."""

import json

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2
from tests.support.call_syntax import CALL_SYNTAX
from tests.support.fakes import Fakes, Script, failure
from tests.support.gateway_turns import TURN, failed, identity, question, running_gateway
from tests.support.memory_journal import MemoryJournal
from tests.support.turn_streams import last_id, read_until, rest_of

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "D", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
# As a node sends them: the markup in pieces.
FRAMES = [
    *("Let me", " see. <", "tool_call>", '\n{"name": "g', 'et", "arguments": {"ci', 'ty": "Pa'),
    *('ris"', '}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool', "_call>"),
]
CALLS = [("get", '{"city": "Paris"}'), ("now", "{}")]


def calling(frames=FRAMES, **script) -> Fakes:
    fakes = Fakes()
    fakes.inference.scripts = [Script(list(frames), **script)]
    return fakes


def streamed(frames):
    """(text, calls, reasons) as clients put them together."""
    text, calls, reasons = "", [], []
    for _, data in frames:
        for choice in () if data == "[DONE]" else data["choices"]:
            text += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    assert piece["index"] == len(calls)
                    assert piece["type"] == "function"
                    calls.append([piece["function"]["name"], "", piece["id"]])
                calls[piece["index"]][1] += piece["function"]["arguments"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, [tuple(call[:2]) for call in calls], reasons


async def test_a_stream_has_text_and_calls_with_their_indexes():
    async with running_gateway(calling()) as gateway:
        answer = await gateway.post({"stream": True, "tools": TOOLS})
    assert streamed(answer.frames) == ("Let me see. ", CALLS, ["tool_calls"])
    asked = gateway.fakes.inference.requests[0].calls
    assert [tool.name for tool in asked.tool_use.tools] == ["get", "now"]
    assert not asked.tool_use.tools[0].description  # the prompt has it
    assert asked.syntax == CALL_SYNTAX
    described = gateway.fakes.tokenizer.requests[0].tool_use.tools
    assert json.loads(described[0].parameters_json) == WEATHER
    assert described[0].description == "D"


async def test_a_whole_answer_and_the_turn_have_the_same_calls():
    async with running_gateway(calling()) as gateway:
        message = (await gateway.post({"tools": TOOLS})).json["choices"][0]
        turn = (await gateway.state()).json["choices"][0]
    called = [(c["function"]["name"], c["function"]["arguments"]) for c in turn["tool_calls"]]
    assert called == CALLS
    assert message["message"]["tool_calls"] == turn["tool_calls"]
    assert (message["message"]["content"], message["finish_reason"]) == (
        *("Let me see. ", "tool_calls"),
    )
    assert (turn["text"], turn["finish_reason"]) == ("Let me see. ", "tool_calls")


@pytest.mark.parametrize("logprobs", [False, True])
async def test_every_cursor_leads_to_exactly_the_rest(logprobs):
    async with running_gateway(calling()) as gateway:
        whole = await gateway.post({"stream": True, "tools": TOOLS, "logprobs": logprobs})
        await gateway.background.finish()
        ids = [each for each, _ in whole.frames]
        for index, cursor in enumerate(ids):
            rest = await gateway.follow(after=cursor)
            behind = [data for each, data in whole.frames if each not in ids[: index + 1]]
            assert [data for _, data in rest.frames] == (behind or ["[DONE]"])


@pytest.mark.parametrize("redraws", [True, False])
@pytest.mark.parametrize("at", [3, 5, 8])
async def test_a_call_goes_on_at_another_gateway_in_mid_argument(at, redraws):
    fakes, journal = calling(gate_at=at), MemoryJournal()
    fakes.inference.draws_by_position = redraws
    async with (
        running_gateway(fakes, journal=journal, reader_grace_s=30) as first,
        running_gateway(fakes, journal=journal, name="gateway-2", reader_grace_s=30) as second,
    ):
        begun = await read_until(first.call({"stream": True, "tools": TOOLS}), "Let me")
        await fakes.inference.at_gate.wait()
        await first.die()
        fakes.inference.gate.set()
        rest = await rest_of(second.following(after=last_id(begun)))
        await second.background.finish()
    frames = _frames(begun + rest)
    assert streamed(frames) == ("Let me see. ", CALLS, ["tool_calls"])


def _frames(data):
    found = [
        block.split("data: ", 1)[1] for block in data.decode().split("\n\n") if "data: " in block
    ]
    return [("", each if each == "[DONE]" else json.loads(each)) for each in found]


async def test_a_call_that_is_cut_is_not_said_to_be_whole():
    cut = calling(FRAMES[:6], finish=content_pb2.FINISH_REASON_LENGTH)
    async with running_gateway(cut) as gateway:
        answer = await gateway.post({"stream": True, "tools": TOOLS})
    assert streamed(answer.frames) == ("Let me see. ", [("get", '{"city": "Pa')], ["length"])


async def test_without_tools_markup_is_text():
    async with running_gateway(calling()) as gateway:
        answer = await gateway.post({"stream": True})
    assert answer.text == "".join(FRAMES)


@pytest.mark.parametrize(
    ("chosen", "choice", "names", "is_single"),
    [
        ("none", content_pb2.TOOL_CHOICE_NONE, [], False),
        ("auto", content_pb2.TOOL_CHOICE_AUTO, [], False),
        ("required", content_pb2.TOOL_CHOICE_REQUIRED, [], False),
        (
            {"type": "function", "function": {"name": "now"}},
            *(content_pb2.TOOL_CHOICE_REQUIRED, ["now"], True),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "get"}}],
                },
            },
            *(content_pb2.TOOL_CHOICE_AUTO, ["get"], False),
        ),
    ],
)
async def test_the_choice_reaches_the_node(chosen, choice, names, is_single):
    async with running_gateway(calling()) as gateway:
        await gateway.post({"tools": TOOLS, "tool_choice": chosen})
    use = gateway.fakes.inference.requests[0].calls.tool_use
    assert (use.choice, list(use.allowed_names), use.single_call) == (choice, names, is_single)


async def test_nodes_that_cannot_hold_an_answer_to_calls_are_not_asked():
    fakes = calling()
    fakes.inference.binds_calls = False
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"tools": TOOLS})
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
    assert not fakes.inference.requests


async def test_a_schema_that_the_node_refuses_is_the_fault_of_the_tools():
    refusal = failure(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", field="calls")
    fakes = calling()
    fakes.inference.faults.add("Generate", refusal)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"tools": TOOLS})
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")


def called(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": arguments}}
    return [
        {"role": "user", "content": "How?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]


async def test_arguments_results_and_tools_are_judged():
    async with running_gateway(calling()) as gateway:
        await gateway.post(question(messages=called('{"city": "Paris"}'), tools=TOOLS))
    judged = gateway.fakes.safety.prompts[0].messages
    assert [(content_pb2.Role.Name(each.role)[5:], each.content) for each in judged] == [
        ("USER", "How?"),
        ("ASSISTANT", ""),
        ("ASSISTANT", '{"city": "Paris"}'),
        ("TOOL", "Rain."),
        ("SYSTEM", f"get: D\n{json.dumps(WEATHER)}\nnow: \n"),
    ]
    read = gateway.fakes.tokenizer.requests[0].messages
    assert read[1].parts[0].tool_call.arguments_json == '{"city": "Paris"}'
    assert read[2].parts[0].tool_result.tool_call_id == "c1"


@pytest.mark.parametrize(
    ("message_index", "start", "end", "status"),
    [(2, 10, 19, 200), (2, 0, 12, 400), (3, 0, 4, 200), (4, 0, 3, 400)],
    ids=["in a string", "over the braces", "in a result", "in a tool"],
)
async def test_masked_arguments_stay_json_or_are_refused(message_index, start, end, status):
    fakes = calling()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_REDACT
    mask = safety_pb2.Mask(start_offset=start, end_offset=end, replacement="[x]")
    mask.message_index = message_index
    fakes.safety.bad_prompt_masks = [mask]
    async with running_gateway(fakes) as gateway:
        asked = question(messages=called('{"city": "FORBIDDEN"}'), tools=TOOLS)
        answer = await gateway.post(asked)
    assert answer.status == status
    if message_index == 2 and status == 200:
        read = fakes.tokenizer.requests[-1].messages[1].parts[0].tool_call
        assert read.arguments_json == '{"city": "[x]"}'


@pytest.mark.parametrize("arguments", ["[]", "{", '{"a": NaN}', '{"a": "\\ud800"}', "1" * 5000])
async def test_arguments_that_are_no_json_object_are_refused(arguments):
    async with running_gateway(calling()) as gateway:
        answer = await gateway.post(question(messages=called(arguments), tools=TOOLS))
    param = "messages[1].tool_calls[0].function.arguments"
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_the_thread_keeps_calls_and_results():
    fakes = calling()
    async with running_gateway(fakes) as gateway:
        thread = (await gateway.post({"tools": TOOLS, "store": True})).json["conversation_id"]
        await gateway.background.finish()
        (answer,) = fakes.conversation.appended[0].messages[1:]
        assert answer.content == "Let me see. "
        assert [part.tool_call.name for part in answer.parts] == ["get", "now"]
        assert answer.finish == content_pb2.FINISH_REASON_TOOL_CALLS
        call_id = answer.parts[0].tool_call.id
        result = {"role": "tool", "tool_call_id": call_id, "content": "Rain."}
        fakes.inference.scripts = [Script(["It rains."])]
        await gateway.post({"messages": [result], "conversation_id": thread, "tools": TOOLS})
        await gateway.background.finish()
    read = fakes.tokenizer.requests[-1].messages
    assert read[1].parts[0].tool_call.id == call_id
    assert read[2].parts[0].tool_result.tool_call_id == call_id
    assert fakes.conversation.appended[1].messages[0].parts[0].tool_result.tool_call_id == call_id


async def test_a_refusal_in_mid_call_ends_the_answer_as_one():
    poisoned = [
        '<tool_call>\n{"name": "get", "arguments": {"city": "POI',
        "SON",
        '"}}\n</tool_call>',
    ]
    fakes = calling(poisoned)
    fakes.safety.window = 8
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True, "tools": TOOLS})
    text, calls, reasons = streamed(answer.frames)
    assert (text, reasons) == ("", ["content_filter"])
    assert calls in ([], [("get", '{"city": "')])


async def test_the_typed_face_has_the_same():
    use = content_pb2.ToolUse(choice=content_pb2.TOOL_CHOICE_REQUIRED)
    use.tools.add(name="get", parameters_json=json.dumps(WEATHER))
    asked = chat_pb2.ChatRequest(tool_use=use)
    asked.messages.add(role=content_pb2.ROLE_USER, content="How?")
    call = asked.messages.add(role=content_pb2.ROLE_ASSISTANT).parts.add().tool_call
    call.id, call.name, call.arguments_json = "c1", "get", "{}"
    result = asked.messages.add(role=content_pb2.ROLE_TOOL).parts.add().tool_result
    result.tool_call_id, result.content = "c1", "Rain."
    async with running_gateway(calling()) as gateway:
        events = [e async for e in gateway.chat.Chat(asked, metadata=identity())]
        state = await gateway.chat.GetTurn(
            chat_pb2.GetTurnRequest(turn_id=TURN), metadata=identity()
        )
        asked.tool_use.allowed_names.append("other")
        refusal = await failed(gateway.chat.Chat(asked, metadata=gateway.identity()))
    assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
    deltas = [call for event in events for call in event.delta.calls]
    assert [(each.call_index, each.name) for each in deltas if each.id] == [(0, "get"), (1, "now")]
    arguments = "".join(each.arguments_json for each in deltas if each.call_index == 0)
    assert arguments == CALLS[0][1]
    assert events[-2].choice_finished.finish_reason == content_pb2.FINISH_REASON_TOOL_CALLS
    assert [each.arguments_json for each in state.turn.choices[0].calls] == [c for _, c in CALLS]
    read = gateway.fakes.tokenizer.requests[0].messages
    assert read[2].content == "Rain."
