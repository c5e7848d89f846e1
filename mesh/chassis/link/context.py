"""What a servicer holds of a call on a link: the grpc.aio.ServicerContext of a plain one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NoReturn

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.errors import MeshError
from mesh.chassis.link.flow import Flow
from mesh.chassis.link.framing import (
    MESSAGE_BYTES_MAX,
    METADATA_BYTES_MAX,
    WINDOW_BYTES,
    Metadata,
    add_metadata,
    end,
    metadata_of,
)
from mesh.chassis.link.waiting import Waiting

# A servicer may be this far ahead of the link before its writes wait.
AHEAD_BYTES_MAX = WINDOW_BYTES // 2
# Further away than any clock of a loop needs to count.
TIMEOUT_S_MAX = 1e8
OVER = "the call is over"


class PeerIdentity:
    """Who is at the other end: asked once a link, not once a call."""

    def __init__(self, stream: Any) -> None:
        self.loop, self.stream = asyncio.get_running_loop(), stream
        self.auth_context = stream.auth_context()


class LinkContext(Waiting, grpc.aio.ServicerContext):  # type: ignore[type-arg]
    """One call at the server."""

    def __init__(self, flow: Flow, begin: link_pb2.Begin, handler: Any, peer: PeerIdentity) -> None:
        super().__init__(peer.loop)
        self._flow, self._handler, self._peer = flow, handler, peer
        self._metadata = metadata_of(begin.metadata)
        self._end_by: float | None = None
        if begin.HasField("timeout_us"):
            self._end_by = time.monotonic() + min(begin.timeout_us / 1e6, TIMEOUT_S_MAX)
        self._initial: Metadata | None = None
        self._code: grpc.StatusCode | None = None
        self._details, self._trailing = "", Metadata()
        self._gone: link_pb2.End | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self.task: asyncio.Task[None] | None = None

    # Sink: what the link says.

    def began(self, metadata: Metadata) -> None:
        """Clients send no initial metadata."""

    def progressed(self) -> None:
        """See Sink."""
        self.wake()

    def ended(self, ended: link_pb2.End) -> None:
        """See Sink: the caller or the link left, or time is over."""
        if self._gone is None and not self._flow_ended:
            self._gone = ended
            if self.task is not None:
                self.task.cancel()
            self.wake()

    # The messages.

    async def write(self, message: Any) -> None:
        """Sends a message; waits while the caller or the link is far behind.

        Raises:
            grpc.aio.UsageError: the call is over.
            MeshError: RESOURCE_EXHAUSTED, the message is over 8 MiB.
        """
        self.put(message)
        while self._flow.queued_bytes > AHEAD_BYTES_MAX and self._gone is None:
            await self.wait()

    def put(self, message: Any) -> None:
        """Sends a message; see `write`."""
        if self._is_over:
            raise grpc.aio.UsageError(OVER)
        serialize = self._handler.response_serializer
        data = serialize(message) if serialize else message
        if len(data) > MESSAGE_BYTES_MAX:
            raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "", "The answer is over 8 MiB.")
        if self._initial is None:
            self._initial = ()
        self._flow.send(data)

    async def read(self) -> Any:
        """The next message of the caller, or grpc.aio.EOF.

        Raises:
            grpc.aio.UsageError: the call is over.
        """
        while (data := self._flow.read()) is None:
            if self._is_over:
                raise grpc.aio.UsageError(OVER)
            if self._flow.is_peer_done:
                return grpc.aio.EOF
            await self.wait()
        deserialize = self._handler.request_deserializer
        try:
            return deserialize(data) if deserialize else data
        except Exception as error:
            raise MeshError(
                grpc.StatusCode.INTERNAL, "", "The request is no message of this method."
            ) from error

    async def requests(self) -> AsyncIterator[Any]:
        """The messages of the caller, to the last."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        """Sends metadata before the first message.

        Raises:
            grpc.aio.UsageError: something was sent before, or the call is over.
        """
        if self._initial is not None or self._is_over:
            raise grpc.aio.UsageError("initial metadata must come first, and once")
        metadata = self._initial = _checked(initial_metadata)

        def head(frame: link_pb2.Frame) -> int:
            add_metadata(frame.initial_metadata, metadata)
            return frame.initial_metadata.ByteSize()

        self._flow.head = head
        self._flow.mux.enlist(self._flow)

    # The end.

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """Ends the call; raises grpc.aio.AbortError."""
        if code is grpc.StatusCode.OK:
            raise ValueError("a call is not aborted with OK")
        self._code, self._details = code, details
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """Ends the call with a status; raises grpc.aio.AbortError."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        """What follows the last message."""
        self._trailing = _checked(trailing_metadata)

    def finish(self, code: grpc.StatusCode, message: str = "") -> None:
        """The servicer is through: `code` unless it set one; tells the caller, once."""
        if not self._flow_ended and not self._flow.is_over:
            if self._code is not None:
                code, message = self._code, self._details
            ended = end(code, message)
            if self._trailing:
                add_metadata(ended.trailing_metadata, self._trailing)
            self._flow.finish(ended)
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()
        self.wake()

    # What is known of the call.

    @property
    def _flow_ended(self) -> bool:
        return self._flow.is_finished

    @property
    def _is_over(self) -> bool:
        return self._gone is not None or self._flow.is_over or self._flow_ended

    @property
    def gone(self) -> link_pb2.End | None:
        """How the call ended under the servicer; None while it did not."""
        return self._gone

    def time_remaining(self) -> float | None:  # type: ignore[override]  # None is what grpc gives
        """Seconds until the caller stops waiting; None: never."""
        return None if self._end_by is None else max(0.0, self._end_by - time.monotonic())

    def invocation_metadata(self) -> Any:
        """The caller's metadata."""
        return self._metadata

    def trailing_metadata(self) -> Any:
        """What was set."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        """The code with which the call ends."""
        self._code = code

    def set_details(self, details: str) -> None:
        """The words with which the call ends."""
        self._details = details

    def code(self) -> Any:
        """The code that was set; OK when none was."""
        return self._code or grpc.StatusCode.OK

    def details(self) -> Any:
        """The words that were set."""
        return self._details

    def cancelled(self) -> bool:
        """Whether the call ended under the servicer."""
        return self._gone is not None

    def done(self) -> bool:
        """Whether the call is over."""
        return self._is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls `callback(context)` when the servicer is through."""
        self._callbacks.append(callback)

    # The peer is the link's.

    def peer(self) -> str:
        """The address of the peer."""
        return str(self._peer.stream.peer())

    def peer_identities(self) -> Any:
        """See grpc.aio."""
        return self._peer.stream.peer_identities()

    def peer_identity_key(self) -> Any:
        """See grpc.aio."""
        return self._peer.stream.peer_identity_key()

    def auth_context(self) -> Any:
        """The certificate of the peer."""
        return self._peer.auth_context

    def set_compression(self, compression: grpc.Compression) -> None:
        """Not offered on a link: raises NotImplementedError."""
        raise NotImplementedError("calls on a link are not compressed")

    def disable_next_message_compression(self) -> None:
        """Not offered on a link: raises NotImplementedError."""
        raise NotImplementedError("calls on a link are not compressed")


def _checked(metadata: Iterable[Any]) -> Metadata:
    pairs = tuple((str(key), value) for key, value in metadata or ())
    if sum(len(key) + len(value) for key, value in pairs) > METADATA_BYTES_MAX:
        raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "", "The metadata is over 16 KiB.")
    return pairs
