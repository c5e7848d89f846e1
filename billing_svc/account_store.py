"""Accounts and keys in PostgreSQL. Each write is one transaction."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import asyncpg
from ulid import ULID

from billing_svc.accounts import Account, Key
from billing_svc.limits import TierLimits
from billing_svc.quota_store import month_of
from billing_svc.store import ACQUIRE_TIMEOUT_S, Connection, Store, unavailable

_ACCOUNT = """
    a.account_id, a.name, a.tier, b.monthly_budget_nanousd, a.create_time, a.close_time,
    a.jurisdiction, coalesce(b.organisation_id, ''), a.role
"""
ACCOUNT_COLUMN_COUNT = 9
_KEY = "key_id, account_id, prefix, scopes, name, create_time, expire_time, revoke_time"
_INSERT_KEY = f"""
INSERT INTO billing.keys (key_id, account_id, digest, prefix, scopes, name, request_id, create_time,
    expire_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (request_id) DO NOTHING RETURNING {_KEY}
"""  # noqa: S608 - a constant
_ACCOUNTS = "billing.accounts a JOIN billing.balances b ON b.payer_id = a.account_id"


# Strangers choose how many keys are looked up, so that they have only so many connections, and at
# most half of the pool: the rest is for holds and settlements.
LOOKUP_CONNECTION_COUNT_MAX = 4


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is made with; the secret itself is never here."""

    account_id: str
    digest: bytes
    prefix: str
    scopes: tuple[str, ...]
    name: str
    lifetime: dt.timedelta | None
    request_id: str


class AccountStore:
    """Accounts and keys.

    Args:
        store: the pool.
        tiers: tier -> what a new account of it may use.
    """

    def __init__(self, store: Store, tiers: Mapping[int, TierLimits]) -> None:
        self._store, self._tiers = store, tiers
        self._lookups = asyncio.Semaphore(
            max(1, min(LOOKUP_CONNECTION_COUNT_MAX, store.connection_count_max // 2))
        )

    async def resolve_key(self, digest: bytes) -> tuple[Account, Key] | None:
        """The key with this digest and its account, in one round trip; None: no such key."""
        async with self._lookup(), self._store.connection() as connection:
            row = await connection.fetchrow(
                f"SELECT {_ACCOUNT}, k.key_id, k.account_id, k.prefix, k.scopes, k.name,"  # noqa: S608
                " k.create_time, k.expire_time, k.revoke_time"
                f" FROM {_ACCOUNTS} JOIN billing.keys k USING (account_id) WHERE k.digest = $1",
                digest,
            )
        if row is None:
            return None
        values = tuple(row)
        return Account(*values[:ACCOUNT_COLUMN_COUNT]), _key(values[ACCOUNT_COLUMN_COUNT:])

    @contextlib.asynccontextmanager
    async def _lookup(self) -> AsyncIterator[None]:
        """One of the few connections that strangers' keys may have."""
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
                await self._lookups.acquire()
        except TimeoutError:
            raise unavailable() from None
        try:
            yield
        finally:
            self._lookups.release()

    async def resolve_subject(
        self, issuer: str, subject: str, tier: int, now: dt.datetime
    ) -> Account:
        """The subject's account; made, or moved to the tier, when that is needed."""
        async with self._store.connection() as connection:
            account = await _account_of_subject(connection, issuer, subject)
        if account is None:
            await self._create(subject[:200], tier, None, now, issuer=issuer, subject=subject)
        elif account.tier != tier and account.close_time is None:
            await self._change_tier(account.account_id, tier)
        else:
            return account
        async with self._store.connection() as connection:
            account = await _account_of_subject(connection, issuer, subject)
        assert account is not None  # accounts are never deleted
        return account

    async def create_account(
        self,
        request_id: str,
        name: str,
        tier: int,
        budget: int | None,
        now: dt.datetime,
        *,
        jurisdiction: str = "",
    ) -> Account:
        """A new account, or the one this request made before."""
        account_id = await self._create(
            name, tier, budget, now, request_id=request_id, jurisdiction=jurisdiction
        )
        async with self._store.connection() as connection:
            row = await connection.fetchrow(
                f"SELECT {_ACCOUNT} FROM {_ACCOUNTS}"  # noqa: S608 - constants
                " WHERE a.account_id = $1 OR a.request_id = $2",
                *(account_id, request_id or None),
            )
        assert row is not None
        return Account(*row)

    async def list_accounts(self, after_id: str, count_max: int) -> list[Account]:
        """Accounts after `after_id`, oldest first."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                f"SELECT {_ACCOUNT} FROM {_ACCOUNTS}"  # noqa: S608 - constants
                " WHERE a.account_id > $1 ORDER BY a.account_id LIMIT $2",
                *(after_id, count_max),
            )
        return [Account(*row) for row in rows]

    async def account(self, account_id: str) -> Account | None:
        """The account; None: no such one."""
        async with self._store.connection() as connection:
            row = await connection.fetchrow(
                f"SELECT {_ACCOUNT} FROM {_ACCOUNTS} WHERE a.account_id = $1",  # noqa: S608
                account_id,
            )
        return Account(*row) if row else None

    async def set_budget(self, account_id: str, budget: int) -> Account | None:
        """The account with its new budget; None: no such account."""
        async with self._store.transaction() as connection:
            await connection.execute(
                "UPDATE billing.balances SET monthly_budget_nanousd = $2,"
                " budget_is_default = false WHERE payer_id = $1",
                *(account_id, budget),
            )
            row = await connection.fetchrow(
                f"SELECT {_ACCOUNT} FROM {_ACCOUNTS} WHERE a.account_id = $1",  # noqa: S608
                account_id,
            )
        return Account(*row) if row else None

    async def create_key(self, new: NewKey, now: dt.datetime) -> tuple[Key, bool] | None:
        """The key, and whether this call made it; None: no such account."""
        expire_time = None if new.lifetime is None else now + new.lifetime
        arguments = (
            *(f"key_{ULID()}", new.account_id, new.digest, new.prefix, list(new.scopes)),
            *(new.name, new.request_id or None, now, expire_time),
        )
        async with self._store.connection() as connection:
            try:
                row = await connection.fetchrow(_INSERT_KEY, *arguments)
            except asyncpg.ForeignKeyViolationError:
                return None
            if row is not None:
                return _key(tuple(row)), True
            row = await connection.fetchrow(
                f"SELECT {_KEY} FROM billing.keys WHERE request_id = $1",  # noqa: S608
                new.request_id,
            )
        assert row is not None
        return _key(tuple(row)), False

    async def list_keys(self, account_id: str, after_id: str, count_max: int) -> list[Key]:
        """Keys of an account after `after_id`, oldest first."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(
                f"SELECT {_KEY} FROM billing.keys"  # noqa: S608 - a constant
                " WHERE account_id = $1 AND key_id > $2 ORDER BY key_id LIMIT $3",
                *(account_id, after_id, count_max),
            )
        return [_key(tuple(row)) for row in rows]

    async def revoke_key(self, key_id: str, now: dt.datetime) -> Key | None:
        """The revoked key; the first revocation's time stays. None: no such key."""
        async with self._store.connection() as connection:
            row = await connection.fetchrow(
                f"UPDATE billing.keys SET revoke_time = coalesce(revoke_time, $2)"  # noqa: S608
                f" WHERE key_id = $1 RETURNING {_KEY}",
                *(key_id, now),
            )
        return _key(tuple(row)) if row else None

    async def _create(
        self,
        name: str,
        tier: int,
        budget: int | None,
        now: dt.datetime,
        *,
        request_id: str = "",
        issuer: str | None = None,
        subject: str | None = None,
        jurisdiction: str = "",
    ) -> str:
        """Makes account and balance, unless request_id or subject has one; gives the new id."""
        account_id = f"acc_{ULID()}"
        defaults = self._tiers[tier]
        amount = defaults.monthly_budget_nanousd if budget is None else budget
        async with self._store.connection() as connection:
            await connection.execute(
                """
                WITH made AS (
                    INSERT INTO billing.accounts
                        (account_id, name, tier, issuer, subject, request_id, create_time,
                         jurisdiction)
                    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                    ON CONFLICT DO NOTHING RETURNING account_id
                )
                INSERT INTO billing.balances
                    (payer_id, monthly_budget_nanousd, budget_is_default, period,
                     tokens_per_minute, parallel_max)
                SELECT account_id, $9, $10, $11, $12, $13 FROM made
                """,
                *(account_id, name, tier, issuer, subject, request_id or None, now),
                *(jurisdiction, amount, budget is None, month_of(now)),
                *(defaults.tokens_per_minute, defaults.parallel_max),
            )
        return account_id

    async def _change_tier(self, account_id: str, tier: int) -> None:
        # Defaults follow the tier; what the operator set stays.
        limits = self._tiers[tier]
        async with self._store.transaction() as connection:
            await connection.execute(
                "UPDATE billing.balances SET monthly_budget_nanousd = $2"
                " WHERE payer_id = $1 AND budget_is_default",
                *(account_id, limits.monthly_budget_nanousd),
            )
            await connection.execute(
                "UPDATE billing.balances SET tokens_per_minute = $2, parallel_max = $3"
                " WHERE payer_id = $1 AND limits_are_default",
                *(account_id, limits.tokens_per_minute, limits.parallel_max),
            )
            await connection.execute(
                "UPDATE billing.accounts SET tier = $2 WHERE account_id = $1", account_id, tier
            )


async def _account_of_subject(connection: Connection, issuer: str, subject: str) -> Account | None:
    row = await connection.fetchrow(
        f"SELECT {_ACCOUNT} FROM {_ACCOUNTS}"  # noqa: S608 - constants
        " WHERE a.issuer = $1 AND a.subject = $2",
        *(issuer, subject),
    )
    return Account(*row) if row else None


def _key(values: tuple[object, ...]) -> Key:
    key_id, account_id, prefix, scopes, *rest = values
    return Key(key_id, account_id, prefix, tuple(scopes), *rest)  # type: ignore[arg-type]
