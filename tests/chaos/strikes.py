"""Deals the blows to the processes of a running copy; the supervisor makes good what is killed."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from mesh.home import Home
from tests.chaos.schedule import Blow, kind_of
from tests.chaos.verdict import Struck

# A process that is just being started has no pid yet.
PID_TIMEOUT_S = 5.0
POLL_S = 0.02


def processes(home: Home, kinds: Iterable[str] = ()) -> dict[str, list[str]]:
    """Names of the supervised processes by kind; of these kinds only, when some are given.

    Raises:
        ValueError: a kind that does not run here.
    """
    found: dict[str, list[str]] = {}
    for row in _table(home):
        found.setdefault(kind_of(row["name"]), []).append(row["name"])
    wanted = set(kinds) or set(found)
    if unknown := wanted - set(found):
        raise ValueError(f"no such process here: {sorted(unknown)}; there are {sorted(found)}")
    return {kind: names for kind, names in found.items() if kind in wanted}


def restarts(home: Home) -> dict[str, int]:
    """How often each process was started again."""
    return {row["name"]: row["restarts"] for row in _table(home)}


def deal(
    home: Home,
    blows: Sequence[Blow],
    clock: Callable[[], float],
    say: Callable[[Blow], None],
) -> list[Struck]:
    """Deals all blows at their times, counted from now; returns those that met a process."""
    begin_s, struck, wakers = clock(), [], []
    for blow in blows:
        time.sleep(max(0.0, begin_s + blow.at_s - clock()))
        pid = _pid(home, blow.process)
        if not pid:
            continue
        say(blow)
        struck.append(Struck(blow, clock()))
        with suppress(ProcessLookupError):
            if blow.how == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                wakers.append(threading.Timer(blow.pause_s, _wake, [pid]))
                wakers[-1].start()
    for waker in wakers:
        waker.join()
    return struck


def _wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _pid(home: Home, process: str) -> int:
    end = time.monotonic() + PID_TIMEOUT_S
    while time.monotonic() < end:
        pid = next((row["pid"] for row in _table(home) if row["name"] == process), 0)
        if pid:
            return int(pid)
        time.sleep(POLL_S)
    return 0


def _table(home: Home) -> list[dict]:
    return json.loads(home.table.read_text())
