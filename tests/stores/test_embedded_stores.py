"""The embedded servers: prepared, started, killed, started again; what they keep and refuse."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import asyncpg
import psutil
import pytest
import redis
import redis.asyncio

from mesh import stores


def start(command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, stderr=quiet)


@contextlib.asynccontextmanager
async def running(process: stores.StoreProcess) -> AsyncIterator["subprocess.Popen[bytes]"]:
    child = start(process.command, process.env)
    try:
        await process.ready()
        yield child
    finally:
        child.send_signal(process.stop_signal)
        await asyncio.to_thread(child.wait, 20)


def admin(url: str) -> str:
    return url.rsplit("/", 1)[0] + "/postgres"


async def test_postgres_keeps_data_port_and_password_over_a_kill(tmp_path: Path) -> None:
    process = await asyncio.to_thread(stores.prepare_postgres, tmp_path)
    async with running(process) as child:
        connection = await asyncpg.connect(admin(process.url))
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        await connection.close()
        child.kill()  # a crash: committed rows stay
        await asyncio.to_thread(child.wait, 20)
    again = await asyncio.to_thread(stores.prepare_postgres, tmp_path)
    assert (again.url, again.command) == (process.url, process.command)
    async with running(again):
        connection = await asyncpg.connect(admin(again.url))
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW server_encoding") == "UTF8"
        # Characters beyond ASCII are letters, in the same order on every machine.
        assert await connection.fetchval("SELECT upper('ä')") == "Ä"
        await connection.close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(admin(again.url).replace("@", "wrong@"))


async def test_postgres_lives_below_a_folder_that_its_user_may_not_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    process = await asyncio.to_thread(stores.prepare_postgres, closed / "postgres")
    async with running(process) as child:
        assert psutil.Process(child.pid).uids().effective != 0
        connection = await asyncpg.connect(admin(process.url))
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
    for file in ("password", "port"):
        assert stat.S_IMODE((closed / "postgres" / file).stat().st_mode) == 0o600
    assert stat.S_IMODE((closed / "postgres" / "data").stat().st_mode) == 0o700


async def test_a_lock_file_of_a_number_that_is_another_process_now(tmp_path: Path) -> None:
    await asyncio.to_thread(stores.prepare_postgres, tmp_path)
    lock = tmp_path / "data" / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{tmp_path / 'data'}\n")
    process = await asyncio.to_thread(stores.prepare_postgres, tmp_path)
    async with running(process):
        pass


async def test_a_store_in_use_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "ORPHAN_END_TIMEOUT_S", 0.0)
    process = await asyncio.to_thread(stores.prepare_postgres, tmp_path)
    async with running(process) as child:
        with pytest.raises(stores.StoreError, match=rf"pid {child.pid}.*make down"):
            await asyncio.to_thread(stores.prepare_postgres, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is told on Linux only")
@pytest.mark.parametrize("name", ["postgres", "redis"])
async def test_a_store_ends_when_its_supervisor_is_killed(tmp_path: Path, name: str) -> None:
    prepare = stores.prepare_postgres if name == "postgres" else stores.prepare_redis
    process = await asyncio.to_thread(prepare, tmp_path)
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    supervisor = start([sys.executable, "-c", script, *process.command], process.env)
    assert supervisor.stdout is not None
    store = psutil.Process(int(await asyncio.to_thread(supervisor.stdout.readline)))
    await process.ready()
    supervisor.send_signal(signal.SIGKILL)
    await asyncio.to_thread(supervisor.wait, 10)
    await asyncio.to_thread(psutil.wait_procs, [store], 10)
    assert not store.is_running() or store.status() == psutil.STATUS_ZOMBIE


async def test_ready_gives_up_with_the_reason(tmp_path: Path) -> None:
    process = await asyncio.to_thread(stores.prepare_redis, tmp_path)
    with pytest.raises(stores.StoreError, match="redis does not answer"):
        await process.ready(timeout_s=0.0)


async def test_redis_keeps_what_was_written_and_wants_the_password(tmp_path: Path) -> None:
    process = await asyncio.to_thread(stores.prepare_redis, tmp_path / "with space")
    async with running(process):
        async with redis.asyncio.Redis.from_url(process.url) as client:
            await client.xadd("usage", {"event": b"1"})
            policy = await client.config_get("maxmemory-policy")
            assert policy == {"maxmemory-policy": "noeviction"}
        stranger = process.url.split("@")[1]
        async with redis.asyncio.Redis.from_url(f"redis://{stranger}") as client:
            with pytest.raises(redis.AuthenticationError):
                await client.ping()
    again = await asyncio.to_thread(stores.prepare_redis, tmp_path / "with space")
    assert again.url == process.url
    async with running(again), redis.asyncio.Redis.from_url(again.url) as client:
        assert await client.xlen("usage") == 1
    config = tmp_path / "with space" / "redis.conf"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert process.url.split(":")[2].split("@")[0] not in " ".join(process.command)


def test_role_passwords_stay(tmp_path: Path) -> None:
    first = stores.role_passwords(tmp_path, ["billing", "safety"])
    assert stores.role_passwords(tmp_path, ["billing", "safety"]) == first
    assert first["billing"] != first["safety"]
