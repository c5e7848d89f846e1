"""Holds of a group, in one statement.

The SQL function billing.hold decides each of them, one after the other in one transaction: each
sees what those before it reserved, as if it had been called alone.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from billing_svc.store import GROUP_LOCK_TIMEOUT_MS, Connection


class HoldRow(NamedTuple):
    """What billing.hold is asked, in the order of its parameters. Money in nano-USD."""

    turn_id: str
    account_id: str
    model: str
    price_version: str
    input_nanousd: int
    cached_input_nanousd: int
    output_nanousd: int
    amount_nanousd: int
    now: dt.datetime
    expire_time: dt.datetime


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


_ONE = "SELECT * FROM billing.hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"

# The lock order of all transactions is turns, then balances. So turns that are there already (held
# again) are locked first; then the balances, in the order of the rows. `asked` has no row before
# `known` is complete, and `known` none before the time limit of its locks is set.
_MANY = """
WITH bounded AS MATERIALIZED (SELECT set_config('lock_timeout', $11, true) AS lock_timeout),
known AS MATERIALIZED (
    SELECT turn.turn_id FROM (
        SELECT id FROM unnest($1::text[]) AS id
        WHERE (SELECT lock_timeout FROM bounded) IS NOT NULL ORDER BY id
    ) AS wanted, LATERAL (
        SELECT turn_id FROM billing.turns WHERE turn_id = wanted.id FOR UPDATE
    ) AS turn
),
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[],
        $6::bigint[], $7::bigint[], $8::bigint[], $9::timestamptz[], $10::timestamptz[])
        WITH ORDINALITY AS row (turn_id, account_id, model, price_version, input, cached_input,
            output, amount, now, expire_time, number)
    WHERE (SELECT lock_timeout FROM bounded) IS NOT NULL AND (SELECT count(*) FROM known) >= 0
    ORDER BY number
)
SELECT held.* FROM asked, LATERAL billing.hold(turn_id, account_id, model, price_version, input,
    cached_input, output, amount, now, asked.expire_time) AS held
ORDER BY number
"""


async def hold_all(connection: Connection, rows: Sequence[HoldRow]) -> list[Held]:
    """Answers in the order of the rows.

    Holds of one account are decided in this order too. A group waits GROUP_LOCK_TIMEOUT_MS for a
    locked row at most, a single hold as long as its statement may take.
    """
    if len(rows) == 1:
        return [_held(row) for row in await connection.fetch(_ONE, *rows[0])]
    # By account, so that two groups that meet at their balances cannot wait for each other.
    order = sorted(range(len(rows)), key=lambda index: rows[index].account_id)
    columns = map(list, zip(*(rows[index] for index in order), strict=True))
    found = await connection.fetch(_MANY, *columns, str(GROUP_LOCK_TIMEOUT_MS))
    answers = dict(zip(order, map(_held, found), strict=True))
    return [answers[index] for index in range(len(rows))]


def _held(row: asyncpg.Record) -> Held:
    return Held(row["outcome"], row["held"] or 0, row["available"] or 0, row["expire_time"])
