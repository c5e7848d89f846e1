"""Processes of a benchmark: started, measured as trees, ended by their ids."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 60.0
STORES = ("redis-server", "postgres", "envoy")


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(
    command: list[str], log: Path, environment: Mapping[str, str], cwd: Path
) -> Iterator[psutil.Process]:
    """Runs a command while the block lasts; SIGTERM and, if need be, SIGKILL end its tree."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
        )
    process = psutil.Process(child.pid)
    try:
        yield process
    finally:
        below = tree(process)
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_TIMEOUT_S)
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        child.wait()


def alive(root: psutil.Process) -> bool:
    """Whether a started process runs; one that ended is a zombie until it is waited for."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(root.status() != psutil.STATUS_ZOMBIE)
    return False


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def service_of(process: psutil.Process) -> str:
    """The service that a process of a chatmesh copy runs, by its command line; "other" else."""
    command = " ".join(process.cmdline())
    for store in STORES:
        if store in command:
            return store
    _, found, module = command.partition(" -m ")
    return module.split()[0] if found else "other"


def cpu_by_service(root: psutil.Process) -> dict[str, float]:
    """User and system seconds that each service of a tree has used since its start.

    The kernel counts them in hundredths. Children that ended and were waited for are their
    parent's.
    """
    found: dict[str, float] = {}
    for one in tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            spent = times.user + times.system + times.children_user + times.children_system
            name = service_of(one)
            found[name] = found.get(name, 0.0) + spent
    return found


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What each service used between two looks; never less than nothing (one may have ended)."""
    return {name: max(0.0, value - before.get(name, 0.0)) for name, value in after.items()}


def memory_kib(root: psutil.Process) -> dict[str, float]:
    """Proportional set size of each service: pages that are shared count once, in parts."""
    found: dict[str, float] = {}
    for one in tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            pss = one.memory_full_info().pss / 1024
            name = service_of(one)
            found[name] = found.get(name, 0.0) + pss
    return found
