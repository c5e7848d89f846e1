"""`python -m mesh.up`: the whole system on one machine, in dependency order, kept running.

    stores (embedded, unless DATABASE_URL / REDIS_URL are set) → control plane → tables →
    services, all at once → Envoy → a ready API key

Ctrl-C (or `make down`) ends everything; a process that dies is restarted. Settings come from the
environment: see `mesh/settings.py`.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
from pydantic import ValidationError

from mesh import credentials
from mesh.disk import DiskError, sweep
from mesh.home import PROJECT, Home
from mesh.operator import describe
from mesh.schema import SchemaError
from mesh.settings import UpSettings
from mesh.stores import StoreError
from mesh.supervisor import log_to
from mesh.system import TOPOLOGY, System, UpError
from mesh.topology import TopologyError, load

DETACHED_TIMEOUT_S = 180.0


def say(what: str, state: str) -> None:
    """One line of progress."""
    print(f"  {what:<18} {state}", flush=True)


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs chatmesh on this machine.")
    parser.add_argument("--detach", action="store_true", help="return once it answers")
    arguments = parser.parse_args()
    home = Home.find()
    home.make()
    try:
        settings = UpSettings()
        return _detach(home) if arguments.detach else asyncio.run(_run(home, settings))
    except (UpError, DiskError, StoreError, SchemaError, TopologyError) as error:
        print(f"chatmesh: {error}", file=sys.stderr)
    except ValidationError as error:
        for line in error.errors():
            name = "_".join(str(part) for part in line["loc"]).upper()
            print(f"chatmesh: {name}: {line['msg']}", file=sys.stderr)
    except grpc.aio.AioRpcError as error:
        print(f"chatmesh: {describe(error)}", file=sys.stderr)
    return 1


async def _run(home: Home, settings: UpSettings) -> int:
    log_to(home.log / "up.log")
    with _locked(home):
        _check_ports(settings)
        sweep(home.folder, time.time())
        print("Starting chatmesh", flush=True)
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        system = System(home, settings, load(TOPOLOGY), say)
        try:
            if await _unless(ended, _start(system, home, settings)):
                await ended.wait()
        finally:
            print("Stopping", flush=True)
            home.ready.unlink(missing_ok=True)
            await system.stop()
    return 0


async def _start(system: System, home: Home, settings: UpSettings) -> None:
    begin = time.monotonic()
    await system.start()
    secret = await credentials.development_key(home, settings)
    banner = credentials.write_environment(home, settings, secret)
    print(f"Ready after {time.monotonic() - begin:.1f} s\n\n{banner}", flush=True)
    home.ready.write_text(banner)


async def _unless(ended: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` until it is done (True) or the person wants to end (False)."""
    task, stop = asyncio.create_task(work), asyncio.create_task(ended.wait())
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


@contextlib.contextmanager
def _locked(home: Home) -> Iterator[None]:
    with home.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UpError(
                f"already running here (pid {file.read().strip()}); stop it with `make down`, or "
                "give this copy a folder of its own with CHATMESH_HOME"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _check_ports(settings: UpSettings) -> None:
    for name, port in (
        ("EDGE_PORT", settings.edge_port),
        ("EDGE_TLS_PORT", settings.edge_tls_port),
    ):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise UpError(
                    f"port {port} is taken; choose another, such as {name}={port + 1} make run"
                ) from None


def _detach(home: Home) -> int:
    """Starts a copy in a session of its own; returns when it answers or has failed."""
    home.ready.unlink(missing_ok=True)
    path = home.log / "up.out"
    with path.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "mesh.up"],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return _follow(child, path, home.ready)


def _follow(child: "subprocess.Popen[bytes]", path: Path, ready: Path) -> int:
    end = time.monotonic() + DETACHED_TIMEOUT_S
    with path.open() as lines:
        while time.monotonic() < end:
            done = ready.exists() or child.poll() is not None
            print(lines.read(), end="", flush=True)
            if done:
                return child.returncode or 0
            time.sleep(0.05)
    print("chatmesh: still starting; see .chatmesh/log", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
