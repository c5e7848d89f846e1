"""Repairs in PostgreSQL: entries, the turn, its findings and all sums change in one transaction."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from billing_svc import repairs
from billing_svc.audit import Bounds, StepAudit
from billing_svc.audit_store import entries_of, judge, keep_findings
from billing_svc.balances import Change, change_balances, deltas_of
from billing_svc.ledger import Entry
from billing_svc.ledger_store import LedgerRow, insert_entries
from billing_svc.quota_store import month_of
from billing_svc.store import Connection, Store
from billing_svc.turn import Turn
from billing_svc.turn_rows import TURN_COLUMNS, turn_of, update_turns


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did to a turn: the entries it wrote, and whether it settled the turn."""

    turn_id: str
    rows: tuple[LedgerRow, ...]
    settled: bool


class RepairStore:
    """Makes turns balance."""

    def __init__(self, store: Store, bounds: Bounds) -> None:
        self._store, self._bounds = store, bounds

    async def repair(self, turn_id: str, now: dt.datetime) -> Repaired | None:
        """Makes a turn balance; None: it does, or nothing is known of it."""
        async with self._store.transaction() as connection:
            turn = await _locked(connection, turn_id)
            rows = (await entries_of(connection, [turn_id])).get(turn_id, [])
            audits = judge(turn_id, turn, rows, now, self._bounds)
            if all(one.balances for one in audits):
                return None
            after = await _write(connection, turn, [row.entry for row in rows], audits, now)
            again = (await entries_of(connection, [turn_id]))[turn_id]
            await rebuild_sums(connection, again)
            audits = judge(turn_id, after, again, now, self._bounds)
            await keep_findings(connection, [turn_id], audits, now)
        settled = turn is not None and after is not None and turn.settle_time != after.settle_time
        return Repaired(turn_id, tuple(again[len(rows) :]), settled)


async def _locked(connection: Connection, turn_id: str) -> Turn | None:
    # Two repairs of a turn that does not exist have no row to queue on.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", turn_id)
    row = await connection.fetchrow(
        f"SELECT {TURN_COLUMNS} FROM billing.turns WHERE turn_id = $1 FOR UPDATE",  # noqa: S608
        turn_id,
    )
    return turn_of(row) if row else None


async def _write(
    connection: Connection,
    turn: Turn | None,
    entries: Sequence[Entry],
    audits: Iterable[StepAudit],
    now: dt.datetime,
) -> Turn | None:
    if turn is None:
        await insert_entries(connection, repairs.taken_back(entries), now)
        return None
    result = repairs.repaired(turn, entries, audits, now)
    await update_turns(connection, [result.turn])
    await insert_entries(connection, result.entries, now)
    # What the account has spent is added up anew; what the others have changes by the entries.
    cost = sum(entry.cost_nanousd for entry in result.entries)
    deltas = deltas_of([Change(turn, result.turn, cost)])
    deltas[turn.account_id] = deltas[turn.account_id]._replace(spent_nanousd=0)
    await change_balances(connection, deltas, month_of(now))
    return result.turn


async def rebuild_sums(connection: Connection, rows: Iterable[LedgerRow]) -> None:
    """Makes the sums that these entries belong to what the ledger says.

    Added up anew and not by difference: an entry that nobody counted may be why a repair is needed.
    The sums' rows are locked first. A charge that is under way has either added its cost, and is
    seen, or waits for the lock, and adds it afterwards.
    """
    rows = list(rows)
    for account_id in sorted({row.entry.account_id for row in rows}):
        await connection.execute(
            "SELECT FROM billing.balances WHERE payer_id = $1 FOR UPDATE", account_id
        )
    keys = {
        (r.entry.account_id, r.entry.model, month_of(r.create_time), r.entry.key_id) for r in rows
    }
    for key in sorted(keys):
        await connection.execute(_LOCK_TOTAL, *key)
        await connection.execute(_REBUILD_TOTAL, *key)
    for account_id in sorted({row.entry.account_id for row in rows}):
        await connection.execute(_REBUILD_SPENT, account_id)


_LOCK_TOTAL = """
INSERT INTO billing.usage_totals AS total VALUES ($1, $3, $2, 0, 0, 0, 0, 0, $4)
ON CONFLICT (account_id, period, model, key_id) DO UPDATE SET turn_count = total.turn_count
"""

_REBUILD_TOTAL = """
UPDATE billing.usage_totals SET (input_token_count, cached_input_token_count, output_token_count,
    cost_nanousd, turn_count) = (
    SELECT coalesce(sum(tokens) FILTER (WHERE kind <> 3), 0),
        coalesce(sum(tokens) FILTER (WHERE kind = 2), 0),
        coalesce(sum(tokens) FILTER (WHERE kind = 3), 0),
        coalesce(sum(cost_nanousd), 0), count(DISTINCT turn_id)
    FROM billing.ledger, LATERAL (SELECT (end_position - first_position)::bigint
        * CASE WHEN is_credit THEN -1 ELSE 1 END AS tokens) AS signed
    WHERE account_id = $1 AND model = $2 AND billing.month_of(create_time) = $3 AND key_id = $4
)
WHERE account_id = $1 AND model = $2 AND period = $3 AND key_id = $4
"""

# Of the month that the balance counts; a new one begins with its first entry.
_REBUILD_SPENT = """
UPDATE billing.balances AS balance SET (period, spent_nanousd) = (
    SELECT latest.period, coalesce(sum(cost_nanousd) FILTER (
        WHERE billing.month_of(create_time) = latest.period), 0)
    FROM (SELECT greatest(balance.period, max(billing.month_of(create_time))) AS period
        FROM billing.ledger WHERE account_id = $1) AS latest, billing.ledger
    WHERE account_id = $1 GROUP BY latest.period
)
WHERE payer_id = $1
"""
