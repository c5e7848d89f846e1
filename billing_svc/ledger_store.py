"""The ledger in PostgreSQL: entries, running totals, and events that wait for their hold."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import asyncpg

from billing_svc import ledger
from billing_svc.balances import Change, change_balances, deltas_of
from billing_svc.ledger import Billed, Entry, Kind, Usage
from billing_svc.quota_store import month_of
from billing_svc.store import Connection, Store
from billing_svc.turn import Turn
from billing_svc.turn_rows import TURN_COLUMNS, lock_turns, turn_of, update_turns

RECONCILE_TURN_COUNT_MAX = 200
PENDING_EVENT_COUNT_MAX = 500


@dataclass(frozen=True, slots=True)
class Report:
    """A node's report and the bytes it came as, kept when it must wait."""

    usage: Usage
    event: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """What a batch did: tokens charged, and reports that wait for their turn's hold."""

    new_token_count: int
    waiting_count: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """An entry as it stands in the ledger."""

    entry_id: int
    entry: Entry
    create_time: dt.datetime


@dataclass(frozen=True, slots=True)
class Total:
    """Sums of one model and key in one month; input includes cached input."""

    model: str
    key_id: str
    input_token_count: int
    cached_input_token_count: int
    output_token_count: int
    cost_nanousd: int
    turn_count: int


class LedgerStore:
    """What the usage RPCs, the consumer and the reconciler do; each write is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def append(self, reports: Sequence[Report], now: dt.datetime) -> Appended:
        """Charges what is new; durable when it returns."""
        if not reports:
            return Appended(0, 0)
        async with self._store.transaction() as connection:
            turns = await lock_turns(connection, {r.usage.turn_id for r in reports})
            waiting = [r for r in reports if r.usage.turn_id not in turns]
            await connection.executemany(
                "INSERT INTO billing.pending_events (turn_id, event, arrive_time)"
                " VALUES ($1, $2, $3)",
                [(report.usage.turn_id, report.event, now) for report in waiting],
            )
            count = await _charge(connection, turns, [r.usage for r in reports], now)
        return Appended(count, len(waiting))

    async def pending(self) -> list[tuple[int, bytes]]:
        """Events whose turn has a hold by now: (id, event)."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT event_id, event FROM billing.pending_events JOIN billing.turns"
                " USING (turn_id) ORDER BY event_id LIMIT $1",
                PENDING_EVENT_COUNT_MAX,
            )
        return [(row["event_id"], row["event"]) for row in rows]

    async def append_pending(self, reports: Mapping[int, Report], now: dt.datetime) -> Appended:
        """Charges events that waited (id -> report) and takes them off the waiting list."""
        async with self._store.transaction() as connection:
            # Another instance may be at the same ones: a second charge would change nothing.
            turns = await lock_turns(connection, {r.usage.turn_id for r in reports.values()})
            count = await _charge(connection, turns, [r.usage for r in reports.values()], now)
            await _forget(connection, reports)
        return Appended(count, 0)

    async def overdue(self, before: dt.datetime) -> list[tuple[int, bytes]]:
        """Events that wait since before `before` for a turn that still has no hold."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT event_id, event FROM billing.pending_events AS p WHERE arrive_time < $1"
                " AND NOT EXISTS (SELECT FROM billing.turns WHERE turn_id = p.turn_id)"
                " ORDER BY event_id LIMIT $2",
                *(before, PENDING_EVENT_COUNT_MAX),
            )
        return [(row["event_id"], row["event"]) for row in rows]

    async def forget(self, event_ids: Iterable[int]) -> None:
        """Takes events off the waiting list."""
        async with self._store.connection() as connection:
            await _forget(connection, event_ids)

    async def waiting_count(self) -> int:
        """Events on the waiting list."""
        async with self._store.connection() as connection:
            return int(await connection.fetchval("SELECT count(*) FROM billing.pending_events"))

    async def reconcile(self, settled_before: dt.datetime, now: dt.datetime) -> list[Billed]:
        """Charges settled turns whose nodes did not report it all; gives what became of them."""
        month = month_of(now)
        async with self._store.transaction() as connection:
            rows = await connection.fetch(
                f"SELECT {TURN_COLUMNS} FROM billing.turns"  # noqa: S608 - a constant
                " WHERE state = 2 AND settle_time <= $1"
                " ORDER BY settle_time LIMIT $2 FOR UPDATE SKIP LOCKED",
                *(settled_before, RECONCILE_TURN_COUNT_MAX),
            )
            results = [ledger.reconciled(turn_of(row), month) for row in rows]
            await _write(connection, results, now)
        return results

    async def totals(self, account_id: str, period: dt.date) -> list[Total]:
        """Sums of an account's month, sorted by model and key."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT model, key_id, input_token_count, cached_input_token_count,"
                " output_token_count, cost_nanousd, turn_count FROM billing.usage_totals"
                ' WHERE account_id = $1 AND period = $2 ORDER BY model COLLATE "C", key_id',
                *(account_id, period),
            )
        return [Total(*row) for row in rows]

    async def entries(
        self, account_id: str, turn_id: str, after_id: int, count_max: int
    ) -> list[LedgerRow]:
        """Entries with ids above `after_id`, oldest first; empty turn_id: of every turn."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT * FROM billing.ledger WHERE account_id = $1 AND entry_id > $2"
                " AND ($3 = '' OR turn_id = $3) ORDER BY entry_id LIMIT $4",
                *(account_id, after_id, turn_id, count_max),
            )
        return list(map(row_of, rows))


async def _charge(
    connection: Connection, turns: Mapping[str, Turn], reports: Iterable[Usage], now: dt.datetime
) -> int:
    by_turn: dict[str, list[Usage]] = defaultdict(list)
    for usage in reports:
        by_turn[usage.turn_id].append(usage)
    month = month_of(now)
    results = [
        ledger.billed(turns[turn_id], usages, month)
        for turn_id, usages in by_turn.items()
        if turn_id in turns
    ]
    await _write(connection, results, now)
    return sum(entry.token_count for result in results for entry in result.entries)


async def _write(connection: Connection, results: Sequence[Billed], now: dt.datetime) -> None:
    changed = [result for result in results if result.turn != result.before]
    if not changed:
        return
    month = month_of(now)
    await update_turns(connection, [result.turn for result in changed])
    await insert_entries(connection, [e for r in changed for e in r.entries], now)
    changes = [Change(r.before, r.turn, sum(e.cost_nanousd for e in r.entries)) for r in changed]
    await change_balances(connection, deltas_of(changes), month)
    await _add_totals(connection, changed, month)


async def insert_entries(
    connection: Connection, entries: Iterable[Entry], now: dt.datetime
) -> None:
    """Writes entries; sums and balances are the caller's to keep."""
    await connection.executemany(
        "INSERT INTO billing.ledger (account_id, turn_id, choice_index, kind, first_position,"
        " end_position, model, cost_nanousd, price_version, create_time, source, step, is_credit,"
        " key_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        [
            (
                *(entry.account_id, entry.turn_id, entry.choice_index, int(entry.kind)),
                *(entry.first, entry.end, entry.model, entry.cost_nanousd, entry.price_version),
                *(now, entry.source, entry.step, entry.is_credit, entry.key_id),
            )
            for entry in entries
        ],
    )


async def _add_totals(connection: Connection, results: Iterable[Billed], month: dt.date) -> None:
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for result in results:
        if not result.entries:
            continue
        total = sums[result.turn.account_id, result.turn.model, result.turn.key_id]
        total[4] += result.starts_period
        for entry in result.entries:
            total[0] += entry.token_count if entry.kind is not Kind.OUTPUT else 0
            total[1] += entry.token_count if entry.kind is Kind.CACHED_INPUT else 0
            total[2] += entry.token_count if entry.kind is Kind.OUTPUT else 0
            total[3] += entry.cost_nanousd
    await connection.executemany(
        """
        INSERT INTO billing.usage_totals AS total (account_id, model, key_id, period,
            input_token_count, cached_input_token_count, output_token_count, cost_nanousd,
            turn_count)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (account_id, period, model, key_id) DO UPDATE SET
            input_token_count = total.input_token_count + excluded.input_token_count,
            cached_input_token_count =
                total.cached_input_token_count + excluded.cached_input_token_count,
            output_token_count = total.output_token_count + excluded.output_token_count,
            cost_nanousd = total.cost_nanousd + excluded.cost_nanousd,
            turn_count = total.turn_count + excluded.turn_count
        """,
        [(*key, month, *total) for key, total in sorted(sums.items())],
    )


async def _forget(connection: Connection, event_ids: Iterable[int]) -> None:
    await connection.execute(
        "DELETE FROM billing.pending_events WHERE event_id = ANY($1)", list(event_ids)
    )


def row_of(row: asyncpg.Record) -> LedgerRow:
    """The entry of a row of billing.ledger."""
    entry = Entry(
        turn_id=row["turn_id"],
        account_id=row["account_id"],
        choice_index=row["choice_index"],
        kind=Kind(row["kind"]),
        first=row["first_position"],
        end=row["end_position"],
        model=row["model"],
        cost_nanousd=row["cost_nanousd"],
        price_version=row["price_version"],
        source=row["source"],
        step=row["step"],
        is_credit=row["is_credit"],
        key_id=row["key_id"],
    )
    return LedgerRow(row["entry_id"], entry, row["create_time"])
