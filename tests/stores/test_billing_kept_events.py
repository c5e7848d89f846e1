"""Charged events that the stream keeps: read again after a failover, removed in time."""

import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import redis.asyncio as redis

from billing_svc.consumer import GROUP, STREAM, UsageConsumer
from billing_svc.kept_events import Bounds, State, trim
from billing_svc.ledger_store import Appended, LedgerStore, Report
from mesh.chassis.redis_client import connect
from tests.support.billing import Meter, check_books, event, metered

KEEP = Bounds(dt.timedelta(minutes=15), 100_000)
NOW = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.Redis"]:
    async with connect(redis_url, name="test") as made:
        await made.delete(STREAM)
        yield made
        await made.delete(STREAM)


async def consume(store: LedgerStore, meter: Meter, client: "redis.Redis") -> int:
    consumer = UsageConsumer(client, store, "billing-1", clock=lambda: meter.now, keep=KEEP)
    count = 0
    while found := await consumer.step(block_ms=1):
        count += found
    return count


async def read_again(client: "redis.Redis") -> None:
    """What the README tells an operator to do after a failover."""
    await client.xgroup_setid(STREAM, GROUP, "0")


async def rows(meter: Meter, account: str) -> list[tuple[object, ...]]:
    """All that the events of an account have made."""
    found = []
    for query in (
        "SELECT * FROM billing.ledger WHERE account_id = $1 ORDER BY entry_id",
        "SELECT * FROM billing.usage_totals WHERE account_id = $1 ORDER BY model, key_id",
        "SELECT * FROM billing.balances WHERE payer_id = $1",
        "SELECT * FROM billing.turns WHERE account_id = $1 ORDER BY turn_id",
    ):
        found += [tuple(row) for row in await meter.fetch(query, account)]
    return found


async def send_turns(meter: Meter, client: "redis.Redis", account: str) -> None:
    for _ in range(5):
        turn = await meter.hold(account)
        for one in (event(turn, 0, 10, "INPUT"), event(turn, 0, 7), event(turn, 5, 20)):
            await client.xadd(STREAM, {"event": one.SerializeToString()})


async def test_all_kept_events_read_again_change_nothing(
    meter: Meter, client: "redis.Redis"
) -> None:
    account = await meter.account()
    await send_turns(meter, client, account)
    assert await consume(meter.ledger_store, meter, client) == 15
    before = await rows(meter, account)
    assert len(before) > 10
    await read_again(client)
    assert await consume(meter.ledger_store, meter, client) == 15
    assert await rows(meter, account) == before
    await check_books(meter, account)


async def test_what_a_failover_lost_is_charged_from_the_kept_events(
    meter: Meter, client: "redis.Redis"
) -> None:
    class Loses(LedgerStore):
        """Its commits went to a server that is no more."""

        async def append(self, reports: Sequence[Report], now: dt.datetime) -> Appended:
            return Appended(0, 0)

    account = await meter.account()
    await send_turns(meter, client, account)
    assert await consume(Loses(meter.store), meter, client) == 15
    assert (await meter.total(account)).output_token_count == 0
    await read_again(client)
    assert await consume(meter.ledger_store, meter, client) == 15
    assert (await meter.total(account)).output_token_count == 5 * 20
    await check_books(meter, account)


def at(seconds: float) -> str:
    """The id of an event so long before NOW."""
    return f"{int((NOW.timestamp() - seconds) * 1000)}-0"


async def fill(client: "redis.Redis", ages: Sequence[float]) -> None:
    for age in ages:
        await client.xadd(STREAM, {"event": b"e"}, id=at(age))
    await client.xgroup_create(STREAM, GROUP, id="0")


async def take(client: "redis.Redis", count: int, *, acknowledge: bool = True) -> None:
    found = await client.xreadgroup(GROUP, "a", {STREAM: ">"}, count=count)
    if acknowledge:
        await client.xack(STREAM, GROUP, *(one for one, _ in found[0][1]))


async def ages_left(client: "redis.Redis") -> list[float]:
    left = await client.xrange(STREAM)
    return [NOW.timestamp() - int(one.split(b"-")[0]) / 1000 for one, _ in left]


async def test_charged_events_go_when_their_time_is_over(client: "redis.Redis") -> None:
    await fill(client, [1000, 901, 899, 10])
    await take(client, 4)
    assert await trim(client, STREAM, GROUP, KEEP, NOW) == State(2, 0)
    assert await ages_left(client) == [899, 10]
    later = NOW + dt.timedelta(hours=1)
    assert await trim(client, STREAM, GROUP, KEEP, later) == State(0, 0)


async def test_no_more_are_kept_than_the_bound(client: "redis.Redis") -> None:
    await fill(client, [5, 4, 3, 2, 1])
    await take(client, 4)
    keep = Bounds(KEEP.age, 3)
    assert await trim(client, STREAM, GROUP, keep, NOW) == State(3, 1)
    assert await ages_left(client) == [3, 2, 1]
    assert await trim(client, STREAM, GROUP, Bounds(KEEP.age, 0), NOW) == State(1, 1)


async def test_what_is_not_charged_never_goes(client: "redis.Redis") -> None:
    """Neither what nobody has taken nor what a consumer took and did not finish."""
    none = Bounds(dt.timedelta(0), 0)
    await fill(client, [5000, 4000, 3000, 2000, 1000])
    assert await trim(client, STREAM, GROUP, none, NOW) == State(5, 5000)
    await take(client, 1)
    await take(client, 1, acknowledge=False)
    await take(client, 1)
    assert await trim(client, STREAM, GROUP, none, NOW) == State(4, 2000)
    assert await ages_left(client) == [4000, 3000, 2000, 1000]
