"""A cluster of another PostgreSQL is refused with the way out, and brought to ours by a command."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import asyncpg
import pytest

from mesh import stores
from mesh.postgres_upgrade import upgrade
from mesh.stores import StoreError, postgres_versions
from tests.stores.test_embedded_stores import admin, running


def old_cluster(folder: Path, version: int) -> None:
    """As an older chatmesh made it: the same options but those that the old one does not know."""
    folder.mkdir(mode=0o711)
    data, password = folder / "data", folder / "password"
    password.write_text("secret")
    data.mkdir(mode=0o700)
    user = stores.postgres_user(data)
    pwfile = folder / "pwfile"
    pwfile.write_text("secret")
    if user:
        for path in (data, pwfile):
            os.chown(path, user.pw_uid, user.pw_gid)
    command = [
        *(str(postgres_versions()[version] / "initdb"), "-D", str(data)),
        *("--auth=scram-sha-256", f"--username={stores.OWNER}", f"--pwfile={pwfile}"),
        *("--encoding=UTF8", "--locale=C"),
    ]
    subprocess.run(
        stores.launched(command, data, user, signal.SIGKILL),
        env=stores.environment(),
        check=True,
        capture_output=True,
    )


async def test_an_older_cluster_is_refused_and_upgraded_with_its_rows(tmp_path: Path) -> None:
    oldest, newest = min(postgres_versions()), max(postgres_versions())
    assert oldest < newest, "the wheel has one PostgreSQL only; nothing to upgrade from"
    folder = tmp_path / "postgres"
    await asyncio.to_thread(old_cluster, folder, oldest)
    await fill(folder, oldest)

    with pytest.raises(StoreError, match=r"PostgreSQL 16.*mesh\.ctl upgrade-postgres"):
        stores.prepare_postgres(folder)
    assert stores.cluster_version(folder / "data") == oldest

    said = await asyncio.to_thread(upgrade, folder)
    assert f"PostgreSQL {newest} now" in said
    process = await asyncio.to_thread(stores.prepare_postgres, folder)
    async with running(process):
        connection = await asyncpg.connect(admin(process.url))
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        await connection.close()
    assert (folder / f"data.{oldest}" / "PG_VERSION").exists()
    assert "nothing to do" in await asyncio.to_thread(upgrade, folder)


async def fill(folder: Path, version: int) -> None:
    """Puts a row into a cluster of an old version."""
    user = stores.postgres_user(folder / "data")
    port = str(stores._port(folder / "port"))
    server = [
        *(str(postgres_versions()[version] / "postgres"), "-D", str(folder / "data"), "-p", port),
        *("--listen_addresses=127.0.0.1", "--unix_socket_directories="),
    ]
    url = f"postgresql://{stores.OWNER}:secret@127.0.0.1:{port}/postgres"
    process = stores.StoreProcess(
        name="postgres",
        command=stores.launched(server, folder / "data", user, signal.SIGINT),
        env=stores.environment(),
        url=url,
        stop_signal=signal.SIGINT,
        ping=lambda: stores._ping_postgres(url),
    )
    async with running(process):
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        await connection.close()


def test_a_newer_cluster_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "PG_VERSION").write_text("99\n")
    with pytest.raises(StoreError, match="run the newer version of chatmesh that made them"):
        stores.check_cluster_version(data)
