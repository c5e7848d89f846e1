"""Balances: what each payer of a turn has reserved, spent, running, and used of the minute.

A turn is paid by its account, and by its key and organisation where they have limits: what changes
for one changes for all of them, in one transaction with the turn.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from billing_svc.store import Connection
from billing_svc.turn import State, Turn


class Delta(NamedTuple):
    """A change of a balance.

    Attributes:
        reserved_nanousd: more of it reserved.
        spent_nanousd: more of it spent this month.
        running: more turns that run.
        minute: of which minute since the epoch tokens come back.
        tokens_back: how many. Of a minute that is over none do: what it had is nobody's any more.
    """

    reserved_nanousd: int = 0
    spent_nanousd: int = 0
    running: int = 0
    minute: int = 0
    tokens_back: int = 0

    def plus(self, other: "Delta") -> "Delta":
        """Both. Where minutes differ the earlier one is over."""
        minute = max(self.minute, other.minute)
        back = sum(each.tokens_back for each in (self, other) if each.minute == minute)
        return Delta(
            self.reserved_nanousd + other.reserved_nanousd,
            self.spent_nanousd + other.spent_nanousd,
            self.running + other.running,
            minute,
            back,
        )


class Change(NamedTuple):
    """A turn before and after, and what the ledger charged in between, in nano-USD."""

    before: Turn
    after: Turn
    spent_nanousd: int = 0

    @property
    def delta(self) -> Delta:
        """What it changes for each of the turn's payers."""
        before, after = self.before, self.after
        return Delta(
            after.reserved_nanousd - before.reserved_nanousd,
            self.spent_nanousd,
            (after.state is State.OPEN) - (before.state is State.OPEN),
            before.minute,
            before.minute_token_count - after.minute_token_count,
        )


def deltas_of(changes: Iterable[Change]) -> dict[str, Delta]:
    """What changes of turns change for their payers, by id."""
    deltas: dict[str, Delta] = {}
    for change in changes:
        for payer in change.after.payers:
            deltas[payer] = deltas.get(payer, Delta()).plus(change.delta)
    return deltas


async def change_balances(
    connection: Connection, deltas: Mapping[str, Delta], month: dt.date
) -> None:
    """Changes balances, in the order of their payers' ids."""
    rows = [(payer, *delta, month) for payer, delta in sorted(deltas.items()) if any(delta)]
    await connection.executemany(
        """
        UPDATE billing.balances SET
            reserved_nanousd = reserved_nanousd + $2,
            spent_nanousd = CASE WHEN period < $7 THEN 0 ELSE spent_nanousd END + $3,
            period = greatest(period, $7),
            running = running + $4,
            minute_token_count = minute_token_count
                - CASE WHEN minute = $5 THEN least($6, minute_token_count) ELSE 0 END
        WHERE payer_id = $1
        """,
        rows,
    )
