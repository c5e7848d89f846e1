"""The audit in PostgreSQL: which turns are to be judged, and what was found.

A turn that was judged carries a mark (audit_time); any change of it takes the mark away, so a
restarted process, or one of several, goes on with exactly the turns that need it.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from billing_svc import audit
from billing_svc.audit import Bounds, Finding, StepAudit
from billing_svc.ledger import Kind
from billing_svc.ledger_store import LedgerRow, row_of
from billing_svc.store import Connection, Store
from billing_svc.turn import Turn
from billing_svc.turn_rows import TURN_COLUMNS, turn_of

AUDIT_TURN_COUNT_MAX = 200
SEARCH_ENTRY_COUNT_MAX = 2000

# As audit.judged has it with `ended`: the others are not judged yet.
_DUE = """
    audit_time IS NULL AND CASE state
        WHEN 1 THEN create_time <= $1
        WHEN 2 THEN settle_time <= $2
        WHEN 5 THEN ledger_period IS NULL OR expire_time <= $2
        ELSE true END
"""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which turns; empty texts: all."""

    account_id: str = ""
    turn_id: str = ""
    since_turn_id: str = ""  # a ULID, or its beginning: a time
    only_findings: bool = False


@dataclass(frozen=True, slots=True)
class FindingCount:
    """Turns and tokens that stand with a finding."""

    finding: Finding
    kind: Kind
    turn_count: int
    token_count: int


class AuditStore:
    """What the audit's job and its RPCs do."""

    def __init__(self, store: Store, bounds: Bounds) -> None:
        self._store, self._bounds = store, bounds

    async def audit_due(self, now: dt.datetime) -> int:
        """Judges ended turns that are not marked, at most AUDIT_TURN_COUNT_MAX; gives how many."""
        bounds = (now - self._bounds.unended, now - self._bounds.unsettled)
        async with self._store.transaction() as connection:
            rows = await connection.fetch(
                f"SELECT {TURN_COLUMNS} FROM billing.turns WHERE {_DUE}"  # noqa: S608 - constants
                " ORDER BY turn_id LIMIT $3 FOR UPDATE SKIP LOCKED",
                *(*bounds, AUDIT_TURN_COUNT_MAX),
            )
            turns = {row["turn_id"]: turn_of(row) for row in rows}
            if turns:
                found = await entries_of(connection, turns)
                entries = {turn_id: found.get(turn_id, []) for turn_id in turns}
                audits = [
                    one
                    for turn_id, turn in turns.items()
                    for one in judge(turn_id, turn, entries[turn_id], now, self._bounds)
                ]
                await _mark(connection, entries, now)
                await keep_findings(connection, turns, audits, now)
        return len(turns)

    async def last_entry_id(self) -> int:
        """The newest entry of the ledger; 0: it is empty."""
        async with self._store.connection() as connection:
            query = "SELECT coalesce(max(entry_id), 0) FROM billing.ledger"
            return int(await connection.fetchval(query))

    async def search_ledger(self, end_entry_id: int, oldest_turn_id: str, now: dt.datetime) -> int:
        """Looks for entries that no judgement saw, from where the last search ended.

        Their turns lose their mark; entries without a turn are a finding. One instance at a time.

        Args:
            end_entry_id: the last entry to look at.
            oldest_turn_id: turns before it may have been forgotten.
            now: when.

        Returns:
            How many entries were looked at; at most SEARCH_ENTRY_COUNT_MAX.
        """
        async with self._store.transaction() as connection:
            begin = await connection.fetchval(
                "SELECT entry_id FROM billing.audit_progress FOR UPDATE SKIP LOCKED"
            )
            if begin is None:
                return 0
            rows = await connection.fetch(
                "SELECT entry_id, turn_id FROM billing.ledger WHERE entry_id > $1"
                " AND entry_id <= $2 ORDER BY entry_id LIMIT $3",
                *(begin, end_entry_id, SEARCH_ENTRY_COUNT_MAX),
            )
            if not rows:
                return 0
            last = {row["turn_id"]: row["entry_id"] for row in rows}
            await connection.execute(
                "UPDATE billing.turns AS t SET audit_time = NULL"
                " FROM unnest($1::text[], $2::bigint[]) AS seen (turn_id, entry_id)"
                " WHERE t.turn_id = seen.turn_id AND t.audit_time IS NOT NULL"
                " AND t.audit_entry_id < seen.entry_id",
                *(list(last), list(last.values())),
            )
            recent = [turn_id for turn_id in last if turn_id >= oldest_turn_id]
            await self._note_orphans(connection, recent, now)
            await connection.execute(
                "UPDATE billing.audit_progress SET entry_id = $1", rows[-1]["entry_id"]
            )
        return len(rows)

    async def lag_s(self, now: dt.datetime) -> float:
        """Seconds since the oldest turn ended that has no mark; 0: none."""
        async with self._store.connection() as connection:
            oldest = await connection.fetchval(
                "SELECT min(coalesce(settle_time, expire_time)) FROM billing.turns"
                " WHERE audit_time IS NULL AND state <> 1"
            )
        return max(0.0, (now - oldest).total_seconds()) if oldest else 0.0

    async def finding_counts(self) -> list[FindingCount]:
        """What stands, by finding and kind."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT finding, kind, count(DISTINCT turn_id) AS turns, sum(token_count) AS tokens"
                " FROM billing.audit_findings GROUP BY finding, kind"
            )
        return [
            FindingCount(Finding(r["finding"]), Kind(r["kind"]), r["turns"], int(r["tokens"]))
            for r in rows
        ]

    async def finding_turn_count(self) -> int:
        """Turns that do not balance."""
        async with self._store.connection() as connection:
            return int(
                await connection.fetchval(
                    "SELECT count(DISTINCT turn_id) FROM billing.audit_findings"
                    " WHERE finding <> $1",
                    int(Finding.DRIFT),
                )
            )

    async def audited(
        self, wanted: Filter, after_turn_id: str, turn_count_max: int, now: dt.datetime
    ) -> list[tuple[str, tuple[StepAudit, ...]]]:
        """(id, steps) of turns as they stand now, judged, by id; changes nothing."""
        async with (
            self._store.connection() as connection,
            # One snapshot: a turn and its entries of the same moment.
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            ids = await _ids(connection, wanted, after_turn_id, turn_count_max)
            turns = {}
            for row in await connection.fetch(
                f"SELECT {TURN_COLUMNS} FROM billing.turns"  # noqa: S608 - a constant
                " WHERE turn_id = ANY($1)",
                ids,
            ):
                turns[row["turn_id"]] = turn_of(row)
            rows = await entries_of(connection, ids)
        return [
            (turn_id, judge(turn_id, turns.get(turn_id), rows.get(turn_id, ()), now, self._bounds))
            for turn_id in ids
        ]

    async def _note_orphans(
        self, connection: Connection, turn_ids: Sequence[str], now: dt.datetime
    ) -> None:
        known = await connection.fetch(
            "SELECT turn_id FROM billing.turns WHERE turn_id = ANY($1)", turn_ids
        )
        missing = sorted(set(turn_ids) - {row["turn_id"] for row in known})
        if missing:
            rows = await entries_of(connection, missing)
            audits = [a for t in missing for a in judge(t, None, rows[t], now, self._bounds)]
            await keep_findings(connection, missing, audits, now)


def judge(
    turn_id: str, turn: Turn | None, rows: Iterable[LedgerRow], now: dt.datetime, bounds: Bounds
) -> tuple[StepAudit, ...]:
    """The steps of a turn in the balance; turn None: it does not exist."""
    entries = [row.entry for row in rows]
    if turn is None:
        return audit.judged_missing(turn_id, entries)
    return audit.judged(turn, entries, now, bounds)


async def entries_of(
    connection: Connection, turn_ids: Iterable[str]
) -> Mapping[str, list[LedgerRow]]:
    """Turn -> its entries, oldest first."""
    found: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in await connection.fetch(
        "SELECT * FROM billing.ledger WHERE turn_id = ANY($1) ORDER BY entry_id", list(turn_ids)
    ):
        found[row["turn_id"]].append(row_of(row))
    return found


async def keep_findings(
    connection: Connection,
    turn_ids: Iterable[str],
    audits: Iterable[StepAudit],
    now: dt.datetime,
) -> None:
    """Replaces what is known of the turns by what these audits found."""
    await connection.execute(
        "DELETE FROM billing.audit_findings WHERE turn_id = ANY($1)", list(turn_ids)
    )
    await connection.executemany(
        "INSERT INTO billing.audit_findings (turn_id, step, finding, kind, account_id, token_count,"
        " find_time) VALUES ($1, $2, $3, $4, $5, $6, $7)"
        " ON CONFLICT (turn_id, step, finding, kind) DO NOTHING",
        [
            (
                *(audit.turn_id, audit.step, int(one.finding), int(one.kind)),
                *(audit.account_id, one.token_count, now),
            )
            for audit in audits
            for one in audit.found
        ],
    )


async def _mark(
    connection: Connection, rows: Mapping[str, Sequence[LedgerRow]], now: dt.datetime
) -> None:
    last = [entries[-1].entry_id if entries else 0 for entries in rows.values()]
    await connection.execute(
        "UPDATE billing.turns AS t SET audit_time = $1, audit_entry_id = seen.entry_id"
        " FROM unnest($2::text[], $3::bigint[]) AS seen (turn_id, entry_id)"
        " WHERE t.turn_id = seen.turn_id",
        *(now, list(rows), last),
    )


async def _ids(
    connection: Connection, wanted: Filter, after_turn_id: str, turn_count_max: int
) -> list[str]:
    """Of turns, and of findings, which may be of turns that do not exist."""
    where = (
        " WHERE turn_id > $1 AND turn_id >= $2 AND ($3 = '' OR account_id = $3)"
        " AND ($4 = '' OR turn_id = $4)"
    )
    tables = ["audit_findings"]
    if not wanted.only_findings:
        tables += ["turns", "ledger"] if wanted.turn_id else ["turns"]
    branches = (
        f"(SELECT DISTINCT turn_id FROM billing.{table}{where} ORDER BY turn_id LIMIT $5)"  # noqa: S608 - constants
        for table in tables
    )
    rows = await connection.fetch(
        f"SELECT turn_id FROM ({' UNION '.join(branches)}) AS ids"  # noqa: S608 - constants
        " ORDER BY turn_id LIMIT $5",
        *(after_turn_id, wanted.since_turn_id, wanted.account_id, wanted.turn_id, turn_count_max),
    )
    return [row["turn_id"] for row in rows]
