"""What strangers send: whatever it is, they are told that they erred, and nobody else notices.

`python -m tests.fuzz` does the same for longer.
"""

import contextlib

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from tests.fuzz.drive import CLIENT_CODES, audited, fuzzer
from tests.fuzz.typed import methods, text_field, varint
from tests.fuzz.values import HASH_MODULUS, Pairs, Raw, dump
from tests.support.http import Client

pytestmark = pytest.mark.mesh
CHAT = "/v1/chat/completions"
SEED = 20260722
FUZZ_S = 35.0
WORKERS = 6
COUNT_MAX = 1 << 40
# More than a call takes that is not compressed.
BOMB_BYTES = 64 << 20


@pytest.fixture(scope="module")
def stranger(mesh_copy):
    """A key, whose account no other test uses."""
    return mesh_copy.new_key("admin")


@pytest.fixture
def client(mesh_copy, stranger):
    """Whatever the test sends: after it a chat is served, and the ledger is exact."""
    one = Client(mesh_copy.plain_address, stranger)
    yield one
    answer = one.request("POST", CHAT, chat())
    assert answer.status == 200, answer.body
    summary = audited(mesh_copy, mesh_copy.account_of(stranger))
    assert (summary["differing_turns"], summary["running_turns"]) == (0, 0)


@pytest.fixture
def channel(mesh_copy):
    with grpc.insecure_channel(mesh_copy.plain_address) as channel:
        yield channel


def chat(**fields):
    messages = [{"role": "user", "content": "Hello!"}]
    return {"model": "chatmesh-tiny", "messages": messages, "max_tokens": 3, **fields}


def deep(depth: int) -> Raw:
    return Raw("[" * depth + "]" * depth)


@pytest.mark.timeout(180)
async def test_any_field_of_any_method_gets_a_reason(mesh_copy, stranger, client):
    async with fuzzer(mesh_copy.root_url, stranger) as found:
        await found.run(SEED, range(COUNT_MAX), FUZZ_S, WORKERS)
    assert not found.outcome.findings, "\n".join(map(str, found.outcome.findings[:5]))
    answered = found.outcome.answered
    for usual in ("200", "OK", "400", "INVALID_ARGUMENT"):  # it meets no closed door
        assert answered[usual], answered


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 10**400}}, "logit_bias.5"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        # Equal hashes: as numbers, half a minute of a gateway.
        ({"logit_bias": Pairs((str(i * HASH_MODULUS), 1) for i in range(50_000))}, "logit_bias"),
        ({"messages": Raw("[" + "{}," * 1_000_000 + "{}]")}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": Raw("[" + "{}," * 9999 + "{}]")}]}, "messages"),
        ({"stop": Raw("[" + '"",' * 1_000_000 + '""]')}, "stop"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
        ({"seed": Raw("1" * 10_000)}, None),
        ({"messages": deep(200_000)}, None),
        ({"unknown": deep(200_000)}, None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_hostile_body_is_refused(client, fields, param):
    answer = client.request("POST", CHAT, dump(chat(**fields)).encode())
    error = answer.json()["error"]
    assert answer.status == 400, error
    assert (error["param"] or "").startswith(param or ""), error
    assert len(answer.body) < 2000


def test_a_text_that_is_no_utf8_is_refused_in_every_field(mesh_copy, stranger, client, channel):
    for method in methods():
        for field in method.input_type.fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                code, _ = call(channel, method, text_field(field.number, b"a\xff"), stranger)
                where = (method.full_name, field.name)
                assert code is grpc.StatusCode.INVALID_ARGUMENT, where


MANY = {
    "messages": b"\x12\x00" * 1_500_000,
    "parts of one message": text_field(2, b"\x3a\x00" * 500_000),
    "texts": b"\x4a\x00" * 1_500_000,
    # Keys that meet in one place of the parser's table: as a map, seconds of a gateway.
    "map": b"".join(text_field(18, b"\x08" + varint(i << 16)) for i in range(1 << 16)),
}


@pytest.mark.parametrize("data", MANY.values(), ids=MANY)
def test_a_typed_call_with_too_many_fields_is_refused(client, stranger, channel, data):
    chat_method = chat_pb2.DESCRIPTOR.services_by_name["ChatService"].methods_by_name["Chat"]
    code, details = call(channel, chat_method, data, stranger)
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details
    assert "fields" in details


def test_a_compressed_message_is_not_unpacked(mesh_copy, client, stranger):
    message = chat_pb2.Message(role=content_pb2.ROLE_USER, content="a" * BOMB_BYTES)
    options = [("grpc.max_send_message_length", -1)]
    gzip = grpc.Compression.Gzip
    with grpc.insecure_channel(mesh_copy.plain_address, options, gzip) as channel:
        answers = chat_pb2_grpc.ChatServiceStub(channel).Chat(
            chat_pb2.ChatRequest(messages=[message]), metadata=metadata(stranger), timeout=30
        )
        with pytest.raises(grpc.RpcError) as refused:
            list(answers)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("name", ["grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "te"])
def test_headers_of_grpc_mean_nothing_to_http(client, name):
    # Each used to be a fault of the gateway, and after a few it was taken out of balancing.
    for value in ("0n", "null", "💥" * 100, "x" * 900):
        answer = client.request("GET", "/api/usage", headers={name: value})
        assert answer.status == 200, (value[:10], answer.body)


def metadata(key):
    return (("authorization", f"Bearer {key}"),)


def call(channel, method, data, key):
    """Code and details of a call with raw bytes."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    answers = channel.unary_stream(path)(data, metadata=metadata(key), timeout=30)
    with contextlib.suppress(grpc.RpcError):
        list(answers)
    assert answers.code() in CLIENT_CODES, answers.details()
    return answers.code(), answers.details()
