"""Row-level security, tested by trying: the role of the service, without the service."""

import os
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest
from ulid import ULID

from mesh import schema

TABLES = ("thread", "message", "request")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = Path(__file__).resolve().parents[2] / "conversation_svc/schema"


async def name_account(connection: asyncpg.Connection, account: str) -> None:
    await connection.execute("SELECT set_config('chatmesh.account_id', $1, true)", account)


async def fill(connection: asyncpg.Connection, account: str, thread_id: str) -> None:
    async with connection.transaction():
        await name_account(connection, account)
        await connection.execute(
            "INSERT INTO conversation.thread VALUES ($1, $2, 't', 'm', $3, $3, NULL, 1, 1)",
            *(account, thread_id, NOW),
        )
        await connection.execute(
            "INSERT INTO conversation.message"
            " VALUES ($1, $2, 1, 'msg', 2, 'secret', 1, 'turn', $3, '', '')",
            *(account, thread_id, NOW),
        )
        await connection.execute(
            "INSERT INTO conversation.request VALUES ($1, 'append', 'r', 'd', NULL, 1, $2)",
            *(account, NOW),
        )


@pytest.fixture
async def service(postgres_dsn_for: Callable[[str], str]) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_dsn_for("conversation"))
    yield connection
    await connection.close()


@pytest.fixture
async def theirs(service: asyncpg.Connection) -> tuple[str, str]:
    """Account and thread of somebody else."""
    account, thread_id = f"acc_{ULID()}", f"thr_{ULID()}"
    await fill(service, account, thread_id)
    return account, thread_id


async def test_the_role_has_no_power(service: asyncpg.Connection) -> None:
    row = await service.fetchrow(
        "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles"
        " WHERE rolname = current_user"
    )
    assert not any(row)
    owner = await service.fetchval(
        "SELECT relowner = current_user::regrole FROM pg_class"
        " WHERE oid = 'conversation.thread'::regclass"
    )
    assert owner is False


@pytest.mark.parametrize("table", TABLES)
async def test_nothing_is_visible_without_an_account(
    service: asyncpg.Connection, theirs: tuple[str, str], table: str
) -> None:
    assert await service.fetchval(f"SELECT count(*) FROM conversation.{table}") == 0
    async with service.transaction():  # the setting of a past transaction is not left behind
        await name_account(service, "")
        assert await service.fetchval(f"SELECT count(*) FROM conversation.{table}") == 0


@pytest.mark.parametrize("table", TABLES)
async def test_only_the_own_account_is_visible(
    service: asyncpg.Connection, theirs: tuple[str, str], table: str
) -> None:
    mine = f"acc_{ULID()}"
    await fill(service, mine, theirs[1])
    async with service.transaction():
        await name_account(service, mine)
        accounts = await service.fetch(f"SELECT account_id FROM conversation.{table}")
        assert [row["account_id"] for row in accounts] == [mine]


async def test_nothing_of_another_account_can_be_changed(
    service: asyncpg.Connection, theirs: tuple[str, str]
) -> None:
    account, thread_id = theirs
    async with service.transaction():
        await name_account(service, f"acc_{ULID()}")
        for statement in (
            "UPDATE conversation.thread SET title = 'x' WHERE account_id = $1",
            "UPDATE conversation.thread SET delete_time = now() WHERE account_id = $1",
            "UPDATE conversation.request SET answer = 'x' WHERE account_id = $1",
        ):
            assert await service.execute(statement, account) == "UPDATE 0"
        locked = "SELECT 1 FROM conversation.thread WHERE id = $1 FOR UPDATE"
        assert await service.fetch(locked, thread_id) == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO conversation.thread VALUES ($1, $2 || 'x', '', '', now(), now(), NULL, 0, 0)",
        "INSERT INTO conversation.message VALUES ($1, $2, 2, 'm', 2, '', 1, '', now(), '', '')",
        "INSERT INTO conversation.request VALUES ($1, 'x', $2, '', NULL, NULL, now())",
    ],
)
async def test_nothing_can_be_added_to_another_account(
    service: asyncpg.Connection, theirs: tuple[str, str], statement: str
) -> None:
    async with service.transaction():
        await name_account(service, f"acc_{ULID()}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await service.execute(statement, *theirs)


async def test_functions_see_the_named_account_only(
    service: asyncpg.Connection, theirs: tuple[str, str]
) -> None:
    account, thread_id = theirs
    other = f"acc_{ULID()}"
    get = "SELECT count(*) FROM conversation.get_thread($1, $2)"
    assert await service.fetchval(get, account, thread_id) == 1
    assert await service.fetchval(get, other, thread_id) == 0
    tail = "SELECT count(*) FROM conversation.read_tail($1, $2, 9, 9, 999)"
    assert await service.fetchval(tail, account, thread_id) == 1
    assert await service.fetchval(tail, other, thread_id) == 0
    listing = "SELECT count(*) FROM conversation.list_messages($1, $2, 0, 9, 999)"
    assert await service.fetchval(listing, other, thread_id) == 0
    threads = "SELECT count(*) FROM conversation.list_threads($1, NULL, NULL, 9)"
    assert await service.fetchval(threads, account) == 1
    assert await service.fetchval(threads, other) == 0
    # And the account that a function named is forgotten with its transaction.
    assert await service.fetchval("SELECT count(*) FROM conversation.thread") == 0


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM conversation.thread",
        "DELETE FROM conversation.message",
        "DELETE FROM conversation.request",
        "UPDATE conversation.message SET content = ''",
        "UPDATE conversation.thread SET account_id = 'x'",
        "UPDATE conversation.request SET content_digest = ''",
        "TRUNCATE conversation.message",
        "ALTER TABLE conversation.thread DISABLE ROW LEVEL SECURITY",
        "DROP POLICY own_account ON conversation.thread",
        "CREATE TABLE conversation.mine (x int)",
        "SET ROLE chatmesh_billing",
    ],
)
async def test_what_the_role_may_not_do_at_all(service: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await service.execute(statement)


async def test_the_purge_only_reaches_what_is_deleted(
    service: asyncpg.Connection, theirs: tuple[str, str]
) -> None:
    account, thread_id = theirs
    await service.execute("SELECT conversation.purge_threads(now() + '1 day', 1000)")
    get = "SELECT count(*) FROM conversation.get_thread($1, $2)"
    assert await service.fetchval(get, account, thread_id) == 1


async def test_an_owner_without_power_is_bound_as_well(
    empty_database: str, postgres_dsn_for: Callable[[str], str]
) -> None:
    """Production owners are no superusers: FORCE holds for them, and the purge still works."""
    postgres_dsn_for("conversation")  # makes the role
    role, password = f"plain_owner_{os.getpid()}", secrets.token_hex(8)
    admin = await asyncpg.connect(empty_database)
    database = urlsplit(empty_database).path.lstrip("/")
    await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    await admin.execute(f'GRANT CREATE ON DATABASE "{database}" TO {role}')
    await admin.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {role}")
    parts = urlsplit(empty_database)
    location = f"{quote(role)}:{password}@{parts.netloc.rpartition('@')[2]}"
    owner_dsn = urlunsplit(parts._replace(netloc=location))
    try:
        assert await schema.migrate(owner_dsn, [SCHEMA]) == [
            f"conversation/{path.name}" for path in sorted(SCHEMA.glob("*.sql"))
        ]
        owner = await asyncpg.connect(owner_dsn)
        account, thread_id = f"acc_{ULID()}", f"thr_{ULID()}"
        await fill(owner, account, thread_id)
        try:
            assert await owner.fetchval("SELECT count(*) FROM conversation.message") == 0
            assert await owner.fetchval("SELECT count(*) FROM conversation.thread") == 0
            purge = "SELECT conversation.purge_threads(now(), 10)"
            assert await owner.fetchval(purge) == 0
            async with owner.transaction():
                await name_account(owner, account)
                await owner.execute("UPDATE conversation.thread SET delete_time = $1", NOW)
            assert await owner.fetchval("SELECT conversation.purge_threads($1, 10)", NOW) == 0
            assert await owner.fetchval(purge) == 1
            assert await owner.fetchval("SELECT conversation.purge_requests(now(), 10)") == 1
            assert await admin.fetchval("SELECT count(*) FROM conversation.message") == 0
        finally:
            await owner.close()
    finally:
        await admin.execute(f"DROP OWNED BY {role} CASCADE")
        await admin.execute(f"DROP ROLE {role}")
        await admin.close()


async def test_pages_are_found_without_comparing_each_with_each(
    service: asyncpg.Connection,
) -> None:
    """However little the planner knows of the table: 1,000 messages took it over 3 s."""
    rows = await service.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'conversation'::regnamespace"
    )
    settings_of = {row["proname"]: row["proconfig"] for row in rows}
    for name in ("list_messages", "read_tail"):
        assert settings_of[name] == ["enable_nestloop=off"]
