"""One error type inside, `google.rpc.Status` with `ErrorInfo` on the wire.

    Exception
    └── MeshError            a failure that has a reason and tells the caller what to do
          · raised by a servicer    -> status + ErrorInfo(reason, domain, metadata) [+ RetryInfo]
          · made by `from_rpc`      <- the same, at the caller

`reason` is a word of the `Reason` enum of the service's own proto, without the prefix REASON_.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "chatmesh"
# A status travels in trailing metadata, which peers cap at 8 KiB: keep the free text short.
MESSAGE_LENGTH_MAX = 2000


class MeshError(Exception):
    """A failure with a reason.

    Args:
        code: gRPC status code, never OK.
        reason: word of the service's `Reason` enum without its prefix; empty when the peer gave
            none (a connection that failed, for example).
        message: one sentence for the person who called, with what to do about it.
        metadata: machine-readable facts such as {"param": "model"}.
        retry_after_s: seconds after which the same call may succeed; None when a wait won't help.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __repr__(self) -> str:
        return f"MeshError({self.code.name}, {self.reason!r}, {self.message!r})"

    def to_status(self) -> status_pb2.Status:
        """The error as it goes on the wire."""
        info = error_details_pb2.ErrorInfo(
            reason=self.reason, domain=DOMAIN, metadata=self.metadata
        )
        details = [_packed(info)]
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromMilliseconds(int(self.retry_after_s * 1000))
            details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
        message = self.message[:MESSAGE_LENGTH_MAX]
        return status_pb2.Status(code=self.code.value[0], message=message, details=details)

    @classmethod
    def from_rpc(cls, error: grpc.aio.AioRpcError) -> "MeshError":
        """Reads a failed call; a status without details gives an empty reason."""
        result = cls(error.code(), "", error.details() or error.code().name)
        status = None
        with contextlib.suppress(ValueError):  # details that contradict the status: ignored
            status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                result.reason, result.metadata = info.reason, dict(info.metadata)
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                result.retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        return result


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: MeshError) -> None:
    """Ends the call of `context` with `error`; never returns (grpc raises AbortError)."""
    await context.abort_with_status(rpc_status.to_status(error.to_status()))


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
