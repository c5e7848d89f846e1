"""Organisations, members and limits in PostgreSQL. Each write is one transaction."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
from ulid import ULID

from billing_svc.limits import NO_LIMIT, Limits, LimitsChange, Member
from billing_svc.quota_store import minute_of, month_of
from billing_svc.store import Connection, Store

MEMBER_COUNT_MAX = 1000
OWNER = 2  # billing.v1.Role

# $1 is the month that counts, $2 the minute.
_LIMITS = """
    payer_id, monthly_budget_nanousd, CASE WHEN period >= $1 THEN spent_nanousd ELSE 0 END,
    reserved_nanousd, tokens_per_minute,
    CASE WHEN minute >= $2 THEN minute_token_count ELSE 0 END, parallel_max, running
"""


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation with its limits and its first MEMBER_COUNT_MAX members."""

    organisation_id: str
    name: str
    create_time: dt.datetime
    limits: Limits
    members: tuple[Member, ...]


class LimitStore:
    """What payers may use."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create_organisation(
        self, request_id: str, name: str, budget: int, now: dt.datetime
    ) -> Organisation:
        """A new organisation, or the one this request made before."""
        made = f"org_{ULID()}"
        async with self._store.connection() as connection:
            await connection.execute(
                """
                WITH made AS (
                    INSERT INTO billing.organisations
                        (organisation_id, name, request_id, create_time)
                    VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING organisation_id
                )
                INSERT INTO billing.balances
                    (payer_id, monthly_budget_nanousd, budget_is_default, period)
                SELECT organisation_id, $5, false, $6 FROM made
                """,
                *(made, name, request_id or None, now, budget, month_of(now)),
            )
            row = await connection.fetchrow(
                "SELECT organisation_id, name, create_time FROM billing.organisations"
                " WHERE organisation_id = $1 OR request_id = $2",
                *(made, request_id or None),
            )
            assert row is not None
            return await _organisation(connection, row, now)

    async def list_organisations(
        self, after_id: str, count_max: int, now: dt.datetime
    ) -> list[Organisation]:
        """Organisations after `after_id`, oldest first."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT organisation_id, name, create_time FROM billing.organisations"
                " WHERE organisation_id > $1 ORDER BY organisation_id LIMIT $2",
                *(after_id, count_max),
            )
            return [await _organisation(connection, row, now) for row in rows]

    async def set_member(self, account_id: str, organisation_id: str, role: int) -> str:
        """Puts the account into the organisation, or, with "", into none.

        Returns:
            "set", "no_account" or "no_organisation".
        """
        async with self._store.transaction() as connection:
            try:
                status = await connection.execute(
                    "UPDATE billing.balances SET organisation_id = $2 WHERE payer_id = $1"
                    " AND payer_id IN (SELECT account_id FROM billing.accounts)",
                    *(account_id, organisation_id or None),
                )
            except asyncpg.ForeignKeyViolationError:
                return "no_organisation"
            await connection.execute(
                "UPDATE billing.accounts SET role = $2 WHERE account_id = $1",
                *(account_id, role if organisation_id else 0),
            )
        return "set" if status.endswith(" 1") else "no_account"

    async def set_limits(
        self, payer_id: str, change: LimitsChange, now: dt.datetime
    ) -> Limits | None:
        """The limits after the change; None: no such key, account or organisation."""
        async with self._store.transaction() as connection:
            await connection.execute(
                "INSERT INTO billing.balances (payer_id, monthly_budget_nanousd,"
                " budget_is_default, period) SELECT key_id, $2, false, $3 FROM billing.keys"
                " WHERE key_id = $1 ON CONFLICT DO NOTHING",
                *(payer_id, NO_LIMIT, month_of(now)),
            )
            await connection.execute(
                """
                UPDATE billing.balances SET
                    monthly_budget_nanousd = coalesce($2, monthly_budget_nanousd),
                    budget_is_default = budget_is_default AND $2::bigint IS NULL,
                    tokens_per_minute = coalesce($3, tokens_per_minute),
                    parallel_max = coalesce($4, parallel_max),
                    limits_are_default =
                        limits_are_default AND $3::bigint IS NULL AND $4::integer IS NULL
                WHERE payer_id = $1
                """,
                *(payer_id, change.monthly_budget_nanousd, change.tokens_per_minute),
                change.parallel_max,
            )
            found = await _limits(connection, [payer_id], now)
        return found[0] if found else None

    async def limits_of(self, account_id: str, now: dt.datetime) -> list[Limits]:
        """Of the account, of its keys that have some, and of its organisation if it owns that.

        Sorted by id; empty: no such account.
        """
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                f"SELECT {_LIMITS} FROM billing.balances WHERE payer_id = $3"  # noqa: S608
                " OR payer_id IN (SELECT key_id FROM billing.keys WHERE account_id = $3)"
                " OR payer_id = (SELECT b.organisation_id FROM billing.balances AS b"
                "  JOIN billing.accounts AS a ON a.account_id = b.payer_id"
                "  WHERE b.payer_id = $3 AND a.role = $4) ORDER BY payer_id",
                *(month_of(now), minute_of(now), account_id, OWNER),
            )
        return [Limits(*row) for row in rows]

    async def key_names(self, account_id: str) -> dict[str, str]:
        """Names of the account's keys by id."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                "SELECT key_id, name FROM billing.keys WHERE account_id = $1", account_id
            )
        return {row["key_id"]: row["name"] for row in rows}


async def _limits(
    connection: Connection, payer_ids: Sequence[str], now: dt.datetime
) -> list[Limits]:
    rows = await connection.fetch(
        f"SELECT {_LIMITS} FROM billing.balances WHERE payer_id = ANY($3)",  # noqa: S608
        *(month_of(now), minute_of(now), list(payer_ids)),
    )
    return [Limits(*row) for row in rows]


async def _organisation(
    connection: Connection, row: asyncpg.Record, now: dt.datetime
) -> Organisation:
    (limits,) = await _limits(connection, [row["organisation_id"]], now)
    members = await connection.fetch(
        "SELECT a.account_id, a.name, a.role FROM billing.balances AS b"
        " JOIN billing.accounts AS a ON a.account_id = b.payer_id"
        " WHERE b.organisation_id = $1 ORDER BY a.account_id LIMIT $2",
        *(row["organisation_id"], MEMBER_COUNT_MAX),
    )
    return Organisation(
        row["organisation_id"],
        row["name"],
        row["create_time"],
        limits,
        tuple(Member(*member) for member in members),
    )
