"""The hot copy of a thread's newest messages in Redis.

A copy is only ever served for the very state of the thread that PostgreSQL told: it ends with the
thread's newest message. Ids of messages are random and messages are only added, so that one message
stands for all before it, and a late, lost or foreign write costs a read of PostgreSQL and never a
wrong answer. Nor does a failover of PostgreSQL that lost an append, after which times and counts
come again with other messages. Redis away: every read is a miss. Many turns' copies are read, and
written, in one round trip.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import redis.asyncio
import structlog
from google.protobuf.message import DecodeError
from redis.exceptions import RedisError

from chatmesh.content.v1.content_pb2 import ROLE_SYSTEM
from chatmesh.conversation.v1 import conversation_pb2 as pb
from conversation_svc.thread import Message, Tail, Thread
from conversation_svc.wire import tail_from_proto, tail_to_proto
from mesh.chassis import redis_client
from mesh.chassis.errors import MeshError
from mesh.chassis.group_commit import GroupCommit
from mesh.chassis.postgres import StoreUnavailableError

MESSAGE_COUNT_MAX = 256
BYTE_COUNT_MAX = 256 << 10
# Redis is only worth asking while it is faster than PostgreSQL.
REDIS_TIMEOUT_S = 0.25
# After a failure Redis is left alone for this long, so that not every call waits for it.
PAUSE_S = 1.0
# Of copies that are read, or written, together: 8 MiB at most.
GROUP_COPY_COUNT_MAX = 32

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
        # To read a copy and write it costs 130 us of CPU here alone, 30 in groups of 32.
        self._reads = GroupCommit("tail_read", self._read, row_count_max=GROUP_COPY_COUNT_MAX)
        self._writes = GroupCommit("tail_write", self._write, row_count_max=GROUP_COPY_COUNT_MAX)

    @classmethod
    def connect(cls, url: str, ttl_s: int) -> "HotTail":
        """Connects with the first use, and again when it must."""
        client = redis_client.connect(url, name="conversation", connect_timeout_s=REDIS_TIMEOUT_S)
        return cls(client, ttl_s)

    async def close(self) -> None:
        """Finishes what was asked for, and closes the connections."""
        await self._reads.drain()
        await self._writes.drain()
        await self._client.aclose()

    async def get(self, account_id: str, thread_id: str) -> Tail | None:
        """The copy, whatever state of the thread it shows; None without one."""
        data = await self._ask(self._reads, _key(account_id, thread_id))
        if data is None:
            return None
        try:
            tail = tail_from_proto(pb.GetTailResponse.FromString(data))
        except DecodeError:
            return None
        last_id = tail.messages[-1].id if tail.messages else ""
        return replace(tail, thread=replace(tail.thread, last_message_id=last_id))

    async def put(self, account_id: str, tail: Tail) -> None:
        """Keeps the newest part of a tail that is worth it."""
        kept = _bounded(tail)
        if kept is None:
            await self.drop(account_id, tail.thread.id)
            return
        data = tail_to_proto(kept).SerializeToString()
        await self._ask(self._writes, (_key(account_id, tail.thread.id), data))

    async def extend(
        self, account_id: str, before_id: str, thread: Thread, new: list[Message]
    ) -> None:
        """Adds messages to the copy of the state before them; makes one for a new thread.

        Args:
            before_id: id of the message before the new ones; empty: none, or not known.
        """
        before_count = thread.message_count - len(new)
        before = replace(thread, message_count=before_count, last_message_id=before_id)
        messages: tuple[Message, ...] = ()
        if before_count:
            copy = await self.get(account_id, thread.id)
            if copy is None or not shows(copy, before):
                return  # the next read makes one
            messages = copy.messages
        await self.put(account_id, Tail(thread, (*messages, *new)))

    async def drop(self, account_id: str, thread_id: str) -> None:
        """Forgets the copy."""
        await self._ask(self._writes, (_key(account_id, thread_id), None))

    async def _ask(self, group: GroupCommit[T, bytes | None], row: T) -> bytes | None:
        try:
            return await group.ask(row)
        except (StoreUnavailableError, MeshError):  # too many wait, or no time: a miss
            return None

    async def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)
        found = await self._try(pipeline.execute())
        return [one if isinstance(one, bytes) else None for one in found or [None] * len(keys)]

    async def _write(self, copies: Sequence[tuple[str, bytes | None]]) -> list[bytes | None]:
        """Sets copies in their order; without data: forgets them."""
        pipeline = self._client.pipeline(transaction=False)
        for key, data in copies:
            if data is None:
                pipeline.delete(key)
            else:
                pipeline.set(key, data, ex=self._ttl_s)
        await self._try(pipeline.execute())
        return [None] * len(copies)

    async def _try(self, command: Coroutine[Any, Any, T]) -> T | None:
        if self._clock() < self._paused_until:
            command.close()  # it is not awaited
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
    return thread.id, thread.create_time, thread.message_count, thread.last_message_id


def _bounded(tail: Tail) -> Tail | None:
    """System messages and the newest others within the limits; None when the system messages
    alone pass them, or the newest message is not among them: it names the state of the copy."""
    room = MESSAGE_COUNT_MAX
    size = BYTE_COUNT_MAX
    system = [m for m in tail.messages if m.role == ROLE_SYSTEM]
    for message in system:
        room, size = room - 1, size - message.byte_count
    if room < 0 or size < 0:
        return None
    newest = []
    for message in reversed(tail.messages):
        if message.role == ROLE_SYSTEM:
            continue
        room, size = room - 1, size - message.byte_count
        if room < 0 or size < 0:
            break
        newest.append(id(message))
    kept = set(newest)
    chosen = (m for m in tail.messages if m.role == ROLE_SYSTEM or id(m) in kept)
    messages = tuple(chosen)
    return replace(tail, messages=messages) if messages[-1:] == tail.messages[-1:] else None


def _key(account_id: str, thread_id: str) -> str:
    # 2: copies of the version before may be of messages that a failover lost; they run out unread.
    return f"cm:tail:2:{account_id}:{thread_id}"
