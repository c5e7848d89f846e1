"""The hot copy of a thread's newest messages in Redis.

A copy is only ever served for the very state of the thread that PostgreSQL told (same creation,
same number of messages: messages are only added), so a late, lost or foreign write costs a read of
PostgreSQL and never a wrong answer. Redis away: every read is a miss.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import redis.asyncio
import structlog
from google.protobuf.message import DecodeError
from redis.exceptions import RedisError

from chatmesh.content.v1.content_pb2 import ROLE_SYSTEM
from chatmesh.conversation.v1 import conversation_pb2 as pb
from conversation_svc.thread import Message, Tail, Thread, utf8_length
from conversation_svc.wire import tail_from_proto, tail_to_proto
from mesh.chassis import redis_client

MESSAGE_COUNT_MAX = 256
BYTE_COUNT_MAX = 256 << 10
# Redis is only worth asking while it is faster than PostgreSQL.
REDIS_TIMEOUT_S = 0.25
# After a failure Redis is left alone for this long, so that not every call waits for it.
PAUSE_S = 1.0

T = TypeVar("T")
log = structlog.get_logger()


class HotTail:
    """Hot copies of all threads.

    Args:
        client: the Redis; each command is bounded here.
        ttl_s: seconds that a copy lives after it was written.
        clock: monotonic seconds.
    """

    def __init__(
        self, client: "redis.asyncio.Redis", ttl_s: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._ttl_s, self._clock = client, ttl_s, clock
        self._paused_until = 0.0

    @classmethod
    def connect(cls, url: str, ttl_s: int) -> "HotTail":
        """Connects with the first use, and again when it must."""
        client = redis_client.connect(url, name="conversation", connect_timeout_s=REDIS_TIMEOUT_S)
        return cls(client, ttl_s)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def get(self, account_id: str, thread_id: str) -> Tail | None:
        """The copy, whatever state of the thread it shows; None without one."""
        data = await self._try(self._client.get(_key(account_id, thread_id)))
        if not isinstance(data, bytes):
            return None
        try:
            return tail_from_proto(pb.GetTailResponse.FromString(data))
        except DecodeError:
            return None

    async def put(self, account_id: str, tail: Tail) -> None:
        """Keeps the newest part of a tail that is worth it."""
        kept = _bounded(tail)
        if kept is None:
            await self.drop(account_id, tail.thread.id)
            return
        data = tail_to_proto(kept).SerializeToString()
        await self._try(self._client.set(_key(account_id, tail.thread.id), data, ex=self._ttl_s))

    async def extend(
        self, account_id: str, before_count: int, thread: Thread, new: list[Message]
    ) -> None:
        """Adds messages to the copy of the state before them; makes one for a new thread."""
        before = Tail(replace(thread, message_count=before_count), ())
        if before_count:
            old = await self.get(account_id, thread.id)
            if old is None or not shows(old, before.thread):
                return  # the next read makes one
            before = old
        await self.put(account_id, Tail(thread, (*before.messages, *new)))

    async def drop(self, account_id: str, thread_id: str) -> None:
        """Forgets the copy."""
        await self._try(self._client.delete(_key(account_id, thread_id)))

    async def _try(self, command: Awaitable[T]) -> T | None:
        if self._clock() < self._paused_until:
            if hasattr(command, "close"):
                command.close()  # a coroutine that is not awaited
            return None
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                return await command
        except (RedisError, OSError, TimeoutError) as error:
            self._paused_until = self._clock() + PAUSE_S
            log.warning("hot_tail_unavailable", error=type(error).__name__)
            return None


def shows(tail: Tail, thread: Thread) -> bool:
    """Whether a copy shows this state of the thread."""
    return _state(tail.thread) == _state(thread)


def _state(thread: Thread) -> tuple[object, ...]:
    return thread.id, thread.create_time, thread.message_count


def _bounded(tail: Tail) -> Tail | None:
    """System messages and the newest others within the limits; None when the system messages
    alone pass them."""
    room = MESSAGE_COUNT_MAX
    size = BYTE_COUNT_MAX
    system = [m for m in tail.messages if m.role == ROLE_SYSTEM]
    for message in system:
        room, size = room - 1, size - utf8_length(message.content)
    if room < 0 or size < 0:
        return None
    newest = []
    for message in reversed(tail.messages):
        if message.role == ROLE_SYSTEM:
            continue
        room, size = room - 1, size - utf8_length(message.content)
        if room < 0 or size < 0:
            break
        newest.append(id(message))
    kept = set(newest)
    chosen = (m for m in tail.messages if m.role == ROLE_SYSTEM or id(m) in kept)
    return replace(tail, messages=tuple(chosen))


def _key(account_id: str, thread_id: str) -> str:
    return f"cm:tail:{account_id}:{thread_id}"
