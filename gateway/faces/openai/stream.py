"""The writing of an answer to one client: heartbeats in silence, an end to a stalled reader."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from google.api import httpbody_pb2

from gateway.faces.openai.chunks import PING

EVENT_STREAM = "text/event-stream"


class EventBody:
    """The body of a stream; status and headers leave with its first text.

    Until then a failure can still be an HTTP status. The first event (no text yet) waits for the
    second, which saves a message just when the client waits for text.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._headers: Sequence[tuple[str, str]] = ()
        self._head: bytes | None = None
        self.is_open = False

    @property
    def has_begun(self) -> bool:
        """Whether it is known what leaves first."""
        return self._head is not None

    def begin(self, headers: Sequence[tuple[str, str]], head: bytes) -> None:
        """Notes what leaves with the first write; before it, writes are dropped."""
        self._headers, self._head = headers, head

    async def write(self, data: bytes) -> None:
        """Sends bytes of the body."""
        if self.is_open:
            await self._context.write(httpbody_pb2.HttpBody(data=data))
        elif self._head is not None:
            self.is_open = True
            await self._context.send_initial_metadata(self._headers)
            first = httpbody_pb2.HttpBody(content_type=EVENT_STREAM, data=self._head + data)
            await self._context.write(first)


class ClientWriter:
    """Writes to one client, one message at a time.

    Nothing is queued: `write` returns when the transport took the message, and until then nothing
    is read from the services behind. That is what bounds the memory of a slow reader.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        heartbeat_s: float,
        stall_s_max: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`heartbeat_s`: silence before a ping; `stall_s_max`: longest time for one message."""
        self._write = write
        self._heartbeat_s, self._stall_s_max = heartbeat_s, stall_s_max
        self._clock, self._sleep = clock, sleep
        self._lock = asyncio.Lock()
        self._last = clock()
        self._writing_since: float | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a message was begun and not taken: nothing can be written after it."""
        return self._writing_since is not None

    async def write(self, data: bytes) -> None:
        """Sends one message."""
        async with self._lock:
            self._writing_since = self._clock()
            await self._write(data)
            self._writing_since = None
            self._last = self._clock()

    @contextlib.asynccontextmanager
    async def guarded(self, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Pings while nothing is written; lets `limit` expire when the reader stalls."""
        guard = asyncio.create_task(self._guard(limit))
        try:
            yield
        finally:
            guard.cancel()
            await asyncio.wait([guard])

    async def _guard(self, limit: asyncio.Timeout) -> None:
        while True:
            now = self._clock()
            if self._writing_since is not None:
                left_s = self._writing_since + self._stall_s_max - now
                if left_s <= 0:
                    return limit.reschedule(asyncio.get_running_loop().time())
            else:
                left_s = self._last + self._heartbeat_s - now
                if left_s <= 0:
                    try:
                        async with asyncio.timeout(self._stall_s_max):
                            await self.write(PING)
                    except TimeoutError:
                        return limit.reschedule(asyncio.get_running_loop().time())
                    continue
            # A write may begin while this sleeps; it is noticed soon enough.
            await self._sleep(min(left_s, self._heartbeat_s, self._stall_s_max / 2))
