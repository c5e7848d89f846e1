"""PostgreSQL as every store sees it: a pool that may be away, and which failures mean that it is.

Exception
└── StoreUnavailableError    PostgreSQL cannot serve now; the next call connects anew
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import asyncpg
import structlog
from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

IDLE_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 1.0

# The connection is gone, or never came.
CONNECTION_LOST = (
    OSError,  # also TimeoutError
    asyncpg.InterfaceError,  # closed under us
    asyncpg.InternalClientError,  # the server's last message came while it was idle
    asyncpg.PostgresConnectionError,
)
# A store that is away, starting, stopping, full, not deployed yet, or overtaken by another.
UNAVAILABLE = (
    *CONNECTION_LOST,
    asyncpg.OperatorInterventionError,  # starting, stopping, cancelled
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TransactionRollbackError,  # a deadlock, a serialisation failure
    asyncpg.ReadOnlySQLTransactionError,  # a replica, during a failover
)

log = structlog.get_logger()


class StoreUnavailableError(Exception):
    """PostgreSQL does not answer; the pool reconnects with the next call."""


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turns the failures of an unavailable store into StoreUnavailableError."""
    try:
        yield
    except UNAVAILABLE as error:
        if isinstance(error, ValueError):  # a value asyncpg cannot encode: our fault, not away
            raise
        log.warning("store_unavailable", error=type(error).__name__)
        raise StoreUnavailableError(f"{type(error).__name__}: {error}") from error


async def open_pool(
    dsn: str,
    *,
    name: str,
    connection_count_max: int,
    connect_timeout_s: float,
    command_timeout_s: float,
) -> Pool:
    """A pool that connects at the first query: the store may come up later.

    Args:
        dsn: of the service's own role.
        name: shown by pg_stat_activity.
    """
    pool = asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=connection_count_max,
        timeout=connect_timeout_s,
        command_timeout=command_timeout_s,
        max_inactive_connection_lifetime=IDLE_TIMEOUT_S,
        reset=_keep,
        server_settings={"application_name": name, "jit": "off"},
    )
    await pool
    return pool


async def close_pool(pool: Pool) -> None:
    """Ends the connections; queries that run get a second."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await pool.close()
    except TimeoutError:
        pool.terminate()


@contextlib.asynccontextmanager
async def connection_of(pool: Pool, timeout_s: float | None = None) -> AsyncIterator[Connection]:
    """A connection of the pool; waits at most `timeout_s` for a free one.

    Raises:
        StoreUnavailableError: there is none, or it fails inside.
    """
    with store_errors():
        async with pool.acquire(timeout=timeout_s) as connection:
            try:
                yield connection
            except asyncpg.InternalClientError:
                # The server ended it while it was idle, and the end of file has not come yet.
                connection.terminate()
                raise


async def _keep(_: Any) -> None:
    """No reset on release: it costs a round trip, and no service leaves session state."""
