"""Holds in PostgreSQL."""

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from billing_svc import quota
from billing_svc.balances import Change, change_balances, deltas_of
from billing_svc.hold_rows import Bound, Held, HoldRow, bound_of, hold_all
from billing_svc.quota import Counts, Raise
from billing_svc.store import GROUP_LOCK_TIMEOUT_MS, Connection, Store, store_errors
from billing_svc.turn import SettledCounts, Turn
from billing_svc.turn_rows import TURN_COLUMNS, lock_turns, turn_of, update_turns
from mesh.chassis.group_commit import GroupCommit

SWEEP_TURN_COUNT_MAX = 500


@dataclass(frozen=True, slots=True)
class _Asked:
    """What becomes of a turn at a time."""

    turn_id: str
    after: Callable[[Turn], Turn]
    now: dt.datetime


class RefusedError(Exception):
    """A limit has no room."""

    def __init__(self, refused: Held) -> None:
        super().__init__()
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Extended:
    """The turn after Extend, and why it has fewer output tokens than asked for, if it has."""

    turn: Turn
    bound: Bound | None


class QuotaStore:
    """What the quota RPCs and the sweeper do; each method is one transaction.

    Holds, and settlements with releases, are written in groups. Both are repeatable by their turn
    id, so a group whose answer was lost may be repeated. A hold whose caller has left stands until
    it expires; a settlement of such a caller counts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holds = GroupCommit("hold", self._hold_all)
        self._changes = GroupCommit("settle", self._change_all)

    async def close(self) -> None:
        """Finishes what was asked for."""
        await self._holds.drain()
        await self._changes.drain()

    async def hold(self, row: HoldRow) -> Held:
        """Reserves, or says why not (SQL function billing.hold)."""
        with store_errors():
            held = await self._holds.ask(row)
            # Those of other accounts and keys: here, where nothing is locked.
            is_others = held.bound is not None and held.bound.payer_id != row.account_id
            if held.outcome == "refused" and is_others and await self.expire(row.now):
                held = await self._holds.ask(row)
        return held

    async def extend(
        self, turn_id: str, counts: Counts, now: dt.datetime, lifetime: dt.timedelta
    ) -> Extended | None:
        """The turn with its new expiry; None: no such turn.

        Raises:
            RefusedError: a limit has no room.
        """
        try:
            return await self._extend(turn_id, counts, now, lifetime)
        except RefusedError:
            if not await self.expire(now):
                raise
            return await self._extend(turn_id, counts, now, lifetime)

    async def _extend(
        self, turn_id: str, counts: Counts, now: dt.datetime, lifetime: dt.timedelta
    ) -> Extended | None:
        async with self._store.transaction() as connection:
            before = (await lock_turns(connection, [turn_id])).get(turn_id)
            if before is None:
                return None
            asked = quota.raise_of(before, counts)
            reserved = _NOTHING if asked.is_none else await _reserve(connection, before, asked, now)
            minute = minute_of(now)
            after = quota.extended(before, asked, reserved.granted_count, minute, now + lifetime)
            await update_turns(connection, [after])
            return Extended(after, reserved.bound)

    async def settle(
        self,
        turn_id: str,
        counts: Sequence[SettledCounts],
        now: dt.datetime,
        *,
        cut_short: bool = False,
    ) -> Turn | None:
        """The turn, settled with the counts of its steps; None: no such turn."""
        return await self._change(
            turn_id, lambda turn: quota.settled(turn, counts, now, cut_short=cut_short), now
        )

    async def release(self, turn_id: str, now: dt.datetime) -> Turn | None:
        """The released turn; None: no such turn."""
        return await self._change(turn_id, lambda turn: quota.released(turn, now), now)

    async def expire(self, now: dt.datetime) -> int:
        """Frees what expired holds reserve; gives how many, at most SWEEP_TURN_COUNT_MAX."""
        async with self._store.transaction() as connection:
            rows = await connection.fetch(
                f"SELECT {TURN_COLUMNS} FROM billing.turns"  # noqa: S608 - a constant
                " WHERE state = 1 AND expire_time <= $1"
                " ORDER BY expire_time LIMIT $2 FOR UPDATE SKIP LOCKED",
                *(now, SWEEP_TURN_COUNT_MAX),
            )
            turns = [turn_of(row) for row in rows]
            changes = [Change(turn, quota.expired(turn, now)) for turn in turns]
            await update_turns(connection, [change.after for change in changes])
            await change_balances(connection, deltas_of(changes), month_of(now))
        return len(turns)

    async def purge(self, before_turn_id: str) -> int:
        """Forgets ended turns older than the ULID given, and what the audit found of them.

        Gives how many turns, in one bounded step.
        """
        async with self._store.transaction() as connection:
            await connection.execute(
                "DELETE FROM billing.audit_findings WHERE turn_id < $1", before_turn_id
            )
            status = await connection.execute(
                "DELETE FROM billing.turns WHERE turn_id IN (SELECT turn_id FROM billing.turns"
                " WHERE turn_id < $1 AND state IN (3, 4, 5) LIMIT $2 FOR UPDATE SKIP LOCKED)",
                *(before_turn_id, SWEEP_TURN_COUNT_MAX),
            )
        return int(status.split()[-1])

    async def _change(
        self, turn_id: str, after: Callable[[Turn], Turn], now: dt.datetime
    ) -> Turn | None:
        with store_errors():
            return await self._changes.ask(_Asked(turn_id, after, now))

    async def _hold_all(self, rows: Sequence[HoldRow]) -> list[Held]:
        async with self._store.connection() as connection:
            return await hold_all(connection, rows)

    async def _change_all(self, changes: Sequence[_Asked]) -> list[Turn | None]:
        """The turns after their changes, which are made in the order asked; None: no such turn."""
        async with self._store.transaction() as connection:
            if len(changes) > 1:
                await connection.execute(f"SET LOCAL lock_timeout = {GROUP_LOCK_TIMEOUT_MS}")
            turns = await lock_turns(connection, {change.turn_id for change in changes})
            answers: list[Turn | None] = []
            changed: dict[str, Turn] = {}
            made: dict[dt.date, list[Change]] = defaultdict(list)
            for change in changes:
                before = turns.get(change.turn_id)
                after = before and change.after(before)
                answers.append(after)
                if before is None or after is None or after == before:
                    continue
                turns[after.turn_id] = changed[after.turn_id] = after
                made[month_of(change.now)].append(Change(before, after))
            await update_turns(connection, changed.values())
            for month, one in sorted(made.items()):  # more than one at midnight of the 1st
                await change_balances(connection, deltas_of(one), month)
        return answers


def month_of(now: dt.datetime) -> dt.date:
    """First day of the month in UTC."""
    return now.astimezone(dt.UTC).date().replace(day=1)


def minute_of(now: dt.datetime) -> int:
    """Minutes since the epoch: the same as SQL function billing.minute_of."""
    return int(now.timestamp() // 60)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """What billing.reserve granted."""

    granted_count: int
    bound: Bound | None


_NOTHING = _Reserved(0, None)


async def _reserve(connection: Connection, turn: Turn, asked: Raise, now: dt.datetime) -> _Reserved:
    row = await connection.fetchrow(
        "SELECT * FROM billing.reserve($1, $2, $3, $4, $5, $6, $7, $8)",
        *(list(turn.payers), asked.fixed_nanousd, asked.prompt_count, turn.price.output_nanousd),
        *(asked.output_count_min, asked.output_count_max, int(asked.is_reopened), now),
    )
    assert row is not None
    if row["granted"] is not None:
        return _Reserved(row["granted"], bound_of(row))
    needed = asked.fixed_nanousd + turn.price.output_nanousd * asked.output_count_max
    limits = row["available"], row["token_limit"], row["token_left"]
    raise RefusedError(Held("refused", needed, 0, bound_of(row), *limits, turn.expire_time))
