"""The deployer against a real database: once each, in order, by several at once, or refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from mesh import schema


def folder(tmp_path: Path, **files: str) -> Path:
    path = tmp_path / "shop_svc" / "schema"
    path.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (path / f"{name.removeprefix('n')}.sql").write_text(sql)
    return path


async def test_each_file_is_applied_once_and_in_order(tmp_path: Path, empty_database: str) -> None:
    first = folder(
        tmp_path, n001_shop="CREATE TABLE a (x int)", n002_more="ALTER TABLE a ADD y int"
    )
    assert await schema.migrate(empty_database, [first]) == [
        "shop/001_shop.sql",
        "shop/002_more.sql",
    ]
    assert await schema.migrate(empty_database, [first]) == []
    folder(tmp_path, n003_index="CREATE INDEX ON a (y)")
    assert await schema.migrate(empty_database, [first]) == ["shop/003_index.sql"]


async def test_deployers_at_once_take_turns(tmp_path: Path, empty_database: str) -> None:
    path = folder(tmp_path, n001_shop="CREATE TABLE a (x int)")
    done = await asyncio.gather(*(schema.migrate(empty_database, [path]) for _ in range(5)))
    assert sorted(map(len, done)) == [0, 0, 0, 0, 1]


async def test_a_file_that_fails_leaves_nothing(tmp_path: Path, empty_database: str) -> None:
    path = folder(tmp_path, n001_shop="CREATE TABLE a (x int); SELECT nonsense")
    with pytest.raises(schema.SchemaError, match=r"001_shop\.sql failed and was rolled back"):
        await schema.migrate(empty_database, [path])
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("SELECT to_regclass('a')") is None
    await connection.close()


async def test_a_changed_file_is_refused_with_the_way_out(
    tmp_path: Path, empty_database: str
) -> None:
    path = folder(tmp_path, n001_shop="CREATE TABLE a (x int)")
    await schema.migrate(empty_database, [path])
    folder(tmp_path, n001_shop="CREATE TABLE a (x bigint)")
    with pytest.raises(schema.SchemaError, match="put the change into a new file"):
        await schema.migrate(empty_database, [path])


async def test_a_new_file_below_the_last_is_refused(tmp_path: Path, empty_database: str) -> None:
    path = folder(tmp_path, n002_shop="CREATE TABLE a (x int)")
    await schema.migrate(empty_database, [path])
    folder(tmp_path, n001_late="CREATE TABLE b (x int)")
    with pytest.raises(schema.SchemaError, match="give it a number above 002"):
        await schema.migrate(empty_database, [path])


async def test_an_older_code_does_not_touch_a_newer_schema(
    tmp_path: Path, empty_database: str
) -> None:
    path = folder(tmp_path, n001_shop="CREATE TABLE a (x int)", n002_next="CREATE TABLE b (x int)")
    await schema.migrate(empty_database, [path])
    next(path.glob("002*")).unlink()
    with pytest.raises(schema.SchemaError, match=r"newer version .*002_next.*run that version"):
        await schema.migrate(empty_database, [path])


@pytest.mark.parametrize(
    ("names", "message"),
    [(("n001_a", "n001_b"), "stands twice"), (("n1_short",), "NNN_name.sql")],
)
def test_bad_file_names(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    path = folder(tmp_path, **dict.fromkeys(names, "SELECT 1"))
    with pytest.raises(schema.SchemaError, match=message):
        schema.read_migrations(path)


async def test_a_powerful_role_is_refused(postgres_owner_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_owner_dsn)
    await connection.execute("CREATE ROLE chatmesh_mighty BYPASSRLS")
    try:
        with pytest.raises(schema.SchemaError, match="NOBYPASSRLS"):
            await schema.create_roles(postgres_owner_dsn, {"mighty": "x"})
    finally:
        await connection.execute("DROP ROLE chatmesh_mighty")
        await connection.close()


async def test_roles_are_plain_and_repeatable(
    postgres_owner_dsn: str, postgres_dsn_for: Callable[[str], str]
) -> None:
    awkward = "it's a \\ p@ss/wörd"
    for _ in range(2):
        await schema.create_roles(postgres_owner_dsn, {"awkward": awkward})
    connection = await asyncpg.connect(schema.service_dsn(postgres_owner_dsn, "awkward", awkward))
    assert await connection.fetchval("SELECT current_user") == "chatmesh_awkward"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.fetch("SELECT * FROM public.schema_migrations")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("CREATE TABLE public.mine (x int)")
    await connection.close()
