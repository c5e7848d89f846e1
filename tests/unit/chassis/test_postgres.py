"""Which failures mean that PostgreSQL is away, and which are a fault of ours."""

import asyncio

import asyncpg
import pytest

from mesh.chassis.postgres import (
    UNAVAILABLE,
    StoreUnavailableError,
    close_pool,
    connection_of,
    open_pool,
    store_errors,
)


@pytest.mark.parametrize(
    "error",
    [
        *UNAVAILABLE,
        TimeoutError,
        ConnectionResetError,
        asyncpg.CannotConnectNowError,
        asyncpg.AdminShutdownError,
        asyncpg.TooManyConnectionsError,
        asyncpg.DeadlockDetectedError,
        asyncpg.SerializationError,
        asyncpg.InvalidPasswordError,
    ],
)
def test_a_store_that_is_away(error: type[Exception]) -> None:
    with pytest.raises(StoreUnavailableError, match=error.__name__), store_errors():
        raise error("reason")


class _NotEncodableError(asyncpg.InterfaceError, ValueError):
    """As asyncpg raises it for an argument of the wrong type."""


@pytest.mark.parametrize(
    "error",
    [_NotEncodableError, asyncpg.UniqueViolationError, asyncpg.UndefinedTableError, KeyError,
     asyncio.CancelledError],
)  # fmt: skip
def test_a_fault_of_ours_stays_what_it_is(error: type[BaseException]) -> None:
    with pytest.raises(error), store_errors():
        raise error("reason")


async def test_a_pool_opens_without_its_store() -> None:
    pool = await open_pool(
        "postgresql://x:y@127.0.0.1:1/none",
        name="test",
        connection_count_max=1,
        connect_timeout_s=1,
        command_timeout_s=1,
    )
    with pytest.raises(StoreUnavailableError):
        async with connection_of(pool):
            raise AssertionError("there is none")
    await close_pool(pool)
