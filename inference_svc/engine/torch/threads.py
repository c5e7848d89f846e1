"""How many threads this process may really use: the cgroup's quota, not the machine's CPUs."""

import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def cpu_quota(quota_text: str | None, affinity_count: int) -> int:
    """CPUs that may be used, at least 1.

    Args:
        quota_text: "quota period" in microseconds as in cgroup v2's cpu.max; "max …" or None: none.
        affinity_count: CPUs that the process may run on.
    """
    quota, _, period = (quota_text or "max").partition(" ")
    if quota in ("max", "-1") or not period:
        return max(1, affinity_count)
    return max(1, min(affinity_count, int(quota) // int(period)))


def engine_thread_count() -> int:
    """Threads for the engine: the quota, less one CPU for the event loop where there are more.

    Two threads on two CPUs wait for each other whenever the event loop, or a neighbour, has one of
    them: a parallel region then takes a scheduler's time slice instead of microseconds.
    """
    return max(1, cpu_quota(_quota_text(), len(os.sched_getaffinity(0))) - 1)


def _quota_text() -> str | None:
    try:
        if _CGROUP_V2.exists():
            return _CGROUP_V2.read_text().strip()
        quota = (_CGROUP_V1 / "cpu.cfs_quota_us").read_text().strip()
        period = (_CGROUP_V1 / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None
    return f"{quota} {period}"
