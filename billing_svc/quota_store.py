"""Holds in PostgreSQL."""

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from billing_svc import quota
from billing_svc.hold_rows import Held, HoldRow, hold_all
from billing_svc.prices import Price
from billing_svc.store import (
    GROUP_LOCK_TIMEOUT_MS,
    Connection,
    Store,
    change_balances,
    store_errors,
)
from billing_svc.turn import SettledCounts, Turn
from billing_svc.turn_rows import TURN_COLUMNS, lock_turns, turn_of, update_turns
from mesh.chassis.group_commit import GroupCommit

SWEEP_TURN_COUNT_MAX = 500


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of a turn at a time."""

    turn_id: str
    after: Callable[[Turn], Turn]
    now: dt.datetime


class ExhaustedError(Exception):
    """The budget has no room."""

    def __init__(self, available_nanousd: int, required_nanousd: int) -> None:
        super().__init__()
        self.available_nanousd, self.required_nanousd = available_nanousd, required_nanousd


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

    async def hold(
        self,
        *,
        turn_id: str,
        account_id: str,
        model: str,
        price: Price,
        amount_nanousd: int,
        now: dt.datetime,
        lifetime: dt.timedelta,
    ) -> Held:
        """Reserves the amount, or says why not (SQL function billing.hold)."""
        row = HoldRow(
            turn_id,
            account_id,
            model,
            price.version,
            *(price.input_nanousd, price.cached_input_nanousd, price.output_nanousd),
            amount_nanousd,
            now,
            now + lifetime,
        )
        with store_errors():
            return await self._holds.ask(row)

    async def extend(
        self,
        turn_id: str,
        prompt_count: int,
        output_count_max: int,
        now: dt.datetime,
        lifetime: dt.timedelta,
    ) -> Turn | None:
        """The turn with its new expiry; None: no such turn. Raises ExhaustedError."""
        async with self._store.transaction() as connection:
            before = (await lock_turns(connection, [turn_id])).get(turn_id)
            if before is None:
                return None
            after = quota.extended(before, prompt_count, output_count_max, now + lifetime)
            more = after.reserved_nanousd - before.reserved_nanousd
            await _reserve(connection, before, more, now)
            await update_turns(connection, [after])
            return after

    async def settle(
        self, turn_id: str, counts: Sequence[SettledCounts], now: dt.datetime
    ) -> Turn | None:
        """The turn, settled with the counts of its steps; None: no such turn."""
        return await self._change(turn_id, lambda turn: quota.settled(turn, counts, now), now)

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
            deltas: dict[str, tuple[int, int]] = {}
            for turn in turns:
                reserved = deltas.get(turn.account_id, (0, 0))[0]
                deltas[turn.account_id] = (reserved - turn.reserved_nanousd, 0)
            await update_turns(connection, [quota.expired(turn, now) for turn in turns])
            await change_balances(connection, deltas, month_of(now))
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
            return await self._changes.ask(_Change(turn_id, after, now))

    async def _hold_all(self, rows: Sequence[HoldRow]) -> list[Held]:
        async with self._store.connection() as connection:
            return await hold_all(connection, rows)

    async def _change_all(self, changes: Sequence[_Change]) -> list[Turn | None]:
        """The turns after their changes, which are made in the order asked; None: no such turn."""
        async with self._store.transaction() as connection:
            if len(changes) > 1:
                await connection.execute(f"SET LOCAL lock_timeout = {GROUP_LOCK_TIMEOUT_MS}")
            turns = await lock_turns(connection, {change.turn_id for change in changes})
            answers: list[Turn | None] = []
            changed: dict[str, Turn] = {}
            freed: dict[dt.date, dict[str, tuple[int, int]]] = defaultdict(dict)
            for change in changes:
                before = turns.get(change.turn_id)
                after = before and change.after(before)
                answers.append(after)
                if before is None or after is None or after == before:
                    continue
                turns[after.turn_id] = changed[after.turn_id] = after
                deltas = freed[month_of(change.now)]
                delta = after.reserved_nanousd - before.reserved_nanousd
                deltas[after.account_id] = (deltas.get(after.account_id, (0, 0))[0] + delta, 0)
            await update_turns(connection, changed.values())
            for month, deltas in sorted(freed.items()):  # more than one at midnight of the 1st
                await change_balances(connection, deltas, month)
        return answers


def month_of(now: dt.datetime) -> dt.date:
    """First day of the month in UTC."""
    return now.astimezone(dt.UTC).date().replace(day=1)


async def _reserve(
    connection: Connection, turn: Turn, amount_nanousd: int, now: dt.datetime
) -> None:
    query, arguments = "SELECT billing.reserve($1, $2, $3)", (turn.account_id, amount_nanousd, now)
    if await connection.fetchval(query, *arguments) is not None:
        return
    await connection.execute(
        "SELECT billing.expire_holds($1, $2, $3)", turn.account_id, turn.turn_id, now
    )
    if await connection.fetchval(query, *arguments) is None:
        available = await connection.fetchval(
            "SELECT billing.available(b, $2) FROM billing.balances b WHERE account_id = $1",
            *(turn.account_id, now),
        )
        raise ExhaustedError(available or 0, amount_nanousd)
