"""Response formats and sampling parameters reach the node, by either face."""

import json

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2 as pb
from chatmesh.content.v1 import content_pb2
from mesh.chassis.errors import MeshError
from tests.support.fakes import Fakes, Script
from tests.support.gateway_turns import failed, identity, running_gateway

FIELD = "response_format"
SCHEMA = {"type": "object", "properties": {"é": {"type": "string"}}}


def as_schema(**fields):
    return {"type": "json_schema", "json_schema": {"name": "reply", **fields}}


def asking(**fields) -> pb.ChatRequest:
    message = pb.Message(role=content_pb2.ROLE_USER, content="How are you?")
    return pb.ChatRequest(messages=[message], **fields)


@pytest.mark.parametrize(
    ("fields", "kind", "told"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"response_format": as_schema(schema=SCHEMA, strict=True)}, "json_schema", SCHEMA),
        ({"response_format": as_schema(schema=SCHEMA)}, "json_schema", SCHEMA),
        ({"response_format": as_schema()}, "json_object", True),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", ["yes", "no"]),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", "no"]}, "choice", ["yes", "no"]),
    ],
)
async def test_a_format_reaches_the_node(fields, kind, told):
    async with running_gateway() as gateway:
        assert (await gateway.post(fields)).status == 200
    asked = gateway.fakes.inference.requests[0].response_format
    assert asked.WhichOneof("format") == kind
    (start,) = gateway.fakes.safety.starts
    assert start.is_json == str(kind).startswith("json")  # masked, it stays JSON
    if kind == "json_schema":
        assert json.loads(asked.json_schema) == told
    elif kind == "choice":
        assert list(asked.choice.texts) == told
    elif kind:
        assert getattr(asked, kind) == told


@pytest.mark.parametrize(
    "asked",
    [
        content_pb2.ResponseFormat(json_object=True),
        content_pb2.ResponseFormat(json_schema="{}"),
        content_pb2.ResponseFormat(regex="a|b"),
        content_pb2.ResponseFormat(choice=content_pb2.ChoiceList(texts=["yes", "no"])),
    ],
)
async def test_a_typed_format_reaches_the_node(asked):
    async with running_gateway() as gateway:
        request = asking(response_format=asked)
        assert [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]
    told = gateway.fakes.inference.requests[0].response_format
    # Both contracts number the forms alike.
    assert told == asked


async def test_without_a_format_the_node_hears_of_none():
    async with running_gateway() as gateway:
        for request in (asking(), asking(response_format=content_pb2.ResponseFormat())):
            assert [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]
        await gateway.post({})
    told = [each.HasField("response_format") for each in gateway.fakes.inference.requests]
    assert told == [False] * 3


async def test_what_the_node_cannot_enforce_is_the_clients_to_change():
    fakes = Fakes()
    message = 'The json_schema cannot be enforced: Unimplemented keys: ["not"].'
    for _ in range(2):
        fault = MeshError(
            grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", message, metadata={"field": FIELD}
        )
        fakes.inference.faults.add("Generate", fault)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"response_format": as_schema(schema={"not": {}})})
        request = asking(response_format=content_pb2.ResponseFormat(json_schema='{"not": {}}'))
        call = gateway.chat.Chat(request, metadata=identity(turn="01JD1"))
        typed = MeshError.from_rpc(await failed(call))
    error = answer.json["error"]
    assert (answer.status, error["param"], error["message"]) == (400, FIELD, message)
    assert (typed.reason, typed.metadata["param"]) == ("INVALID_PARAMETER", FIELD)
    assert len(fakes.inference.requests) == 2  # no other node was tried


SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "presence_penalty": 1.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.25,
    "seed": 9,
}


async def test_sampling_parameters_reach_the_node_by_either_face():
    async with running_gateway() as gateway:
        await gateway.post({**SAMPLING, "logit_bias": {"5": -2}, "logprobs": True})
        request = asking(**SAMPLING, logit_bias={5: -2}, logprobs=True)
        assert [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]
        await gateway.post({"top_k": -1})
    first, second, off = gateway.fakes.inference.requests
    for name, value in SAMPLING.items():
        assert getattr(first.sampling, name) == value, name
    assert dict(first.sampling.logit_bias) == {5: -2}
    assert second.sampling == first.sampling
    assert first.logprobs
    assert second.logprobs
    assert off.sampling.top_k == 0


async def test_an_answer_with_more_than_a_message_holds_comes_whole():
    fakes = Fakes()
    frames = [f"{number} " + "x" * 60_000 for number in range(20)]
    fakes.inference.scripts = [Script(frames)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"logprobs": True, "top_logprobs": 1, "max_tokens": 4000})
        await gateway.background.finish()
    assert answer.status == 200
    assert len(answer.body) > 8 << 20  # what one message may have
    assert len(answer.messages) > 1
    (choice,) = answer.json["choices"]
    assert choice["message"]["content"] == "".join(frames)
    assert len(choice["logprobs"]["content"]) == sum(len(each.split()) for each in frames)
    assert fakes.billing.settled


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({"max_tokens": 1561, "n": 4, "top_logprobs": 20}, True),
        ({"max_tokens": 1560, "n": 4, "top_logprobs": 20}, False),
        ({"max_tokens": 16_384, "n": 4, "top_logprobs": 1}, False),
        ({"max_tokens": 16_384, "n": 4, "top_logprobs": 2}, True),
        ({"n": 4, "top_logprobs": 20}, False),
    ],
)
async def test_log_probabilities_are_bounded_before_they_cost_anything(fields, is_refused):
    fakes = Fakes()
    fakes.tokenizer.context = 100_000
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"logprobs": True, **fields})
    if is_refused:
        assert (answer.status, answer.json["error"]["param"]) == (400, "logprobs")
        assert fakes.billing.calls == []
    else:
        assert answer.status == 200
        assert {each.max_tokens for each in fakes.inference.requests} == {
            fields.get("max_tokens", 1560)
        }


async def test_log_probabilities_come_back_typed():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Hi", " there"])]
    async with running_gateway(fakes) as gateway:
        request = asking(logprobs=True, top_logprobs=2)
        events = [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]
        refused = await failed(gateway.chat.Chat(asking(top_logprobs=2), metadata=identity()))
    assert fakes.inference.requests[0].top_logprobs == 2
    entries = [entry for event in events for entry in event.delta.logprobs]
    assert [entry.chosen.text for entry in entries] == [b"Hi", b" there"]
    assert [entry.chosen.logprob for entry in entries] == [-0.5, -0.5]
    assert MeshError.from_rpc(refused).metadata["param"] == "top_logprobs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": content_pb2.ResponseFormat(regex="x" * 4097)}, "response_format"),
        (
            {"response_format": content_pb2.ResponseFormat(json_schema="x" * 65_537)},
            "response_format",
        ),
        (
            {"response_format": content_pb2.ResponseFormat(choice=content_pb2.ChoiceList())},
            "response_format",
        ),
        (
            {
                "response_format": content_pb2.ResponseFormat(
                    choice=content_pb2.ChoiceList(texts=[""])
                )
            },
            "response_format",
        ),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ],
)
async def test_a_typed_parameter_out_of_its_range_is_named(fields, param):
    async with running_gateway() as gateway:
        call = gateway.chat.Chat(asking(**fields), metadata=identity())
        error = MeshError.from_rpc(await failed(call))
    assert (error.reason, error.metadata["param"]) == ("INVALID_PARAMETER", param)
    assert gateway.fakes.inference.requests == []
