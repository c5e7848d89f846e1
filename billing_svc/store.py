"""PostgreSQL: the pool, its failures as reasons, and the balances.

A connection is opened when it is needed, so the service starts before its store and comes back
with it. Lock order everywhere: turns (by id), balances (by account), totals (by key).
"""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import asyncpg
import grpc
import structlog
from asyncpg.pool import PoolConnectionProxy

from mesh.chassis.errors import MeshError

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

ACQUIRE_TIMEOUT_S = 1.5
CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.5
IDLE_TIMEOUT_S = 300.0
RETRY_AFTER_S = 1.0

# What a store that is away, starting, stopping, full or overtaken by another does to a query.
_UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
)

log = structlog.get_logger()


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turns the failures of an unavailable store into STORE_UNAVAILABLE."""
    try:
        yield
    except _UNAVAILABLE as error:
        if isinstance(error, ValueError):  # a value asyncpg cannot encode: our fault, not away
            raise
        log.warning("store_unavailable", error=type(error).__name__)
        raise MeshError(
            grpc.StatusCode.UNAVAILABLE,
            "STORE_UNAVAILABLE",
            "The billing store does not answer; try again in a moment.",
            retry_after_s=RETRY_AFTER_S,
        ) from error


class Store:
    """The pool. `connection()` for single statements, `transaction()` for several."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool

    @classmethod
    async def open(cls, dsn: str, connection_count_max: int = 16) -> "Store":
        """Makes the pool; it connects at the first query, not here."""

        async def keep(_: Any) -> None:
            """No reset on release: it costs a round trip, and we leave no session state."""

        pool = asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=connection_count_max,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            max_inactive_connection_lifetime=IDLE_TIMEOUT_S,
            reset=keep,
            server_settings={"application_name": "billing", "jit": "off"},
        )
        await pool
        return cls(pool)

    async def close(self) -> None:
        """Ends the connections; queries that run get a second."""
        try:
            await asyncio.wait_for(self._pool.close(), 1)
        except TimeoutError:
            self._pool.terminate()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection; MeshError STORE_UNAVAILABLE when there is none, or it fails inside."""
        with store_errors():
            async with self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
                try:
                    yield connection
                except asyncpg.InternalClientError:
                    # The server's farewell came while it was idle, its end of file did not yet.
                    connection.terminate()
                    raise

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed at the end, rolled back on an exception."""
        async with self.connection() as connection, connection.transaction():
            yield connection


async def change_balances(
    connection: Connection, deltas: dict[str, tuple[int, int]], month: dt.date
) -> None:
    """Adds (reserved, spent) to accounts' balances, in the order of their ids."""
    rows = [(account, *delta, month) for account, delta in sorted(deltas.items()) if any(delta)]
    await connection.executemany(
        """
        UPDATE billing.balances SET
            reserved_nanousd = reserved_nanousd + $2,
            spent_nanousd = CASE WHEN period < $4 THEN 0 ELSE spent_nanousd END + $3,
            period = greatest(period, $4)
        WHERE account_id = $1
        """,
        rows,
    )
