"""Brings the embedded PostgreSQL's data to the newest version in the wheel: `mesh.ctl`.

pg_upgrade of the new version reads the old cluster and fills a fresh one beside it; the two change
places with a rename, and the old one stays until somebody removes it.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mesh import stores
from mesh.home import Home
from mesh.stores import OWNER, StoreError, cluster_version, postgres_versions

UPGRADE_TIMEOUT_S = 3600.0


async def upgrade_postgres(home: Home, _: object) -> int:
    """Upgrades the cluster of a copy that does not run; prints what was done."""
    try:
        with _stopped(home):
            print(await asyncio.to_thread(upgrade, home.folder / "postgres"))
    except StoreError as error:
        print(f"chatmesh: {error}")
        return 1
    return 0


def upgrade(folder: Path) -> str:
    """Upgrades `folder`/data; returns what was done, in words. Repeatable after a failure.

    Raises:
        StoreError: it cannot be done; the data are as they were.
    """
    data = folder / "data"
    if not (data / "PG_VERSION").exists():
        raise StoreError(f"there is no PostgreSQL in {folder}: nothing to upgrade")
    versions, old = postgres_versions(), cluster_version(data)
    new = max(versions)
    if old == new:
        return f"The data are of PostgreSQL {new} already: nothing to do."
    if old not in versions:
        have = ", ".join(map(str, sorted(versions)))
        raise StoreError(
            f"the data are of PostgreSQL {old} and only {have} are here: dump them with pg_dumpall "
            f"of a PostgreSQL {old}, move {data} away, start chatmesh, and load the dump"
        )
    former = folder / f"data.{old}"
    if former.exists():
        raise StoreError(f"{former} of an earlier upgrade is still there: move it away")
    user, password = stores.postgres_user(data), (folder / "password").read_text().strip()
    sums = "--data-checksums" if _has_checksums(versions[old], data) else "--no-data-checksums"
    fresh = stores.initdb(folder, user, password, sums)
    _pg_upgrade(versions[old], versions[new], data, fresh, password)
    data.rename(former)
    fresh.rename(data)
    return (
        f"The data are of PostgreSQL {new} now. Those of {old} are in {former}: remove them when "
        "all is well."
    )


def _has_checksums(binaries: Path, data: Path) -> bool:
    command = [str(binaries / "pg_controldata"), str(data)]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env=stores.environment()
    ).stdout
    line = next(line for line in said.splitlines() if line.startswith("Data page checksum"))
    return int(line.rpartition(" ")[2]) != 0


def _pg_upgrade(old: Path, new: Path, data: Path, fresh: Path, password: str) -> None:
    user = stores.postgres_user(data)
    # Short: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        work = Path(scratch)
        if user is not None:
            os.chown(work, user.pw_uid, user.pw_gid)
        command = [
            *(str(new / "pg_upgrade"), "--username", OWNER, "--socketdir", str(work)),
            *("--old-bindir", str(old), "--new-bindir", str(new)),
            *("--old-datadir", str(data), "--new-datadir", str(fresh)),
        ]
        done = subprocess.run(
            # In the old cluster: its user may write there, and is let through to it.
            stores.launched(command, data, user, signal.SIGTERM),
            env={**stores.environment(), "PGPASSWORD": password},
            capture_output=True,
            text=True,
            timeout=UPGRADE_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise StoreError(f"pg_upgrade failed, the data are as they were:\n{done.stdout[-3000:]}")


@contextlib.contextmanager
def _stopped(home: Home) -> Iterator[None]:
    with home.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError("chatmesh runs here; stop it first (make down)") from None
        yield
