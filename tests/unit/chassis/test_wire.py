"""What is parsed of a request, and what is refused before."""

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2
from chatmesh.conversation.v1 import conversation_pb2
from mesh.chassis.errors import MeshError
from mesh.chassis.wire import COUNTED_BYTES_MIN, FIELD_COUNT_MAX, parsed
from tests.fuzz.typed import text_field, varint

PARSE = chat_pb2.ChatRequest.FromString


def refusal(data: bytes) -> MeshError:
    with pytest.raises(MeshError) as refused:
        parsed(data, PARSE)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.reason == "INVALID_BODY"
    return refused.value


def test_a_request_is_parsed_whatever_its_size() -> None:
    request = chat_pb2.ChatRequest(
        messages=[chat_pb2.Message(role=2, content="a" * 200) for _ in range(1024)],
        logit_bias=dict.fromkeys(range(300), 1.0),
        seed=-1,
        temperature=0.5,
    )
    data = request.SerializeToString()
    assert len(data) > COUNTED_BYTES_MIN
    assert parsed(data, PARSE) == request
    assert parsed(b"", PARSE) == chat_pb2.ChatRequest()


def test_the_largest_requests_between_services_are_parsed() -> None:
    new = conversation_pb2.NewMessage(role=2, content="a" * 99, token_count=9, finish=1, model="m")
    request = conversation_pb2.AppendMessagesRequest(account_id="a", messages=[new] * 256)
    assert parsed(request.SerializeToString(), type(request).FromString) == request


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        text_field(1, b"a\xff"),
        text_field(1, b"\xed\xa0\x80"),
        text_field(2, b"a" * COUNTED_BYTES_MIN)[:-1],
        b"\x0a" + b"\xff" * 20 + b"a" * COUNTED_BYTES_MIN,
        text_field(2, text_field(2, b"ab" * COUNTED_BYTES_MIN)[:-2]),
    ],
    ids=["tag", "text", "surrogate", "cut", "length", "cut within"],
)
def test_what_is_no_message_is_the_callers_fault(data) -> None:
    assert "no message" in refusal(data).message


@pytest.mark.parametrize(
    "data",
    [
        b"\x12\x00" * (FIELD_COUNT_MAX + 1),
        text_field(2, b"\x3a\x00" * FIELD_COUNT_MAX),
        b"".join(
            text_field(18, b"\x08" + varint(i << 16)) for i in range(FIELD_COUNT_MAX // 2 + 1)
        ),
        # An overlong tag is a tag.
        b"\x92\x81\x80\x80\x00\x00" * (FIELD_COUNT_MAX + 1),
        b"\xfb\x07" * (FIELD_COUNT_MAX + 1),
    ],
    ids=["messages", "parts", "map", "overlong", "groups"],
)
def test_more_fields_than_anybody_needs_are_not_parsed(data) -> None:
    assert "fields" in refusal(data).message
