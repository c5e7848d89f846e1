"""PostgreSQL: the pool, and its failures as reasons.

A connection is opened when it is needed, so the service starts before its store and comes back
with it. Lock order everywhere: turns (by id), balances (by payer), totals (by key).
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TypeAlias

import grpc

from mesh.chassis import postgres
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError

Connection: TypeAlias = postgres.Connection

ACQUIRE_TIMEOUT_S = 1.5
CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.5
RETRY_AFTER_S = 1.0
# Of a group of writes, for one locked row; then its rows are repeated one by one. Longer than any
# transaction of ours holds a lock: what takes longer is stuck, and must not hold up all accounts.
GROUP_LOCK_TIMEOUT_MS = 250


class Store:
    """The pool. `connection()` for single statements, `transaction()` for several."""

    def __init__(self, pool: postgres.Pool, connection_count_max: int) -> None:
        self._pool, self.connection_count_max = pool, connection_count_max

    @classmethod
    async def open(cls, dsn: str, connection_count_max: int = 16) -> "Store":
        """Makes the pool; it connects at the first query, not here."""
        pool = await postgres.open_pool(
            dsn,
            name="billing",
            connection_count_max=connection_count_max,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            command_timeout_s=COMMAND_TIMEOUT_S,
        )
        return cls(pool, connection_count_max)

    async def close(self) -> None:
        """Ends the connections; queries that run get a second."""
        await postgres.close_pool(self._pool)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection; MeshError STORE_UNAVAILABLE when there is none, or it fails inside."""
        with store_errors():
            async with postgres.connection_of(self._pool, ACQUIRE_TIMEOUT_S) as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed at the end, rolled back on an exception."""
        async with self.connection() as connection, connection.transaction():
            yield connection


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turns StoreUnavailableError into MeshError STORE_UNAVAILABLE."""
    try:
        yield
    except StoreUnavailableError as error:
        raise unavailable() from error


def unavailable() -> MeshError:
    """STORE_UNAVAILABLE."""
    return MeshError(
        grpc.StatusCode.UNAVAILABLE,
        "STORE_UNAVAILABLE",
        "The billing store does not answer, or too many wait for it; try again in a moment.",
        retry_after_s=RETRY_AFTER_S,
    )
