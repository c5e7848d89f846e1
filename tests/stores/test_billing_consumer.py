"""The usage stream against the real Redis and PostgreSQL: nothing lost, nothing twice."""

import asyncio
import datetime as dt
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import grpc
import pytest
import redis.asyncio as redis
from ulid import ULID

from billing_svc import consumer as consumer_module
from billing_svc.consumer import DEAD_STREAM, GROUP, STREAM, UsageConsumer
from billing_svc.jobs import Jobs
from billing_svc.kept_events import Bounds
from billing_svc.ledger_store import Appended, LedgerStore, Report
from billing_svc.settings import Settings
from chatmesh.billing.v1 import billing_pb2 as pb
from mesh import schema, stores
from mesh.chassis.errors import MeshError
from mesh.chassis.redis_client import connect
from tests.support.billing import Meter, check_books, event, metered

SOON_S = 10.0


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.Redis"]:
    async with connect(redis_url, name="test") as made:
        yield made


KEEP = Bounds(dt.timedelta(minutes=15), 100_000)


def consumer_of(meter: Meter, client: "redis.Redis", name: str = "billing-1") -> UsageConsumer:
    return UsageConsumer(client, meter.ledger_store, name, clock=lambda: meter.now, keep=KEEP)


async def send(client: "redis.Redis", *events: pb.UsageEvent | bytes) -> None:
    for one in events:
        data = one if isinstance(one, bytes) else one.SerializeToString()
        await client.xadd(STREAM, {"event": data})


async def drain(consumer: UsageConsumer) -> int:
    count = 0
    while found := await consumer.step(block_ms=1):
        count += found
    return count


async def pending_count(client: "redis.Redis") -> int:
    return int((await client.xpending(STREAM, GROUP))["pending"])


async def waiting_count(client: "redis.Redis") -> int:
    """Events that no consumer has taken."""
    (group,) = await client.xinfo_groups(STREAM)
    return len(await client.xrange(STREAM, min=b"(" + group["last-delivered-id"]))


async def test_events_become_entries_and_leave_the_stream(
    meter: Meter, client: "redis.Redis"
) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await send(client, event(turn, 0, 10, "INPUT"), event(turn, 0, 3), event(turn, 0, 3))
    await send(client, *(event(turn, n, n + 1) for n in range(3, 40)))
    assert await drain(consumer_of(meter, client)) == 40
    assert (await meter.total(account)).output_token_count == 40
    assert (await waiting_count(client), await pending_count(client)) == (0, 0)
    await check_books(meter, account)


async def test_a_crash_between_commit_and_ack_changes_nothing(
    meter: Meter, client: "redis.Redis"
) -> None:
    account = await meter.account()
    turn = await meter.hold(account)

    class CrashError(Exception):
        pass

    class Crashing(LedgerStore):
        async def append(self, reports: list[Report], now: dt.datetime) -> Appended:  # type: ignore[override]
            await super().append(reports, now)
            raise CrashError

    await send(client, event(turn, 0, 5), event(turn, 0, 10, "INPUT"))
    with pytest.raises(CrashError):
        await UsageConsumer(client, Crashing(meter.store), "billing-1", keep=KEEP).step(block_ms=1)
    assert (await meter.total(account)).cost_nanousd == 500
    assert await pending_count(client) == 2
    # The same name, started again, finds its batch.
    assert await drain(consumer_of(meter, client)) == 2
    assert (await meter.total(account)).cost_nanousd == 500
    assert (await waiting_count(client), await pending_count(client)) == (0, 0)


async def test_the_batch_of_a_consumer_that_never_returns_is_claimed(
    meter: Meter, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await send(client, event(turn, 0, 5))
    await client.xgroup_create(STREAM, GROUP, id="0")
    await client.xreadgroup(GROUP, "gone", {STREAM: ">"}, count=10)
    monkeypatch.setattr(consumer_module, "CLAIM_IDLE_MS", 0)
    assert await drain(consumer_of(meter, client, "billing-2")) == 1
    assert (await meter.total(account)).cost_nanousd == 300
    assert await pending_count(client) == 0


async def test_an_event_deleted_while_it_was_pending_blocks_nobody(
    meter: Meter, client: "redis.Redis"
) -> None:
    await send(client, event(str(ULID()), 0, 5))
    await client.xgroup_create(STREAM, GROUP, id="0")
    found = await client.xreadgroup(GROUP, "billing-1", {STREAM: ">"}, count=10)
    await client.xdel(STREAM, found[0][1][0][0])
    assert await drain(consumer_of(meter, client)) == 1
    assert await pending_count(client) == 0
    assert await client.xlen(DEAD_STREAM) == 0


async def test_poison_goes_to_the_dead_letters_and_the_rest_is_charged(
    meter: Meter, client: "redis.Redis"
) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await send(client, b"\xff\xff", event(turn, 0, 5), event(turn, 7, 7), event("x", 0, 1))
    await client.xadd(STREAM, {"other": b"field"})
    assert await drain(consumer_of(meter, client)) == 5
    assert (await meter.total(account)).cost_nanousd == 300
    dead = await client.xrange(DEAD_STREAM)
    assert [fields[b"reason"].split(b":")[0] for _, fields in dead] == [
        b"event",
        b"end_position",
        b"turn_id",
        b"turn_id",
    ]
    assert dead[0][1][b"event"] == b"\xff\xff"
    assert await pending_count(client) == 0


async def test_an_event_the_database_refuses_is_found_and_buried(
    meter: Meter, client: "redis.Redis"
) -> None:
    account = await meter.account()
    turn, cursed = await meter.hold(account), await meter.hold(account)

    class Picky(LedgerStore):
        async def append(self, reports: list[Report], now: dt.datetime) -> Appended:  # type: ignore[override]
            if any(report.usage.turn_id == cursed for report in reports):
                raise asyncpg.CheckViolationError("no such thing")
            return await super().append(reports, now)

    await send(client, *(event(turn, n, n + 1) for n in range(9)), event(cursed, 0, 1))
    assert await drain(UsageConsumer(client, Picky(meter.store), "billing-1", keep=KEEP)) == 10
    assert (await meter.total(account)).output_token_count == 9
    assert await client.xlen(DEAD_STREAM) == 1


async def test_two_consumers_and_many_turns(meter: Meter, client: "redis.Redis") -> None:
    account = await meter.account()
    turns = [await meter.hold(account) for _ in range(10)]
    for begin in range(0, 100, 10):
        await send(client, *(event(turn, begin, begin + 12) for turn in turns))
    consumers = [consumer_of(meter, client, f"billing-{n}") for n in range(2)]
    assert sum(await asyncio.gather(*map(drain, consumers))) == 100
    assert (await meter.total(account)).output_token_count == 10 * 102
    await check_books(meter, account)


async def test_a_lost_group_is_made_again(meter: Meter, client: "redis.Redis") -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    consumer = consumer_of(meter, client)
    await drain(consumer)
    await client.flushdb()  # Redis lost everything
    running = asyncio.create_task(consumer.run())
    try:
        await send(client, event(turn, 0, 5))
        await until(meter, account, 300)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(meter: Meter, account: str, cost_nanousd: int) -> None:
    """Waits for the ledger to have it."""
    async with asyncio.timeout(SOON_S):
        while (await meter.total(account)).cost_nanousd != cost_nanousd:  # noqa: ASYNC110 - SQL
            await asyncio.sleep(0.02)


async def test_jobs_retry_what_waits_and_bury_what_waits_in_vain(
    meter: Meter, client: "redis.Redis"
) -> None:
    account, turn, lost = await meter.account(), str(ULID()), str(ULID())
    consumer = consumer_of(meter, client)
    settings = Settings(database_url="unused", redis_url="unused")
    jobs = Jobs(meter.quota_store, meter.ledger_store, consumer, settings, meter.store)
    await send(client, event(turn, 0, 5), event(lost, 0, 5))
    await drain(consumer)
    assert await waiting_count(client) == 0
    await jobs.retry_waiting(meter.now)
    await meter.hold(account, turn=turn)
    await jobs.retry_waiting(meter.now)
    assert (await meter.total(account)).cost_nanousd == 300
    meter.pass_time(seconds=599)
    await jobs.bury_overdue(meter.now)
    assert not await is_dead(client, lost)
    meter.pass_time(seconds=2)
    await jobs.bury_overdue(meter.now)
    assert await is_dead(client, lost)
    await meter.settle(turn, 10, 5)
    meter.pass_time(seconds=31)
    assert await jobs.reconcile(meter.now) >= 1
    await jobs.expire(meter.now)
    await jobs.purge(meter.now)
    assert (await meter.total(account)).cost_nanousd == 500
    await check_books(meter, account)


async def is_dead(client: "redis.Redis", turn: str) -> bool:
    found = await client.xrange(DEAD_STREAM)
    return any(turn.encode() in fields[b"event"] for _, fields in found)


async def test_a_cancelled_consumer_ends(meter: Meter, client: "redis.Redis") -> None:
    """With a socket timeout the client swallows some of these."""
    for _ in range(50):
        running = asyncio.create_task(consumer_of(meter, client).run())
        for _ in range(8):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=SOON_S)
        assert done


@pytest.mark.mesh
async def test_stores_that_die_are_waited_for_and_lose_nothing(tmp_path: Path) -> None:
    """Stores of its own, since it kills them."""
    postgres = await asyncio.to_thread(stores.prepare_postgres, tmp_path / "postgres")
    redis_ = await asyncio.to_thread(stores.prepare_redis, tmp_path / "redis")
    running = {store.name: start(store) for store in (postgres, redis_)}
    try:
        await asyncio.gather(postgres.ready(), redis_.ready())
        passwords = dict.fromkeys(("billing", "conversation", "safety"), "secret")
        folder = Path(__file__).resolve().parents[2] / "billing_svc" / "schema"
        dsn = (await schema.deploy(postgres.url, passwords, [folder]))["billing"]
        async with metered(dsn, tmp_path) as meter, connect(redis_.url, name="test") as client:
            await client.config_set("appendfsync", "always")  # no second to wait for
            account = await meter.account()
            turn = await meter.hold(account)
            consuming = asyncio.create_task(consumer_of(meter, client).run())
            await send(client, event(turn, 0, 1))
            await until(meter, account, 60)

            await kill(running["postgres"])
            await send(client, event(turn, 0, 2))
            error = await unavailable(meter, account)
            assert (error.code, error.reason) == (
                grpc.StatusCode.UNAVAILABLE,
                "STORE_UNAVAILABLE",
            )
            assert error.retry_after_s == 1.0
            running["postgres"] = await revive(postgres)
            await until(meter, account, 120)  # by itself, with the same pool

            await kill(running["redis"])
            running["redis"] = await revive(redis_)
            async with connect(redis_.url, name="test") as node:
                await send(node, event(turn, 0, 3))
            await until(meter, account, 180)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    finally:
        for store in (postgres, redis_):
            running[store.name].send_signal(store.stop_signal)
            await asyncio.to_thread(running[store.name].wait, 20)


def start(store: stores.StoreProcess) -> "subprocess.Popen[bytes]":
    quiet = subprocess.DEVNULL
    return subprocess.Popen(store.command, env=dict(store.env), stdout=quiet, stderr=quiet)


async def revive(store: stores.StoreProcess) -> "subprocess.Popen[bytes]":
    """Starts it as a supervisor does: PostgreSQL refuses while a killed one's children live."""
    async with asyncio.timeout(60):
        while True:
            process = start(store)
            ready = asyncio.create_task(store.ready())
            ended = asyncio.create_task(asyncio.to_thread(process.wait))
            await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                return process
            ready.cancel()
            await asyncio.wait([ready])


async def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    await asyncio.to_thread(process.wait, 20)


async def unavailable(meter: Meter, account: str) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await meter.total(account)
    return MeshError.from_rpc(caught.value)
