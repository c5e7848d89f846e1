"""What a copy takes of its disk: looked at when it starts, and measured while it runs.

Everything that grows has a bound of its own: log files (mesh/logs.py), the access log, Redis'
maxmemory, PostgreSQL's WAL, the spool of usage events. Rows of PostgreSQL have a time after which
they go. What all of them together may take is the budget: beyond it the operator is told, and
nothing is stopped, because what is stored is what people paid for.
"""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import structlog
from prometheus_client import Gauge

INTERVAL_S = 30.0
# The logs of a process that nobody starts any more.
LOG_KEPT_S = 30 * 86_400.0
# What mesh/chassis/files.py leaves when it is killed in the middle.
SCRATCH = re.compile(r".+\.[0-9a-f]{16}\.new")
# With less, PostgreSQL and Redis would stop at their next write.
FREE_BYTES_MIN = 256 << 20

log = structlog.get_logger()
_bytes = Gauge("chatmesh_home_bytes", "Bytes on disk below the copy's folder", ["part"])
_free = Gauge("chatmesh_home_free_bytes", "Bytes free on the disk of the copy's folder")
_budget = Gauge("chatmesh_home_budget_bytes", "Bytes that the copy's folder may take in all")


class DiskError(Exception):
    """There is no room to run; the message says what to do."""


def sweep(folder: Path, now_s: float) -> list[Path]:
    """Removes what nobody needs any more, before anything runs; gives what it was.

    Old logs, and files that were being replaced when their process was killed. The folders of
    instances stay: what a node has generated may wait in one to be charged.

    Args:
        folder: of the copy.
        now_s: Unix seconds.
    """
    logs = (path for path in (folder / "log").glob("*") if _age_s(path, now_s) > LOG_KEPT_S)
    levels = ("*", "*/*", "nodes/*/*", "nodes/*/*/*")
    scratch = (p for level in levels for p in folder.glob(level) if SCRATCH.fullmatch(p.name))
    removed = []
    for path in (*logs, *scratch):
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:
        return 0.0


def measure(folder: Path) -> dict[str, int]:
    """Bytes on disk by the name of each entry of `folder`. What goes meanwhile counts nothing."""
    return {entry.name: _size(Path(entry.path)) for entry in os.scandir(folder)}


def _size(path: Path) -> int:
    total = _blocks(path)
    for folder, folders, files in os.walk(path):
        total += sum(_blocks(Path(folder, name)) for name in (*folders, *files))
    return total


def _blocks(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512  # what a sparse file does not take is not counted
    except OSError:
        return 0


def check(folder: Path, budget_bytes: int) -> str:
    """Looks before anything starts; gives a warning, or "".

    Raises:
        DiskError: there is too little room to run at all.
    """
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_MIN:
        raise DiskError(
            f"only {_mib(free)} are free on the disk of {folder}, and {_mib(FREE_BYTES_MIN)} are "
            "needed: make room, or name another folder with CHATMESH_HOME"
        )
    return _warning(folder, measure(folder), budget_bytes)


async def watch(folder: Path, budget_bytes: int) -> None:
    """Measures for ever; says when the budget is exceeded, or the disk is nearly full."""
    _budget.set(budget_bytes)
    said = ""
    while True:
        parts = await asyncio.to_thread(measure, folder)
        free = shutil.disk_usage(folder).free
        _free.set(free)
        for name, size in parts.items():
            _bytes.labels(name).set(size)
        warning = _warning(folder, parts, budget_bytes)
        if free < FREE_BYTES_MIN:
            warning = f"only {_mib(free)} are free on the disk of {folder}: make room"
        if warning and warning != said:
            log.error("disk_short", problem=warning)
        said = warning
        await asyncio.sleep(INTERVAL_S)


def _warning(folder: Path, parts: Mapping[str, int], budget_bytes: int) -> str:
    total = sum(parts.values())
    if total <= budget_bytes:
        return ""
    largest = sorted(parts, key=lambda name: parts[name], reverse=True)[:3]
    words = ", ".join(f"{name} {_mib(parts[name])}" for name in largest)
    return (
        f"{folder} takes {_mib(total)}, more than its budget of {_mib(budget_bytes)} ({words}): "
        "make room, or raise CHATMESH_DISK_MIB_MAX"
    )


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"
