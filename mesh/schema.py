"""The deployer: database, roles and tables of the services, before they start.

Each service that owns tables keeps them in `X_svc/schema/NNN_name.sql`. The files are applied in
order of their numbers, once each, in one transaction each, by the database's owner; a service
itself only gets a role (`chatmesh_billing`, …) with the grants that its files name.

    python -m mesh.schema          with DATABASE_URL of the owner: for operators

Applied files are remembered with their digest in `public.schema_migrations`. An applied file never
changes: a change is a new file.
"""

import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

ROLE_PREFIX = "chatmesh_"
# "chatmesh" in ASCII: one deployer at a time in a database, the others wait.
ADVISORY_LOCK_KEY = 0x636861746D657368
CONNECT_TIMEOUT_S = 10.0
_NAME = re.compile(r"(\d{3})_[a-z0-9_]+\.sql")

_LEDGER_OF_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS public.schema_migrations (
    service text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    apply_time timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (service, number)
)
"""


class SchemaError(Exception):
    """The tables cannot be brought to the wanted state; the message says what to do."""


class Migration(NamedTuple):
    """One file of a service's `schema/` folder."""

    service: str
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def schema_folders(root: Path) -> list[Path]:
    """The `schema/` folders of the services of a checkout."""
    return sorted(path for path in root.glob("*_svc/schema") if path.is_dir())


def read_migrations(folder: Path) -> list[Migration]:
    """Reads `billing_svc/schema` and the like, in order.

    Raises:
        SchemaError: a file name is not NNN_name.sql, or a number stands twice.
    """
    service = folder.parent.name.removesuffix("_svc")
    migrations: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if not match:
            raise SchemaError(f"{path}: name it NNN_name.sql, such as 002_index.sql")
        number = int(match[1])
        if any(number == other.number for other in migrations):
            raise SchemaError(f"{path}: number {match[1]} stands twice: give it the next free one")
        migrations.append(Migration(service, number, path.name, path.read_text()))
    return migrations


def pending(wanted: list[Migration], applied: Mapping[int, tuple[str, str]]) -> list[Migration]:
    """Those of one service that are still to apply.

    Args:
        wanted: the service's files, in order.
        applied: number -> (name, digest) of what the database has.

    Raises:
        SchemaError: an applied file was changed, a new one stands before an applied one, or the
            database has one that this code does not know.
    """
    last = max(applied, default=-1)
    unknown = sorted(applied.keys() - {migration.number for migration in wanted})
    if unknown:
        names = ", ".join(applied[number][0] for number in unknown)
        raise SchemaError(
            f"the database was changed by a newer version of chatmesh ({wanted[0].service}: "
            f"{names}), which this one does not know and might damage: run that version or a newer "
            "one, or restore a backup from before"
        )
    result: list[Migration] = []
    for migration in wanted:
        if migration.number in applied:
            _check_unchanged(migration, *applied[migration.number])
        elif migration.number < last:
            raise SchemaError(
                f"{migration.service}/{migration.name} comes before {last:03d}, which is applied: "
                f"give it a number above {last:03d}"
            )
        else:
            result.append(migration)
    return result


def _check_unchanged(migration: Migration, name: str, digest: str) -> None:
    if migration.digest != digest:
        raise SchemaError(
            f"{migration.service}/{migration.name} was changed after it was applied (as {name}): "
            "restore it and put the change into a new file with the next number. On a development "
            "machine you may instead stop chatmesh and remove .chatmesh/postgres: that loses the "
            "data and starts afresh"
        )


async def migrate(owner_dsn: str, folders: Iterable[Path]) -> list[str]:
    """Brings the tables of the services to the state of their files.

    Repeatable, and safe to run from several deployers at once.

    Returns:
        What was applied, as "billing/001_billing.sql".

    Raises:
        SchemaError: see `read_migrations`, `pending`; or the SQL of a file failed.
    """
    connection = await asyncpg.connect(owner_dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", ADVISORY_LOCK_KEY)
        await connection.execute(_LEDGER_OF_MIGRATIONS)
        done: list[str] = []
        for folder in folders:
            done += await _migrate_one(connection, read_migrations(folder))
        return done
    finally:
        await connection.close()  # gives the lock back


async def _migrate_one(
    connection: "asyncpg.Connection[asyncpg.Record]", wanted: list[Migration]
) -> list[str]:
    if not wanted:
        return []
    rows = await connection.fetch(
        "SELECT number, name, digest FROM public.schema_migrations WHERE service = $1",
        wanted[0].service,
    )
    applied = {row["number"]: (row["name"], row["digest"]) for row in rows}
    done: list[str] = []
    for migration in pending(wanted, applied):
        await _apply(connection, migration)
        done.append(f"{migration.service}/{migration.name}")
    return done


async def _apply(connection: "asyncpg.Connection[asyncpg.Record]", migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO public.schema_migrations (service, number, name, digest)"
                " VALUES ($1, $2, $3, $4)",
                *(migration.service, migration.number, migration.name, migration.digest),
            )
    except asyncpg.PostgresError as error:
        raise SchemaError(
            f"{migration.service}/{migration.name} failed and was rolled back: {error}"
        ) from error


async def create_database(owner_dsn: str) -> None:
    """Makes the database that the DSN names, unless it is there. Repeatable."""
    name = urlsplit(owner_dsn).path.lstrip("/")
    try:
        connection = await asyncpg.connect(owner_dsn, timeout=CONNECT_TIMEOUT_S)
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(
            _with(owner_dsn, path="/postgres"), timeout=CONNECT_TIMEOUT_S
        )
        try:
            await connection.execute(f"CREATE DATABASE {_identifier(name)}")
        except (asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
            pass  # another deployer was faster
        finally:
            await connection.close()
    else:
        await connection.close()


async def create_roles(owner_dsn: str, passwords: Mapping[str, str]) -> None:
    """Makes, or gives new passwords to, the login roles of services (service -> password).

    Raises:
        SchemaError: such a role is a superuser or passes row-level security: it must not.
    """
    connection = await asyncpg.connect(owner_dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        async with connection.transaction():
            # Roles belong to the whole server: its deployers take turns here, in any database.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK_KEY + 1)
            for service, password in passwords.items():
                await _create_role(connection, f"{ROLE_PREFIX}{service}", password)
    finally:
        await connection.close()


async def _create_role(
    connection: "asyncpg.Connection[asyncpg.Record]", role: str, password: str
) -> None:
    row = await connection.fetchrow(
        "SELECT rolsuper OR rolbypassrls AS powerful FROM pg_roles WHERE rolname = $1", role
    )
    if row and row["powerful"]:
        raise SchemaError(
            f"the role {role} is a superuser or passes row-level security: "
            f"ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS, then start again"
        )
    secret = await connection.fetchval("SELECT quote_literal($1::text)", password)
    verb = "ALTER" if row else "CREATE"
    await connection.execute(f"{verb} ROLE {_identifier(role)} LOGIN PASSWORD {secret}")


def service_dsn(owner_dsn: str, service: str, password: str) -> str:
    """The owner's DSN with the role of a service in it."""
    return _with(owner_dsn, user=f"{ROLE_PREFIX}{service}", password=password)


async def deploy(
    owner_dsn: str, passwords: Mapping[str, str], folders: Iterable[Path]
) -> dict[str, str]:
    """Database, roles and tables, in this order. Repeatable.

    Args:
        owner_dsn: URL of a user that may create roles, and the database when it is missing.
        passwords: service -> password of its role.
        folders: the services' `schema/` folders.

    Returns:
        service -> DSN with its role, for the service's DATABASE_URL.

    Raises:
        SchemaError: the message says what to do.
    """
    await create_database(owner_dsn)
    await create_roles(owner_dsn, passwords)
    await migrate(owner_dsn, folders)
    return {name: service_dsn(owner_dsn, name, word) for name, word in passwords.items()}


def _with(dsn: str, *, path: str | None = None, user: str | None = None, password: str = "") -> str:
    parts = urlsplit(dsn)
    location = parts.netloc
    if user is not None:
        host = location.rpartition("@")[2]
        location = f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"
    return urlunsplit(parts._replace(netloc=location, path=parts.path if path is None else path))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def main() -> None:
    """Applies the files of this checkout to DATABASE_URL; the roles must exist."""
    dsn = os.environ.get("DATABASE_URL")
    if not dsn:
        sys.exit("set DATABASE_URL to the owner's DSN, such as postgresql://owner:…@host/chatmesh")
    try:
        done = asyncio.run(migrate(dsn, schema_folders(Path(__file__).resolve().parent.parent)))
    except (SchemaError, OSError, asyncpg.PostgresError) as error:
        sys.exit(f"mesh.schema: {error}")
    sys.stdout.write("".join(f"applied {name}\n" for name in done) or "nothing to apply\n")


if __name__ == "__main__":
    main()
