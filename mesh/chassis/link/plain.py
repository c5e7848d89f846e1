"""A call of a link that is tried again without one: a plain RPC behind the same face.

A link that broke may have been the only one. A plain RPC waits, balances and repeats as the mesh
says, so the caller sees what it would have seen without links.
"""

import asyncio
import contextlib
from collections import deque
from typing import Any

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.link.client import CallDetails
from mesh.chassis.link.flow import Sink
from mesh.chassis.link.framing import add_metadata
from mesh.chassis.link.waiting import Waiting

# Messages read ahead of the caller.
AHEAD_COUNT_MAX = 8


class PlainAttempt(Waiting):
    """A plain RPC as `calls` sees a Flow. All four kinds look like streams on the wire."""

    def __init__(self, channel: grpc.aio.Channel, details: CallDetails, sink: Sink) -> None:
        super().__init__(asyncio.get_running_loop())
        self._sink = sink
        self.messages: deque[bytes] = deque()
        self.queued_bytes = 0
        self._out: deque[bytes] = deque()
        self._is_half_closed = self._is_over = False
        call: Any = channel.stream_stream(f"/{details.method}")
        self._call = call(
            timeout=details.remaining_s(),
            metadata=details.metadata,
            wait_for_ready=details.wait_for_ready,
        )
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def send(self, message: bytes) -> None:
        """As Flow.send."""
        self._out.append(message)
        self.queued_bytes += len(message)
        self.wake()

    def half_close(self) -> None:
        """As Flow.half_close."""
        self._is_half_closed = True
        self.wake()

    def read(self) -> bytes | None:
        """As Flow.read."""
        self.wake()
        return self.messages.popleft() if self.messages else None

    def cancel(self) -> None:
        """As Flow.cancel."""
        self._is_over = True
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    async def _write(self) -> None:
        # The reader hears, and says, how a broken stream ended.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while self._out or not self._is_half_closed:
                if not self._out:
                    await self.wait()
                    continue
                message = self._out.popleft()
                await self._call.write(message)
                self.queued_bytes -= len(message)
                self._sink.progressed()
            await self._call.done_writing()

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            self._sink.began(tuple(await self._call.initial_metadata()))
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self.messages.append(message)
                self._sink.progressed()
                while len(self.messages) >= AHEAD_COUNT_MAX:
                    await self.wait()
        ended = link_pb2.End(
            code=(await self._call.code()).value[0], message=await self._call.details() or ""
        )
        add_metadata(ended.trailing_metadata, tuple(await self._call.trailing_metadata() or ()))
        if not self._is_over:
            self._is_over = True
            self._tasks[0].cancel()
            self._sink.ended(ended)
