"""Stores that go away and come back, and two instances over the same stores."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import grpc
import pytest
import redis.asyncio
from ulid import ULID

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2 as pb
from chatmesh.conversation.v1 import conversation_pb2_grpc as rpc
from conversation_svc import hot_tail
from conversation_svc.history import read_history
from conversation_svc.hot_tail import HotTail
from conversation_svc.purge import keep_purging
from conversation_svc.service import ThreadReadService, ThreadWriteService
from conversation_svc.statements import Request
from conversation_svc.store import Store
from conversation_svc.thread import NewMessage, Tail
from mesh.chassis import redis_client
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError
from tests.support.loopback import loopback

NOW = datetime(2026, 3, 1, tzinfo=UTC)
_numbers = itertools.count()


class Relay:
    """A TCP relay on loopback that can be cut and mended: a store that goes away."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{self._port}"))

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def cut(self) -> None:
        if self._server:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def relay(url: str) -> AsyncIterator[Relay]:
    made = Relay(url)
    await made.mend()
    try:
        yield made
    finally:
        await made.cut()


def new(content: str = "x") -> NewMessage:
    return NewMessage(2, content, 1, "", "")


async def append(store: Store, hot: HotTail, account: str, thread_id: str, content: str) -> None:
    """What AppendMessages does."""
    request = Request("append", f"r{next(_numbers)}", b"")
    thread, messages, before_id = await store.append_messages(
        account,
        thread_id,
        [new(content)],
        model="m",
        request=request,
        now=NOW,
        create_if_missing=True,
    )
    await hot.extend(account, before_id, thread, messages)


async def contents(store: Store, hot: HotTail, account: str, thread_id: str) -> list[str]:
    tail = await read_history(
        store, hot, account, thread_id, token_count_max=0, message_count_max=1024
    )
    return [message.content for message in tail.messages]


@pytest.fixture
async def store(postgres_dsn_for: Callable[[str], str]) -> AsyncIterator[Store]:
    made = await Store.connect(postgres_dsn_for("conversation"), 4)
    yield made
    await made.close()


@pytest.fixture
async def hot(redis_url: str) -> AsyncIterator[HotTail]:
    made = HotTail.connect(redis_url, 60)
    yield made
    await made.close()


@pytest.fixture
def ids(fresh_id: Callable[[str], str]) -> tuple[str, str]:
    return fresh_id("acc_"), fresh_id("thr_")


async def test_postgres_away_is_said_and_comes_back(
    postgres_dsn_for: Callable[[str], str], hot: HotTail, ids: tuple[str, str]
) -> None:
    account, thread_id = ids
    async with relay(postgres_dsn_for("conversation")) as postgres:
        store = await Store.connect(postgres.url, 4)
        servicers = [
            (rpc.add_ThreadReadServiceServicer_to_server, ThreadReadService(store, hot)),
            (rpc.add_ThreadWriteServiceServicer_to_server, ThreadWriteService(store, hot)),
        ]
        async with loopback(servicers) as channel:
            read, write = rpc.ThreadReadServiceStub(channel), rpc.ThreadWriteServiceStub(channel)
            request = pb.AppendMessagesRequest(
                account_id=account,
                thread_id=thread_id,
                request_id="r",
                messages=[pb.NewMessage(role=content_pb2.ROLE_USER, content="x")],
                create_if_missing=True,
            )
            tail = pb.GetTailRequest(account_id=account, thread_id=thread_id)
            first = await write.AppendMessages(request)
            await postgres.cut()
            for call in (write.AppendMessages(request), read.GetTail(tail)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                error = MeshError.from_rpc(caught.value)
                assert (error.reason, error.code.name) == ("STORE_UNAVAILABLE", "UNAVAILABLE")
                assert error.retry_after_s
            await postgres.mend()
            assert await write.AppendMessages(request) == first
            assert len((await read.GetTail(tail)).messages) == 1
        await store.close()


async def test_a_store_may_come_up_later(hot: HotTail) -> None:
    store = await Store.connect("postgresql://nobody:x@127.0.0.1:1/nothing", 2)
    with pytest.raises(StoreUnavailableError):
        await store.get_thread("a", "b")
    await store.close()


async def test_the_purge_outlives_a_store_that_is_away() -> None:
    store = await Store.connect("postgresql://nobody:x@127.0.0.1:1/nothing", 2)
    looks = 0
    third = asyncio.Event()

    def clock() -> datetime:
        nonlocal looks
        looks += 1
        if looks == 3:
            third.set()
        return NOW

    purging = asyncio.ensure_future(keep_purging(store, clock, timedelta(days=30), 0.001))
    await asyncio.wait_for(third.wait(), 10)
    purging.cancel()
    await asyncio.gather(purging, return_exceptions=True)
    await store.close()


async def test_redis_away_is_slower_and_never_wrong(
    store: Store, redis_url: str, ids: tuple[str, str]
) -> None:
    account, thread_id = ids
    time = 0.0
    async with relay(redis_url) as behind:
        away = redis_client.connect(behind.url, name="test", connect_timeout_s=0.25)
        hot = HotTail(away, 60, clock=lambda: time)
        await append(store, hot, account, thread_id, "1")
        assert await hot.get(account, thread_id)
        await behind.cut()
        await append(store, hot, account, thread_id, "2")  # the copy still shows "1" alone
        assert await contents(store, hot, account, thread_id) == ["1", "2"]
        await behind.mend()
        assert await hot.get(account, thread_id) is None  # left alone for a while
        assert await contents(store, hot, account, thread_id) == ["1", "2"]
        time += hot_tail.PAUSE_S
        stale = await hot.get(account, thread_id)
        assert stale is not None
        assert len(stale.messages) == 1
        assert await contents(store, hot, account, thread_id) == ["1", "2"]
        fresh = await hot.get(account, thread_id)
        assert fresh is not None
        assert len(fresh.messages) == 2
        await hot.close()


async def test_two_instances_never_serve_a_stale_tail(
    store: Store, hot: HotTail, redis_url: str, ids: tuple[str, str]
) -> None:
    account, thread_id = ids
    other = HotTail.connect(redis_url, 60)
    expected = []
    for number in range(6):
        before = await hot.get(account, thread_id)
        await append(store, other if number % 2 else hot, account, thread_id, str(number))
        expected.append(str(number))
        if before is not None:  # the late write of an instance that was slow
            await hot.put(account, before)
        assert await contents(store, hot, account, thread_id) == expected
        assert await contents(store, other, account, thread_id) == expected
    await other.close()


async def lose_append(owner_dsn: str, account: str, thread_id: str) -> None:
    """What a failover to a replica does that had not heard of the newest message yet."""
    owner = await asyncpg.connect(owner_dsn)
    async with owner.transaction():
        await owner.execute("SELECT set_config('chatmesh.account_id', $1, true)", account)
        await owner.execute(
            "UPDATE conversation.thread SET message_count = message_count - 1,"
            " last_message_id = (SELECT id FROM conversation.message"
            " WHERE thread_id = $1 AND position = message_count - 1) WHERE id = $1",
            thread_id,
        )
        lost = await owner.execute(
            "DELETE FROM conversation.message m USING conversation.thread t"
            " WHERE m.thread_id = t.id AND t.id = $1 AND m.position > t.message_count",
            thread_id,
        )
    await owner.close()
    assert lost == "DELETE 1"


async def test_a_copy_of_messages_that_a_failover_lost_is_never_served(
    store: Store, hot: HotTail, ids: tuple[str, str], postgres_owner_dsn: str
) -> None:
    account, thread_id = ids
    await append(store, hot, account, thread_id, "1")
    await append(store, hot, account, thread_id, "lost")
    lost_copy = await hot.get(account, thread_id)
    assert lost_copy is not None
    await lose_append(postgres_owner_dsn, account, thread_id)
    assert await contents(store, hot, account, thread_id) == ["1"]
    # As many messages as before, at the same time; the copy is written late.
    await append(store, hot, account, thread_id, "2")
    await hot.put(account, lost_copy)
    assert await contents(store, hot, account, thread_id) == ["1", "2"]
    # Nor does it become the beginning of a newer copy.
    await hot.put(account, lost_copy)
    await append(store, hot, account, thread_id, "3")
    assert await contents(store, hot, account, thread_id) == ["1", "2", "3"]


async def test_a_state_without_a_name_is_read_from_the_truth(
    store: Store, hot: HotTail, ids: tuple[str, str], postgres_owner_dsn: str
) -> None:
    """A thread that the version before wrote, until something is added to it."""
    account, thread_id = ids
    await append(store, hot, account, thread_id, "1")
    owner = await asyncpg.connect(postgres_owner_dsn)
    async with owner.transaction():
        await owner.execute("SELECT set_config('chatmesh.account_id', $1, true)", account)
        sql = "UPDATE conversation.thread SET last_message_id = '' WHERE id = $1"
        assert await owner.execute(sql, thread_id) == "UPDATE 1"
    await owner.close()
    copy = await hot.get(account, thread_id)
    assert copy is not None
    assert not hot_tail.shows(copy, await store.get_thread(account, thread_id))
    assert await contents(store, hot, account, thread_id) == ["1"]
    await append(store, hot, account, thread_id, "2")
    assert await contents(store, hot, account, thread_id) == ["1", "2"]
    copy = await hot.get(account, thread_id)
    assert copy is not None
    assert hot_tail.shows(copy, await store.get_thread(account, thread_id))


async def test_a_hit_reads_no_messages_from_postgres(
    store: Store, hot: HotTail, ids: tuple[str, str]
) -> None:
    account, thread_id = ids
    await append(store, hot, account, thread_id, "true")
    copy = await hot.get(account, thread_id)
    assert copy is not None
    marked = Tail(copy.thread, (replace(copy.messages[0], content="copy"),))
    await hot.put(account, marked)
    assert await contents(store, hot, account, thread_id) == ["copy"]
    await hot.drop(account, thread_id)
    assert await contents(store, hot, account, thread_id) == ["true"]


async def test_a_broken_or_foreign_copy_is_a_miss(
    store: Store, hot: HotTail, redis_url: str, ids: tuple[str, str]
) -> None:
    account, thread_id = ids
    await append(store, hot, account, thread_id, "1")
    foreign = f"thr_{ULID()}"
    await append(store, hot, account, foreign, "other")
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        key = f"cm:tail:2:{account}:{thread_id}"
        assert 0 < await client.ttl(key) <= 60
        for data in (b"\xff\xff", b"", await client.get(f"cm:tail:2:{account}:{foreign}")):
            await client.set(key, data)
            assert await contents(store, hot, account, thread_id) == ["1"]


async def test_a_copy_has_its_limits(store: Store, hot: HotTail, ids: tuple[str, str]) -> None:
    account, thread_id = ids
    large = "x" * (hot_tail.BYTE_COUNT_MAX // 2)
    for _ in range(4):
        await append(store, hot, account, thread_id, large)
    copy = await hot.get(account, thread_id)
    assert copy is not None
    assert len(copy.messages) == 2
    assert await contents(store, hot, account, thread_id) == [large] * 4
    system = [NewMessage(1, "x" * hot_tail.BYTE_COUNT_MAX + "y", 1, "", "")]
    thread, messages, before_id = await store.append_messages(
        account,
        thread_id,
        system,
        model="m",
        request=Request("append", "s", b""),
        now=NOW,
        create_if_missing=False,
    )
    await hot.extend(account, before_id, thread, messages)
    assert await hot.get(account, thread_id) is None  # never kept without its system messages
    assert len(await contents(store, hot, account, thread_id)) == 5
