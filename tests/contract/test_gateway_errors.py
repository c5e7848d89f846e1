"""Each reason that a client can meet, over HTTP and typed, with what it must say."""

import json

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from gateway.errors import CODES
from gateway.faces.openai.errors import TABLE
from gateway.settings import WhenAway
from mesh.chassis.errors import MeshError
from tests.support.fakes import MODEL, Fakes, failure
from tests.support.gateway_turns import failed, identity, question, running_gateway

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SPENT = grpc.StatusCode.RESOURCE_EXHAUSTED
AWAY = grpc.StatusCode.UNAVAILABLE
SLOW = grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_tables_name_every_reason_of_the_contract():
    reasons = {name.removeprefix("REASON_") for name in chat_pb2.Reason.keys()}  # noqa: SIM118  # not a dict
    reasons -= {"UNSPECIFIED"}
    assert set(CODES) == reasons
    assert set(TABLE) == reasons


@pytest.mark.parametrize(
    ("service", "method", "code", "reason", "status", "shown", "param"),
    [
        ("billing", "Hold", SPENT, "BUDGET_EXHAUSTED", 429, "INSUFFICIENT_QUOTA", None),
        ("billing", "Hold", AWAY, "STORE_UNAVAILABLE", 503, "SERVICE_UNAVAILABLE", None),
        ("billing", "Hold", AWAY, "", 503, "SERVICE_UNAVAILABLE", None),
        ("billing", "Hold", SLOW, "", 504, "TIMEOUT", None),
        ("billing", "Hold", grpc.StatusCode.NOT_FOUND, "PRICE_NOT_FOUND", 500, "INTERNAL_ERROR",
         None),
        ("tokenizer", "Encode", INVALID, "BAD_MESSAGES", 400, "INVALID_PARAMETER", "messages"),
        ("tokenizer", "Encode", INVALID, "TEMPLATE_FAILED", 400, "INVALID_PARAMETER", "messages"),
        ("tokenizer", "Encode", grpc.StatusCode.UNKNOWN, "", 500, "INTERNAL_ERROR", None),
        ("safety", "ScreenPrompt", AWAY, "AUDIT_UNAVAILABLE", 503, "SERVICE_UNAVAILABLE", None),
        ("safety", "ScreenPrompt", grpc.StatusCode.FAILED_PRECONDITION, "NO_POLICY", 503,
         "SERVICE_UNAVAILABLE", None),
        ("inference", "Generate", SPENT, "QUEUE_FULL", 503, "OVERLOADED", None),
        ("safety", "ScreenPrompt", SPENT, "OVERLOADED", 503, "OVERLOADED", None),
        ("inference", "Generate", SPENT, "DEADLINE_UNREACHABLE", 503, "OVERLOADED", None),
        ("inference", "Generate", SPENT, "REQUEST_TOO_LARGE", 400, "CONTEXT_LENGTH_EXCEEDED",
         "messages"),
        ("inference", "Generate", INVALID, "BAD_REQUEST", 400, "INVALID_PARAMETER", None),
        ("inference", "Generate", INVALID, "PROMPT_TOO_LONG", 400, "CONTEXT_LENGTH_EXCEEDED",
         "messages"),
        ("inference", "Generate", grpc.StatusCode.INTERNAL, "ENGINE_FAILED", 500,
         "INTERNAL_ERROR", None),
        ("inference", "Generate", SLOW, "", 504, "TIMEOUT", None),
    ],
)  # fmt: skip
async def test_upstream_failures(  # noqa: PLR0917  # a row of the table
    service, method, code, reason, status, shown, param
):
    fakes = Fakes()
    error = MeshError(code, reason, "SECRET INTERNALS", retry_after_s=2)
    if shown in ("INVALID_PARAMETER", "CONTEXT_LENGTH_EXCEEDED"):
        error.message = "what to do"
    getattr(fakes, service).faults.add(method, error, error)
    async with running_gateway(fakes, away=WhenAway(hold={})) as gateway:
        http = await gateway.post({"stream": True})
        message = chat_pb2.Message(role=content_pb2.ROLE_USER, content="hi")
        request = chat_pb2.ChatRequest(model=MODEL, messages=[message])
        typed = MeshError.from_rpc(
            await failed(gateway.chat.Chat(request, metadata=identity(turn="01JD1")))
        )
    told = http.json["error"]
    assert (http.status, told["code"], told["param"]) == (status, shown.lower(), param)
    assert "INTERNALS" not in told["message"]
    assert (typed.reason, typed.code) == (shown, CODES[shown])
    if shown in ("SERVICE_UNAVAILABLE", "TIMEOUT"):
        assert told["metadata"] == {"service": service}
        assert typed.metadata["service"] == service
    if shown in ("SERVICE_UNAVAILABLE", "OVERLOADED"):
        assert http.headers["retry-after"] == "2"
        assert typed.retry_after_s == 2


async def test_context_length_exceeded_says_limit_and_count():
    fakes = Fakes()
    fakes.tokenizer.context = 2
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
        explicit = await gateway.post({"max_tokens": 4096})
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json["error"]["metadata"] == {"limit": "2", "count": "3"}
    assert explicit.json["error"]["code"] == "context_length_exceeded"
    # The second try, with less room, is only for those who left the length open.
    assert [each.max_tokens for each in fakes.tokenizer.requests] == [512, 0, 4096]


async def test_an_unknown_model():
    async with running_gateway() as gateway:
        answer = await gateway.post({"model": "gpt-99"})
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
        assert answer.json["error"]["param"] == "model"
        assert gateway.fakes.billing.calls == []


@pytest.mark.parametrize("account", ["acc_1", "acc_2"])
async def test_a_conversation_of_nobody_or_of_another(account):
    async with running_gateway() as gateway:
        first = await gateway.post({"store": True}, identity(account="acc_other"))
        thread = first.json["conversation_id"] if account == "acc_2" else "thr_none"
        answer = await gateway.post({"conversation_id": thread}, identity(account=account))
    assert (answer.status, answer.json["error"]["code"]) == (404, "conversation_not_found")


async def test_a_request_that_did_not_come_through_admission():
    async with running_gateway() as gateway:
        answer = await gateway.post({}, (("x-other", "1"),))
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"model": "\xc3"}',
     b'{"model":"chatmesh-tiny","messages":[{"role":"user","content":"\\ud800"}]}',
     b"[" * 10_000],
)  # fmt: skip
async def test_invalid_body(body):
    """INVALID_BODY."""
    async with running_gateway() as gateway:
        answer = await gateway.post(body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_body")


def message(**fields):
    return [{"role": "user", "content": "x"} | fields]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": message(role="wizard")}, "messages[0].role"),
        ({"messages": message(content=5)}, "messages[0].content"),
        ({"messages": message(content=["x"])}, "messages[0].content[0]"),
        ({"messages": message(content=[{"type": "text", "text": 1}])},
         "messages[0].content[0].text"),
        ({"messages": message(content=[{"type": "text", "text": "a"},
                                       {"type": "image_url", "image_url": {"url": "x"}}])},
         "messages[0].content[1].type"),
        ({"messages": message(content="a\0b")}, "messages[0].content"),
        ({"messages": message(name="n" * 65)}, "messages[0].name"),
        ({"messages": message() * 1025}, "messages"),
        ({"messages": message() * 256, "store": True}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"stream_options": {}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1_000_000}, "max_tokens"),
        ({"max_completion_tokens": 1_000_000}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"n": True}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"schema": {"title": "x" * 70_000}}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "x" * 4097}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": ["x" * 1025]}, "guided_choice"),
        ({"guided_choice": ["x"] * 257}, "guided_choice"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1 << 32}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"functions": [{}]}, "functions"),
        ({"user": 5}, "user"),
        ({"conversation_id": 5}, "conversation_id"),
        ({"store": "yes"}, "store"),
    ],
)  # fmt: skip
async def test_invalid_parameter_is_named(shared_gateway, fields, param):
    answer = await shared_gateway.post(json.dumps(question(**fields)).encode())
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (400, "invalid_parameter")
    assert error["param"] == param
    assert error["message"]


async def test_a_missing_parameter_is_named(shared_gateway):
    for name in ("model", "messages"):
        body = question()
        del body[name]
        answer = await shared_gateway.post(json.dumps(body).encode())
        assert answer.json["error"]["param"] == name


@pytest.fixture
async def shared_gateway():
    async with running_gateway() as gateway:
        yield gateway
        assert gateway.fakes.inference.requests == []


async def test_null_is_as_good_as_absent():
    names = ["stream", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "logit_bias",
             "presence_penalty", "user", "store", "conversation_id", "response_format", "tools",
             "stream_options", "structured_outputs", "guided_json", "top_k", "min_p"]  # fmt: skip
    async with running_gateway() as gateway:
        answer = await gateway.post(dict.fromkeys(names))
    assert answer.status == 200


async def test_an_unexpected_fault_says_nothing_of_itself():
    fakes = Fakes()
    fakes.tokenizer.faults.add("Encode", ValueError("the prompt was: secret"))
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in answer.body


async def test_no_node_answers():
    fakes = Fakes()
    fakes.inference.faults.add("ListModels", failure(AWAY))
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
        assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")
        assert (await gateway.post({})).status == 200
