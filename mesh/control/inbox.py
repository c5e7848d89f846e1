"""The requests of a stream, read while its handler waits for other things too."""

import asyncio
from collections.abc import AsyncIterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# Beyond this the peer's flow control holds it back.
WAITING_MAX = 16


class Inbox(Generic[T]):
    """Reads requests into a bounded queue and wakes the handler for each. An async `with`."""

    def __init__(self, requests: AsyncIterable[T], wake: asyncio.Event) -> None:
        self._requests, self._wake = requests, wake
        self._waiting: asyncio.Queue[T] = asyncio.Queue(WAITING_MAX)
        self._ended = False

    async def __aenter__(self) -> "Inbox[T]":
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def take(self) -> list[T]:
        """What has arrived since the last time."""
        taken = []
        while not self._waiting.empty():
            taken.append(self._waiting.get_nowait())
        return taken

    @property
    def ended(self) -> bool:
        """The peer has closed its side and everything was taken."""
        return self._ended and self._waiting.empty()

    async def _read(self) -> None:
        try:
            async for request in self._requests:
                await self._waiting.put(request)
                self._wake.set()
        finally:
            self._ended = True
            self._wake.set()
