"""What the services of the control plane share: who calls, and errors in its own words."""

from typing import Any, TypeAlias

import grpc
from google.protobuf import timestamp_pb2

from mesh.chassis.errors import MeshError
from mesh.chassis.server import spiffe_ids
from mesh.control.plane import Plane

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def caller(plane: Plane, context: Context) -> str:
    """Name of the peer's identity.

    Raises:
        MeshError: UNAUTHENTICATED (NO_IDENTITY).
    """
    for spiffe_id in spiffe_ids(context):
        name = plane.topology.name_of(spiffe_id)
        if name is not None:
            return name
    raise MeshError(
        grpc.StatusCode.UNAUTHENTICATED,
        "NO_IDENTITY",
        "Call with a client certificate of this mesh; a join token gets one (IssueCertificate).",
    )


def timestamp(unix_s: float) -> timestamp_pb2.Timestamp:
    """A moment on the wire."""
    result = timestamp_pb2.Timestamp()
    result.FromMilliseconds(int(unix_s * 1000))
    return result


def bad_request(reason: str, message: str) -> MeshError:
    """INVALID_ARGUMENT; `message` says what to send instead."""
    return MeshError(grpc.StatusCode.INVALID_ARGUMENT, reason, message)


def no_service(name: str) -> MeshError:
    """NOT_FOUND (SERVICE_NOT_FOUND)."""
    return MeshError(
        grpc.StatusCode.NOT_FOUND,
        "SERVICE_NOT_FOUND",
        f"The topology has no service {name!r} that could; see mesh/topology.yaml.",
        metadata={"service": name},
    )
