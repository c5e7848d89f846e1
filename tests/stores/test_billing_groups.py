"""Group commit of holds and settlements: as if each had been asked alone, whatever fails."""

import asyncio
import contextlib
import datetime as dt
import operator
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from prometheus_client import REGISTRY
from ulid import ULID

from billing_svc.hold_rows import Held, HoldRow
from billing_svc.ledger import Kind, Usage
from billing_svc.ledger_store import LedgerStore, Report
from billing_svc.prices import Price
from billing_svc.quota_store import QuotaStore
from billing_svc.store import Connection, Store
from billing_svc.turn import SettledCounts, State, Turn
from mesh.chassis.errors import MeshError
from tests.support.billing import check_books, event

PRICE = Price(1, 1, 60, version="test-1")
# The last seconds of a month: operations of one group may belong to two months.
START = dt.datetime(2026, 11, 30, 23, 59, 50, tzinfo=dt.UTC)
LIFETIME = dt.timedelta(seconds=12)
Made = Held | Turn | None


class Side:
    """A store and accounts of its own, so that two sides can be told the same story."""

    def __init__(self, store: Store, owner: asyncpg.Connection) -> None:
        self.store, self.owner = store, owner
        self.quota, self.ledger = QuotaStore(store), LedgerStore(store)
        self.accounts: list[str] = []
        # In the same order on every side.
        self.turns = sorted(str(ULID()) for _ in range(60))

    async def open_account(self, budget_nanousd: int) -> str:
        """A new account's id."""
        account = f"acc_{ULID()}"
        await self.owner.execute(
            "INSERT INTO billing.accounts (account_id, name, tier, create_time)"
            " VALUES ($1, 'test', 2, $2)",
            *(account, START),
        )
        await self.owner.execute(
            "INSERT INTO billing.balances (payer_id, monthly_budget_nanousd, budget_is_default,"
            " period) VALUES ($1, $2, false, '2026-11-01')",
            *(account, budget_nanousd),
        )
        self.accounts = sorted([*self.accounts, account])
        return account

    async def hold(self, turn: str, account: str, amount: int = 100, at_s: float = 0) -> Held:
        """Asks for a hold `at_s` seconds after the start."""
        now = START + dt.timedelta(seconds=at_s)
        prices = (
            PRICE.version,
            PRICE.input_nanousd,
            PRICE.cached_input_nanousd,
            PRICE.output_nanousd,
        )
        row = HoldRow(turn, account, "", "small", *prices, amount, 0, 0, now, now + LIFETIME)
        return await self.quota.hold(row)

    async def settle(self, turn: str, output: int, at_s: float = 0) -> Turn | None:
        """Settles with so many tokens of output."""
        now = START + dt.timedelta(seconds=at_s)
        return await self.quota.settle(turn, (SettledCounts(output=output),), now)

    async def release(self, turn: str, at_s: float = 0) -> Turn | None:
        """Gives the hold back."""
        return await self.quota.release(turn, START + dt.timedelta(seconds=at_s))

    async def report(self, turn: str, end: int, at_s: float) -> None:
        """A node's report of output up to a position, of a turn that is there."""
        if await self.fetch("SELECT FROM billing.turns WHERE turn_id = $1", turn):
            usage = Usage(turn, 0, Kind.OUTPUT, 0, end)
            reported = Report(usage, event(turn, 0, end).SerializeToString())
            await self.ledger.append([reported], START + dt.timedelta(seconds=at_s))

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Rows, with the owner's role."""
        return await self.owner.fetch(query, *arguments)

    def named(self, text: str) -> str:
        """With turns and accounts by their numbers, as they are on every side."""
        for ids, word in ((self.turns, "turn"), (self.accounts, "account")):
            for number, one in enumerate(ids):
                text = text.replace(one, f"{word} {number}")
        return text

    async def tables(self) -> list[str]:
        """The rows of its accounts, with what differs between sides taken out."""
        found = []
        for query in (
            "SELECT * FROM billing.balances WHERE payer_id = ANY($1) ORDER BY payer_id",
            "SELECT * FROM billing.turns WHERE account_id = ANY($1) ORDER BY turn_id",
            "SELECT account_id, turn_id, first_position, end_position, cost_nanousd, create_time"
            " FROM billing.ledger WHERE account_id = ANY($1) ORDER BY turn_id, first_position",
            "SELECT * FROM billing.usage_totals WHERE account_id = ANY($1)"
            " ORDER BY account_id, period, model",
        ):
            found += [self.named(repr(r)) for r in await self.owner.fetch(query, self.accounts)]
        return found


@pytest.fixture
async def sides(
    postgres_dsn_for: Callable[[str], str], postgres_owner_dsn: str
) -> AsyncIterator[Callable[[], Awaitable[Side]]]:
    """Makes sides, each with a pool of its own, as processes have."""
    async with contextlib.AsyncExitStack() as stack:
        owner = await asyncpg.connect(postgres_owner_dsn)
        stack.push_async_callback(owner.close)

        async def make() -> Side:
            store = await Store.open(postgres_dsn_for("billing"))
            stack.push_async_callback(store.close)
            return Side(store, owner)

        yield make


def apart_count(group: str) -> float:
    """Rows of failed groups so far."""
    name = "chatmesh_group_commit_rows_apart_total"
    return REGISTRY.get_sample_value(name, {"group": group}) or 0.0


def group_counts(group: str) -> tuple[float, float]:
    """Groups and rows so far."""
    values = [
        REGISTRY.get_sample_value(f"chatmesh_group_commit_rows_{one}", {"group": group})
        for one in ("count", "sum")
    ]
    return values[0] or 0.0, values[1] or 0.0


Step = Callable[[Side], Awaitable[Made]]


def a_batch(chance: random.Random, at_s: float) -> list[Step]:
    """What is asked at once: holds, by account as a group decides them, or settlements."""
    holds = chance.random() < 0.5
    made: list[tuple[int, Step]] = []
    for _ in range(chance.randint(1, 12)):
        turn, at_s = chance.randrange(60), at_s + chance.random()
        output, amount = chance.randint(0, 9), chance.randint(0, 60) * 10
        # Sometimes it is another account's turn.
        account = (turn + (chance.random() < 0.1)) % 3
        if holds:
            made.append((account, held_by(turn, account, amount, at_s)))
        elif chance.random() < 0.6:
            made.append((0, settled_with(turn, output, at_s)))
        else:
            made.append((0, released_at(turn, at_s)))
    return [step for _, step in sorted(made, key=operator.itemgetter(0))]


def held_by(turn: int, account: int, amount: int, at_s: float) -> Step:
    """A hold, told to any side."""
    return lambda side: side.hold(side.turns[turn], side.accounts[account], amount, at_s)


def settled_with(turn: int, output: int, at_s: float) -> Step:
    """A settlement, told to any side."""
    return lambda side: side.settle(side.turns[turn], output, at_s)


def released_at(turn: int, at_s: float) -> Step:
    """A release, told to any side."""
    return lambda side: side.release(side.turns[turn], at_s)


@pytest.mark.parametrize("seed", range(10))
async def test_groups_do_what_one_by_one_does(
    sides: Callable[[], Awaitable[Side]], seed: int
) -> None:
    grouped, single = await sides(), await sides()
    for side in (grouped, single):
        for _ in range(3):
            await side.open_account(1500)
    chance, answers = random.Random(seed), list[tuple[Made, Made]]()
    before = group_counts("hold"), group_counts("settle")
    asked = 0
    for number in range(30):
        batch = a_batch(chance, number)
        asked += len(batch)
        together = await asyncio.gather(*(step(grouped) for step in batch))
        alone = [await step(single) for step in batch]
        answers += zip(together, alone, strict=True)
        turn, end = chance.randrange(60), chance.randint(1, 5)
        for side in (grouped, single):
            await side.report(side.turns[turn], end, number)
    for one, other in answers:
        assert grouped.named(repr(one)) == single.named(repr(other))
    assert await grouped.tables() == await single.tables()
    # It was a test: one side in groups, one alone, and every way to answer.
    after = group_counts("hold"), group_counts("settle")
    groups = sum(a[0] - b[0] for a, b in zip(after, before, strict=True))
    rows = sum(a[1] - b[1] for a, b in zip(after, before, strict=True))
    assert (groups, rows) == (30 + asked, 2 * asked)
    outcomes = {one.outcome for one, _ in answers if isinstance(one, Held)}
    assert outcomes >= {"held", "refused"}


async def test_holds_of_one_account_in_one_group_see_each_other(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    account, other = await side.open_account(450), await side.open_account(200)
    asked = [(turn, account if n % 2 else other) for n, turn in enumerate(side.turns[:12])]
    answers = await asyncio.gather(*(side.hold(*one) for one in asked))
    # In the order asked, the first ones get it; the answers are the callers' own.
    assert [one.outcome for one in answers[1::2]] == ["held"] * 4 + ["refused"] * 2
    assert [one.available_nanousd for one in answers[1::2]] == [350, 250, 150, 50, 50, 50]
    assert [one.outcome for one in answers[::2]] == ["held"] * 2 + ["refused"] * 4
    assert (await side.hold(side.turns[20], f"acc_{ULID()}")).outcome == "no_account"


async def test_settlements_of_one_turn_in_one_group_are_made_in_their_order(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    account = await side.open_account(-1)
    first, second = side.turns[:2]
    await asyncio.gather(side.hold(first, account), side.hold(second, account))
    answers = await asyncio.gather(
        side.settle(first, 1), side.settle(first, 9), side.release(first), side.release(second)
    )
    turns = [one for one in answers if one is not None]
    assert [one.amount_nanousd for one in turns] == [60, 60, 60, 100]
    assert [one.state for one in turns] == [State.SETTLED] * 3 + [State.RELEASED]
    await check_books(side, account)


async def test_a_row_that_the_store_refuses_fails_alone(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    account = await side.open_account(-1)
    amounts = [100, -1, 2**63, 200]  # a constraint refuses the second, its type the third
    calls = (side.hold(t, account, n) for t, n in zip(side.turns, amounts, strict=False))
    first, negative, huge, last = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, Held)
    assert isinstance(last, Held)
    assert (first.held_nanousd, last.held_nanousd) == (100, 200)
    assert isinstance(negative, asyncpg.CheckViolationError)
    assert isinstance(huge, asyncpg.DataError)
    settled, bad = await asyncio.gather(
        side.settle(side.turns[0], 1), side.settle(side.turns[3], 2**62), return_exceptions=True
    )
    assert isinstance(settled, Turn)
    assert settled.amount_nanousd == 60
    assert isinstance(bad, asyncpg.DataError)
    await check_books(side, account)


async def test_groups_of_two_processes_never_wait_for_each_other(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    one, other = await sides(), await sides()
    accounts = [await one.open_account(-1) for _ in range(12)]
    before = apart_count("hold"), apart_count("settle")
    for _ in range(25):
        # One asks in the order of the accounts, the other against it.
        asked = [(str(ULID()), account) for account in accounts * 2]
        more = [(str(ULID()), account) for account in reversed(accounts * 2)]
        held = await asyncio.gather(
            *(one.hold(*row) for row in asked), *(other.hold(*row) for row in more)
        )
        assert {answer.outcome for answer in held} == {"held"}
        # Both settle all, each the other way round, while both hold the next.
        turns = [turn for turn, _ in asked + more]
        again = [(str(ULID()), account) for account in accounts]
        await asyncio.gather(
            *(one.settle(turn, 1) for turn in turns),
            *(other.settle(turn, 1) for turn in reversed(turns)),
            *(one.hold(*row) for row in again),
            *(other.hold(*row) for row in again[::-1]),
        )
    # A deadlock would have failed its group, whose rows would have gone apart.
    assert (apart_count("hold"), apart_count("settle")) == before
    for account in accounts:
        await check_books(one, account)


@contextlib.asynccontextmanager
async def locked(owner: asyncpg.Connection, account: str) -> AsyncIterator[None]:
    """Somebody else's transaction holds the account's balance."""
    async with owner.transaction():
        await owner.execute("SELECT FROM billing.balances WHERE payer_id = $1 FOR UPDATE", account)
        yield


async def waiting_pids(owner: asyncpg.Connection) -> list[int]:
    """Backends that wait for a lock of this connection, once there are any."""
    async with asyncio.timeout(10):
        while True:
            await owner.execute("SELECT pg_stat_clear_snapshot()")  # else it is the transaction's
            rows = await owner.fetch(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            if rows:
                return [row["pid"] for row in rows]
            await asyncio.sleep(0.005)


async def test_a_stuck_account_does_not_hold_up_the_others(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    stuck, free = await side.open_account(-1), await side.open_account(-1)
    turns = iter(side.turns)
    async with locked(side.owner, stuck):
        waits = asyncio.ensure_future(side.hold(next(turns), stuck))
        beside = asyncio.ensure_future(side.hold(next(turns), free))
        assert (await beside).outcome == "held"
        # The next group does not wait for the row that does.
        assert (await side.hold(next(turns), free)).outcome == "held"
        assert not waits.done()
    assert (await waits).outcome == "held"
    await check_books(side, stuck)


async def test_a_group_that_holds_again_takes_turns_before_balances(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    account = await side.open_account(-1)
    again, fresh = side.turns[:2]
    await side.hold(again, account)
    late = START + dt.timedelta(seconds=20)
    await side.quota.expire(late)
    async with side.owner.transaction():
        await side.owner.execute("SELECT FROM billing.turns WHERE turn_id = $1 FOR UPDATE", again)
        # The fresh one, asked first, does not lock the balance and wait for the turn then.
        group = asyncio.gather(
            side.hold(fresh, account, at_s=20), side.hold(again, account, at_s=20)
        )
        await waiting_pids(side.owner)
        await side.owner.execute("SET LOCAL lock_timeout = 100")
        await side.owner.execute(
            "SELECT FROM billing.balances WHERE payer_id = $1 FOR UPDATE", account
        )
    assert [one.outcome for one in await group] == ["held", "held"]
    await check_books(side, account)


@pytest.mark.parametrize("kind", ["hold", "settle"])
async def test_a_connection_that_dies_under_a_group_charges_nobody_twice(
    sides: Callable[[], Awaitable[Side]], kind: str
) -> None:
    side = await sides()
    account = await side.open_account(-1)
    turns = side.turns[:8]

    async def ask(turn: str) -> Made:
        return await (side.hold(turn, account) if kind == "hold" else side.settle(turn, 1))

    if kind == "settle":
        await asyncio.gather(*(side.hold(turn, account) for turn in turns))
    async with locked(side.owner, account):
        group = asyncio.gather(*map(ask, turns), return_exceptions=True)
        pids = await waiting_pids(side.owner)
        await side.owner.execute(
            "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", pids
        )
    # A row that went alone already, on a slow machine, has lost its connection with an error: its
    # caller repeats it, as the mesh does.
    lost = [
        turn for turn, one in zip(turns, await group, strict=True) if isinstance(one, MeshError)
    ]
    repeated = await asyncio.gather(*map(ask, lost or turns))
    assert not any(one is None for one in repeated)
    reserved = await side.owner.fetchval(
        "SELECT reserved_nanousd FROM billing.balances WHERE payer_id = $1", account
    )
    assert reserved == 8 * (100 if kind == "hold" else 60)
    await check_books(side, account)


class LosesAnswers(Store):
    """Its next group is committed, and the answer is lost with the connection."""

    loses = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with super().connection() as connection:
            yield connection
        if self.loses:
            self.loses = False
            raise ConnectionResetError("the answer is lost")


async def test_a_group_whose_answer_is_lost_is_repeated_and_counts_once(
    sides: Callable[[], Awaitable[Side]], postgres_dsn_for: Callable[[str], str]
) -> None:
    side = await sides()
    account = await side.open_account(1000)
    store = await LosesAnswers.open(postgres_dsn_for("billing"))
    side.store, side.quota = store, QuotaStore(store)
    store.loses = True
    held = await asyncio.gather(*(side.hold(turn, account) for turn in side.turns[:10]))
    assert {(one.outcome, one.held_nanousd) for one in held} == {("held", 100)}
    store.loses = True
    settled = await asyncio.gather(*(side.settle(turn, 1) for turn in side.turns[:10]))
    assert {one.amount_nanousd for one in settled if one} == {60}
    assert len([one for one in settled if one]) == 10
    await check_books(side, account)
    await store.close()


async def test_a_store_that_is_away_is_told_to_every_caller(
    sides: Callable[[], Awaitable[Side]],
) -> None:
    side = await sides()
    away = QuotaStore(await Store.open("postgresql://nobody@127.0.0.1:1/none"))
    side.quota = away
    calls = [side.hold(turn, "acc_x") for turn in side.turns[:5]]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    reasons = [error.reason for error in errors if isinstance(error, MeshError)]
    assert reasons == ["STORE_UNAVAILABLE"] * 5
