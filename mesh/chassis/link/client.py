"""A link's client end: begins calls, hands them what comes, ends with all of them."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.errors import MeshError
from mesh.chassis.link.flow import Flow, Sink
from mesh.chassis.link.framing import CALL_COUNT_MAX, Metadata, add_metadata, bad_frame, end
from mesh.chassis.link.mux import ClientMux
from mesh.chassis.link.traffic import Traffic

# From the first byte to the server's name; a connection is up after 1 s or not at all.
OPEN_S_MAX = 5.0

_traffic = Traffic("client")


@dataclass(slots=True)
class CallDetails:
    """What is called, however it travels."""

    method: str
    metadata: Metadata
    # In time.monotonic(); None: never.
    end_by: float | None
    wait_for_ready: bool
    repeatable: bool

    def remaining_s(self) -> float | None:
        """Seconds that the caller still waits."""
        if self.end_by is None:
            return None
        return max(0.0, self.end_by - time.monotonic())


class ClientLink:
    """One link to the instance `name`; `open_stream` gives a stream of LinkService.Open to it."""

    def __init__(self, name: str, open_stream: Callable[[], Any]) -> None:
        self.name, self._open_stream = name, open_stream
        self._ready = asyncio.Event()
        self.mux = ClientMux(self._ready.set)
        # New calls may begin on it.
        self.is_open = False
        # Set when no new call will ever begin on it, because it drains or because it ended.
        self.left = asyncio.Event()
        # Why it ended, when it was not in peace.
        self.error: grpc.aio.AioRpcError | MeshError | None = None

    def begin(self, details: CallDetails, sink: Sink) -> Flow:
        """Begins a call."""

        def head(frame: link_pb2.Frame) -> int:
            begin = frame.begin
            begin.method = details.method
            remaining_s = details.remaining_s()
            if remaining_s is not None:
                begin.timeout_us = int(remaining_s * 1e6)
            add_metadata(begin.metadata, details.metadata)
            return begin.ByteSize()

        return self.mux.begin(sink, head)

    @property
    def has_room(self) -> bool:
        """Whether one more call may begin."""
        return self.is_open and len(self.mux.flows) < CALL_COUNT_MAX

    def leave(self) -> None:
        """Begins no more calls; the link ends when those that run have."""
        self.is_open, self.mux.is_leaving = False, True
        self.left.set()
        self._ready.set()

    async def run(self, on_open: Callable[[], None]) -> None:
        """Until the link is over; `on_open` is called when calls may begin."""
        stream = self._open_stream()
        writing = None
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                first = await stream.read()
            if first is not grpc.aio.EOF and (first is None or first.instance != self.name):
                other = first.instance if first else "nonsense"
                raise MeshError(grpc.StatusCode.UNAVAILABLE, "", f"{other} answered")
            self.is_open = not self.mux.is_leaving
            writing = asyncio.create_task(self._write(stream))
            if self.is_open:
                on_open()
            await self._read(stream)
        except (grpc.aio.AioRpcError, MeshError) as error:
            self.error = error
        except TimeoutError:
            self.error = MeshError(grpc.StatusCode.UNAVAILABLE, "", "it does not answer")
        finally:
            self.leave()
            if writing is not None:
                writing.cancel()
            stream.cancel()
            why = f"the link to {self.name} ended: {_words(self.error)}"
            self.mux.close(end(grpc.StatusCode.UNAVAILABLE, why))

    async def _read(self, stream: Any) -> None:
        while (response := await stream.read()) is not grpc.aio.EOF:
            if response is None:  # so grpc.aio says that it does not parse
                raise bad_frame("it does not parse")
            _traffic.count("in", len(response.frames))
            for frame in response.frames:
                self.mux.receive(frame)
            if response.is_draining:
                self.leave()

    async def _write(self, stream: Any) -> None:
        # The reader hears, and says, how a broken stream ended.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while not (self.mux.is_leaving and not self.mux.flows):
                await self._ready.wait()
                self._ready.clear()
                while (request := self._batch()) is not None:
                    await stream.write(request)
            await stream.done_writing()

    def _batch(self) -> link_pb2.OpenRequest | None:
        request = link_pb2.OpenRequest()
        self.mux.fill(request.frames)
        if not request.frames:
            return None
        _traffic.count("out", len(request.frames))
        return request


def _words(error: grpc.aio.AioRpcError | MeshError | None) -> str:
    if error is None:
        return "the server closed it"
    return error.message if isinstance(error, MeshError) else error.details() or error.code().name
