"""Typed requests by number: a message of the contract with any value in any field, as bytes.

The fields come from the descriptors: a field that is added is tried without a change here.
"""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from tests.fuzz.values import STRINGS, mutated

SERVICES = ("ChatService", "ConversationService", "UsageService")
DEPTH_MAX = 4
FLOATS = (0.0, -0.0, 0.5, 1.0, 2.0, 1e30, float("nan"), float("inf"), float("-inf"), 1e-45)
INTEGERS = (0, 1, 2, 4, 5, -1, 300, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class TypedCase:
    """One call; `path` is "/service/Method"."""

    path: str
    data: bytes


@cache
def methods() -> tuple[MethodDescriptor, ...]:
    """The public typed methods."""
    services = chat_pb2.DESCRIPTOR.services_by_name
    return tuple(each for name in SERVICES for each in services[name].methods)


def typed_case(rng: random.Random, ids: Sequence[str]) -> TypedCase:
    """A call of any method; `ids` are of turns and conversations that exist."""
    method = rng.choice((*methods(), *(each for each in methods() if each.name == "Chat")))
    message = filled(rng, method.input_type, ids)
    if isinstance(message, chat_pb2.ChatRequest):
        _make_likely(rng, message)
    data = message.SerializeToString()
    if rng.random() < 0.2:
        data = _spoiled(rng, data, method.input_type)
    return TypedCase(f"/{method.containing_service.full_name}/{method.name}", data)


def filled(
    rng: random.Random, descriptor: Descriptor, ids: Sequence[str] = (), depth: int = 0
) -> Message:
    """A message with some of its fields set."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() < 0.75 or depth > DEPTH_MAX:
            continue
        if _is_map(field):
            _fill_map(rng, getattr(message, field.name), field)
        elif field.is_repeated:
            count = rng.choice((1, 1, 2, 5, 40))
            values = [_value(rng, field, ids, depth) for _ in range(count)]
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(_value(rng, field, ids, depth))
        else:
            setattr(message, field.name, _value(rng, field, ids, depth))
    return message


def _make_likely(rng: random.Random, request: chat_pb2.ChatRequest) -> None:
    """So that many are served, and the rest fail for one reason and not for the first of ten."""
    if rng.random() < 0.8:
        request.ClearField("model")
    if rng.random() < 0.8:
        request.max_tokens = rng.choice((1, 2, 3))
    if rng.random() < 0.7 and not request.messages:
        request.messages.add(role=content_pb2.ROLE_USER, content="Hello!")
    for each in request.messages:
        if rng.random() < 0.8:
            each.role = content_pb2.ROLE_USER
        if rng.random() < 0.8:
            each.ClearField("parts")
    sampling = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "top_k")
    for name in (*sampling, "repetition_penalty", "n", "stop", "top_logprobs", "conversation_id"):
        if rng.random() < 0.7:
            request.ClearField(name)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fill_map(rng: random.Random, mapping: Any, field: FieldDescriptor) -> None:
    keys = field.message_type.fields_by_name
    for _ in range(rng.choice((1, 3, 301))):
        mapping[_value(rng, keys["key"], (), 0)] = _value(rng, keys["value"], (), 0)


def _value(  # noqa: PLR0911  # one a kind
    rng: random.Random, field: FieldDescriptor, ids: Sequence[str], depth: int
) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return filled(rng, field.message_type, ids, depth + 1)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice((*(each.number for each in field.enum_type.values), 99, -1))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice(STRINGS).encode("utf-8", "replace")
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if ids and rng.random() < 0.4:
            return rng.choice(ids)
        return rng.choice(STRINGS).encode("utf-8", "replace").decode()
    return _integer(rng, kind)


def _integer(rng: random.Random, kind: int) -> int:
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    signed = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return rng.choice([each for each in INTEGERS if low <= each <= high])


def _spoiled(rng: random.Random, data: bytes, descriptor: Descriptor) -> bytes:
    """Bytes that no serialiser writes."""
    texts = [each for each in descriptor.fields if each.type == FieldDescriptor.TYPE_STRING]
    match rng.randrange(5):
        case 0 if texts:
            text = rng.choice((b"\xff", b"\xed\xa0\x80", b"a\xc3", b"\xf8\x88\x80\x80\x80"))
            return data + text_field(rng.choice(texts).number, text)
        case 1:
            return data + _nested(rng.choice((50, 99, 101, 20_000)))
        case 2:
            return data + struct.pack("<BI", 0xFD, rng.randrange(2**32)) * rng.choice((1, 1000))
        case 3:
            return data + b"\x0a" + b"\xff" * 12
        case _:
            return mutated(rng, data)


def _nested(depth: int) -> bytes:
    """Groups of an unknown field within each other."""
    return b"\xfb\x07" * depth + b"\xfc\x07" * depth


def text_field(number: int, text: bytes) -> bytes:
    """A field of text, as bytes: also of what is no text."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(text)) + text


def varint(number: int) -> bytes:
    """A number as the wire has it."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*result, number))
