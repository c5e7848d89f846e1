"""Holds in PostgreSQL."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from billing_svc import quota
from billing_svc.prices import Price
from billing_svc.store import Connection, Store, change_balances
from billing_svc.turn import SettledCounts, Turn
from billing_svc.turn_rows import TURN_COLUMNS, turn_of, update_turns

SWEEP_TURN_COUNT_MAX = 500


@dataclass(frozen=True, slots=True)
class Held:
    """Answer to a hold.

    Attributes:
        outcome: "held", "exhausted", "no_account" or "other_account".
        held_nanousd: what the turn's hold is worth.
        available_nanousd: what is left; -1: no limit.
        expire_time: when the hold ends by itself.
    """

    outcome: str
    held_nanousd: int
    available_nanousd: int
    expire_time: dt.datetime


class ExhaustedError(Exception):
    """The budget has no room."""

    def __init__(self, available_nanousd: int, required_nanousd: int) -> None:
        super().__init__()
        self.available_nanousd, self.required_nanousd = available_nanousd, required_nanousd


class QuotaStore:
    """What the quota RPCs and the sweeper do; each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

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
        """Reserves the amount, or says why not; one round trip (SQL function billing.hold)."""
        async with self._store.connection() as connection:
            row = await connection.fetchrow(
                "SELECT * FROM billing.hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                *(turn_id, account_id, model, price.version),
                *(price.input_nanousd, price.cached_input_nanousd, price.output_nanousd),
                *(amount_nanousd, now, now + lifetime),
            )
        assert row is not None
        return Held(row["outcome"], row["held"] or 0, row["available"] or 0, row["expire_time"])

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
            before = await _locked(connection, turn_id)
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
        self, turn_id: str, change: Callable[[Turn], Turn], now: dt.datetime
    ) -> Turn | None:
        async with self._store.transaction() as connection:
            before = await _locked(connection, turn_id)
            if before is None:
                return None
            after = change(before)
            if after != before:
                await update_turns(connection, [after])
                delta = after.reserved_nanousd - before.reserved_nanousd
                await change_balances(connection, {before.account_id: (delta, 0)}, month_of(now))
            return after


def month_of(now: dt.datetime) -> dt.date:
    """First day of the month in UTC."""
    return now.astimezone(dt.UTC).date().replace(day=1)


async def _locked(connection: Connection, turn_id: str) -> Turn | None:
    row = await connection.fetchrow(
        f"SELECT {TURN_COLUMNS} FROM billing.turns WHERE turn_id = $1 FOR UPDATE",  # noqa: S608
        turn_id,
    )
    return turn_of(row) if row else None


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
