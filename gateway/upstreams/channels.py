"""Redis channels over one connection: who listens to what. News may be lost, never invented."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import redis.asyncio
import redis.exceptions
import structlog

RECONNECT_S = 0.2

Hear = Callable[[bytes], None]
log = structlog.get_logger()


class Channels:
    """The channels of a process."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._listeners: dict[str, set[Hear]] = defaultdict(set)
        self._reading: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def heard(self, channel: str, hear: Hear) -> AsyncIterator[None]:
        """Calls `hear` with what is published; while Redis is away there is silence."""
        listeners = self._listeners[channel]
        listeners.add(hear)
        if len(listeners) == 1:
            await self._tell(self._pubsub.subscribe(channel))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        try:
            yield
        finally:
            listeners.discard(hear)
            if not listeners:
                del self._listeners[channel]
                await self._tell(self._pubsub.unsubscribe(channel))

    async def _tell(self, command: Awaitable[Any]) -> None:
        # What was not said is said again when the connection is made anew.
        with contextlib.suppress(redis.exceptions.RedisError, OSError):
            await command

    async def _read(self) -> None:
        while True:
            try:
                message = await self._pubsub.get_message(timeout=None)
            except (redis.exceptions.RedisError, OSError, RuntimeError) as error:
                log.warning("news_away", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)
                continue
            if message and message["type"] == "message":
                for hear in list(self._listeners.get(message["channel"].decode(), ())):
                    hear(message["data"])
