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


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def cpu_seconds(root: psutil.Process) -> dict[int, float]:
    """User and system time of each process of a tree, by pid."""
    result = {}
    for one in tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            result[one.pid] = times.user + times.system
    return result


def cpu_spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Seconds that a tree used between two looks."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def rss_bytes(root: psutil.Process) -> int:
    """Resident memory of a tree (shared pages count in each process)."""
    total = 0
    for one in tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total
