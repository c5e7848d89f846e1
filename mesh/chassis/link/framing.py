"""Sizes of the link's wire, and the form that metadata and ends have on it. Pure."""

from collections.abc import Iterable

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.errors import MeshError

# A stream of 64 KiB ahead of its reader: some 100 ms of the fastest one at 40 µs a message.
WINDOW_BYTES = 64 << 10
# What a frame costs beside its data, so that empty messages are bounded too.
FRAME_BYTES = 32
# Of a large message, at a time: others' frames go between its pieces.
PIECE_BYTES_MAX = 32 << 10
# As SERVER_OPTIONS and CHANNEL_OPTIONS have it for plain calls.
MESSAGE_BYTES_MAX = 8 << 20
BATCH_BYTES_MAX = 256 << 10
METADATA_BYTES_MAX = 16 << 10
# As the circuit breaker that plain calls pass (REQUESTS_MAX of mesh/control/render.py).
CALL_COUNT_MAX = 20_000
# All that a link holds for readers that do not read.
HELD_BYTES_MAX = 64 << 20

Metadata = tuple[tuple[str, str | bytes], ...]
CODES = {code.value[0]: code for code in grpc.StatusCode}


def bad_frame(what: str) -> MeshError:
    """The error that ends a link whose peer does not follow the contract."""
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT, "BAD_FRAME", f"A frame of the link is bad: {what}."
    )


def link_full() -> MeshError:
    """The error that ends a link with more calls than it carries."""
    return MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "LINK_FULL",
        f"A link carries at most {CALL_COUNT_MAX} calls at once.",
    )


def end(code: grpc.StatusCode, message: str) -> link_pb2.End:
    """An end without details."""
    return link_pb2.End(code=code.value[0], message=message)


def code_of(ended: link_pb2.End) -> grpc.StatusCode:
    """The code of an end; UNKNOWN for one that gRPC does not have."""
    return CODES.get(ended.code, grpc.StatusCode.UNKNOWN)


def add_metadata(target: link_pb2.Metadata, pairs: Iterable[tuple[str, str | bytes]]) -> None:
    """Writes pairs into a message."""
    target.SetInParent()
    for key, value in pairs:
        target.entries.add(key=key, value=value if isinstance(value, bytes) else value.encode())


def metadata_of(source: link_pb2.Metadata) -> Metadata:
    """Pairs as gRPC gives them: bytes for keys that end with "-bin", else text."""
    return tuple(
        (each.key, each.value if each.key.endswith("-bin") else each.value.decode("latin-1"))
        for each in source.entries
    )
