"""Requests as bytes: what is parsed, and what is too much to parse.

A few megabytes can hold a million messages of two bytes each, or keys of a map that all meet in one
place of its hash table: parsed they cost seconds of the event loop and a hundredfold of their size.
So a large request is counted before it is parsed. https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from mesh.chassis.errors import MeshError

# Smaller requests are not counted: they cannot hold many more fields than this allows.
COUNTED_BYTES_MIN = 16 << 10
# Of a message and all messages in it. 4,096 messages of a conversation have 3 fields each and are
# one themselves; 10,000 keys that meet cost 0.1 s.
FIELD_COUNT_MAX = 32 << 10
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
VARINT_BYTES_MAX = 10
REASON = "INVALID_BODY"

Parse = Callable[[bytes], Any]


def parsed(data: bytes, parse: Parse) -> Any:
    """The request.

    Args:
        parse: a message's FromString.

    Raises:
        MeshError: INVALID_ARGUMENT with INVALID_BODY: it is none, or of too many fields.
    """
    try:
        if len(data) > COUNTED_BYTES_MIN and (descriptor := _descriptor(parse)):
            _count(data, descriptor)
        return parse(data)
    except (DecodeError, UnicodeDecodeError, _NotWireError) as error:
        message = "The request is no message of this method, or has a text that is no UTF-8."
        raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, REASON, message) from error
    except _TooManyError:
        message = f"The request has more than {FIELD_COUNT_MAX} fields; send fewer."
        raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, REASON, message) from None


class _NotWireError(Exception):
    """The bytes are no fields."""


class _TooManyError(Exception):
    """More fields than a request may have."""


def _descriptor(parse: Parse) -> Any:
    """Of the message whose FromString it is; None: of none."""
    owner: Any = getattr(parse, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Message):
        return owner.DESCRIPTOR
    return None


@cache
def _messages(descriptor: Any) -> dict[int, Any]:
    """The fields that hold messages, by number."""
    return {each.number: each.message_type for each in descriptor.fields if each.message_type}


def _count(data: bytes, descriptor: Any) -> None:
    """Raises _TooManyError; not recursive, for nothing bounds how deep the bytes go."""
    left = FIELD_COUNT_MAX
    waiting = [(0, len(data), descriptor)]
    while waiting:
        place, end, kind = waiting.pop()
        inner = _messages(kind)
        while place < end:
            if not left:
                raise _TooManyError
            left -= 1
            tag, place = _varint(data, place)
            wire = tag & 7
            if wire == BYTES:
                size, place = _varint(data, place)
                if place + size > end:
                    raise _NotWireError
                if (message := inner.get(tag >> 3)) is not None:
                    waiting.append((place, place + size, message))
                place += size
            elif wire == VARINT:
                _, place = _varint(data, place)
            elif wire in (FIXED32, FIXED64):
                place += 4 if wire == FIXED32 else 8
            elif wire not in (GROUP, GROUP_END):  # of which only the number counts
                raise _NotWireError


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    result = 0
    for index, byte in enumerate(data[place : place + VARINT_BYTES_MAX]):
        result |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004  # the last byte of a number
            return result, place + index + 1
    raise _NotWireError
