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
    """What billing.hold is asked, in the order of its parameters. Money in nano-USD a token."""

    turn_id: str
    account_id: str
    key_id: str
    model: str
    price_version: str
    input_nanousd: int
    cached_input_nanousd: int
    output_nanousd: int
    prompt_count: int
    output_count_min: int
    output_count_max: int
    now: dt.datetime
    expire_time: dt.datetime


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit (content.v1.Limit) that left less than was asked for, and whose it is (an id)."""

    limit: int
    payer_id: str


@dataclass(frozen=True, slots=True)
class Held:
    """Answer to a hold.

    Attributes:
        outcome: "held", "refused", "no_account" or "other_account".
        held_nanousd: what the turn's hold is worth; refused: what the worst case would be.
        granted_count: output tokens that it may generate.
        bound: why they are not all that were asked for; None: they are.
        available_nanousd: least money left of a limited budget; -1: none is limited.
        token_limit: tokens a minute of the payer with the fewest left; None: none is limited.
            Refused for want of parallel turns: how many may run.
        token_left: what is left of them.
        expire_time: when the hold ends by itself.
    """

    outcome: str
    held_nanousd: int
    granted_count: int
    bound: Bound | None
    available_nanousd: int
    token_limit: int | None
    token_left: int | None
    expire_time: dt.datetime


_ONE = "SELECT * FROM billing.hold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

# The lock order of all transactions is turns, then balances by their ids. So turns that are there
# already (held again) are locked first; then the balances of all payers. `paying` has no row before
# `known` is complete, `asked` none before both are, and `known` none before the time limit of its
# locks is set.
_MANY = """
WITH bounded AS MATERIALIZED (SELECT set_config('lock_timeout', $14, true) AS lock_timeout),
known AS MATERIALIZED (
    SELECT turn.turn_id FROM (
        SELECT id FROM unnest($1::text[]) AS id
        WHERE (SELECT lock_timeout FROM bounded) IS NOT NULL ORDER BY id
    ) AS wanted, LATERAL (
        SELECT turn_id FROM billing.turns WHERE turn_id = wanted.id FOR UPDATE
    ) AS turn
),
paying AS MATERIALIZED (
    SELECT balance.payer_id FROM (
        SELECT id FROM (
            SELECT unnest($2::text[]) AS id UNION SELECT unnest($3::text[])
            UNION SELECT above.id FROM unnest($2::text[]) AS account, LATERAL (
                SELECT organisation_id AS id FROM billing.balances WHERE payer_id = account
            ) AS above WHERE above.id IS NOT NULL
        ) AS payers
        WHERE (SELECT count(*) FROM known) >= 0 ORDER BY id COLLATE "C"
    ) AS wanted, LATERAL (
        SELECT payer_id FROM billing.balances WHERE payer_id = wanted.id FOR UPDATE
    ) AS balance
),
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[],
        $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::timestamptz[],
        $13::timestamptz[])
        WITH ORDINALITY AS row (turn_id, account_id, key_id, model, price_version, input, cached,
            output, prompt_count, output_min, output_max, now, expire_time, number)
    WHERE (SELECT count(*) FROM paying) >= 0
    ORDER BY number
)
SELECT held.* FROM asked, LATERAL billing.hold(turn_id, account_id, key_id, model, price_version,
    input, cached, output, prompt_count, output_min, output_max, now, asked.expire_time) AS held
ORDER BY number
"""


async def hold_all(connection: Connection, rows: Sequence[HoldRow]) -> list[Held]:
    """Answers in the order of the rows.

    Holds of one account are decided in this order too. A group waits GROUP_LOCK_TIMEOUT_MS for a
    locked row at most, a single hold as long as its statement may take.
    """
    if len(rows) == 1:
        return [_held(row) for row in await connection.fetch(_ONE, *rows[0])]
    columns = map(list, zip(*rows, strict=True))
    found = await connection.fetch(_MANY, *columns, str(GROUP_LOCK_TIMEOUT_MS))
    return list(map(_held, found))


def _held(row: asyncpg.Record) -> Held:
    granted = row["granted"]
    return Held(
        row["outcome"],
        row["held"] or 0,
        granted or 0,
        bound_of(row),
        row["available"] if row["available"] is not None else -1,
        row["token_limit"],
        row["token_left"],
        row["expire_time"],
    )


def bound_of(row: asyncpg.Record) -> Bound | None:
    """Which limit decided, of a row of billing.hold or billing.reserve."""
    return Bound(row["bound"], row["bound_payer"]) if row["bound"] else None
