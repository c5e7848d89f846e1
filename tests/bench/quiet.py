"""The quiet gate: a figure counts only when nothing else used the processors.

A foreign process on one of two cores slows every engine that waits at barriers by 20 to 50 times.
"""

import contextlib
import time
from pathlib import Path

import psutil

FOREIGN_CORES_MAX = 0.25
SETTLE_S = 1.0


def busy_seconds() -> float:
    """Processor time that the machine has used since its start, idle and I/O wait left out."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, *_ = (int(field) for field in fields)
    return (user + nice + system + irq + softirq) / 100


class Watch:
    """Measures foreign processor use while the block lasts.

    Attributes:
        foreign_cores: cores that processes other than the given trees used, on average.
    """

    def __init__(self, roots: list[psutil.Process]) -> None:
        self._roots, self.foreign_cores = roots, 0.0

    def _own_seconds(self) -> float:
        own = 0.0
        for root in self._roots:
            # Children that ended are in their parent's account.
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    own += times.user + times.system + times.children_user + times.children_system
        return own

    def __enter__(self) -> "Watch":
        self._begin = (time.monotonic(), busy_seconds(), self._own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        at, busy, own = self._begin
        foreign = (busy_seconds() - busy) - (self._own_seconds() - own)
        self.foreign_cores = max(0.0, foreign / max(time.monotonic() - at, 1e-3))


def wait_until_quiet(timeout_s: float) -> bool:
    """Waits for a quiet second; False: there was none in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(SETTLE_S)
        if (busy_seconds() - before) / SETTLE_S < FOREIGN_CORES_MAX:
            return True
    return False
