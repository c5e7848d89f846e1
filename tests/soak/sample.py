"""What the processes of a copy take: read from outside, every few seconds."""

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil
import redis

from mesh import disk
from mesh.redis_users import OWNER
from tests.support.running import RunningMesh

MIB = 1 << 20
LAG = re.compile(r'chatmesh_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)')
METRICS_TIMEOUT_S = 5


@dataclass(frozen=True)
class Usage:
    """One process at one moment.

    Attributes:
        pid: tells its lives apart.
        memory_mib: resident; of what several share each its part, or PostgreSQL's processes would
            count their buffers many times.
        descriptor_count: open files and sockets.
        lag_ms: 99 % of the wake-ups of its event loop since the sample before were less late; None
            for a process without such a loop.
    """

    pid: int
    memory_mib: float
    descriptor_count: int
    lag_ms: float | None = None


@dataclass(frozen=True)
class Sample:
    """The copy at one moment.

    Attributes:
        at_s: seconds since the beginning.
        processes: by name, those that lived.
        disk_mib: by part of the copy's folder.
        redis_keys: all; those that never expire.
    """

    at_s: float
    processes: Mapping[str, Usage]
    disk_mib: Mapping[str, float]
    redis_keys: tuple[int, int] | None


def percentile_ms(before: Mapping[str, float], after: Mapping[str, float], share: float) -> float:
    """The upper bound, in ms, of the bucket in which a share of what came between lies.

    Args:
        before: cumulative counts by upper bound in seconds, as Prometheus writes it.
        after: the same, later; of another process when a count is smaller.
        share: such as 0.99.
    """
    bounds = sorted(after, key=float)
    if not bounds or any(after[bound] < before.get(bound, 0) for bound in bounds):
        before = {}
    counts = [(float(bound), after[bound] - before.get(bound, 0)) for bound in bounds]
    if not counts or counts[-1][1] <= 0:
        return 0.0
    wanted = share * counts[-1][1]
    return 1000 * next(bound for bound, count in counts if count >= wanted)


@dataclass
class Sampler:
    """Takes samples of one copy."""

    mesh: RunningMesh
    begin_s: float = field(default_factory=time.monotonic)
    _metrics: dict[int, str] = field(default_factory=dict)
    _lag: dict[int, dict[str, float]] = field(default_factory=dict)

    def take(self) -> Sample:
        """Looks once."""
        at_s = time.monotonic() - self.begin_s
        table = json.loads((self.mesh.home / "run" / "processes.json").read_text())
        pids = {row["name"]: row["pid"] for row in table if row["pid"]}
        pids["supervisor"] = self.mesh.pid
        if set(pids.values()) - self._metrics.keys():
            self._find_metrics(pids)
        used = {name: self._usage(pid) for name, pid in pids.items()}
        parts = disk.measure(self.mesh.home)
        return Sample(
            at_s,
            {name: usage for name, usage in used.items() if usage is not None},
            {name: size / MIB for name, size in parts.items()},
            self._redis_keys(),
        )

    def _find_metrics(self, pids: Mapping[str, int]) -> None:
        """Asks where each process has its metrics: only when one is new, for it costs a second."""
        found = {row["pid"]: row["metrics_address"] for row in self.mesh.status()}
        self._metrics = {pid: found.get(pid, "") for pid in pids.values()}

    def _usage(self, pid: int) -> Usage | None:
        try:
            process = psutil.Process(pid)
            members = [process, *process.children(recursive=True)]
            if pid == self.mesh.pid:
                members = [process]  # its children are the others
            memory = sum(one.memory_full_info().pss for one in members) / MIB
            return Usage(pid, memory, process.num_fds(), self._lag_ms(pid))
        except psutil.Error:
            return None  # it has just died

    def _lag_ms(self, pid: int) -> float | None:
        address = self._metrics.get(pid)
        if not address:
            return None
        with contextlib.suppress(OSError):
            url = f"http://{address}/metrics"
            with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
                after = {bound: float(n) for bound, n in LAG.findall(answer.read().decode())}
            lag_ms = percentile_ms(self._lag.get(pid, {}), after, 0.99)
            self._lag[pid] = after
            return lag_ms
        return None

    def _redis_keys(self) -> tuple[int, int] | None:
        folder = self.mesh.home / "redis"
        with contextlib.suppress(redis.RedisError, OSError):
            password, port = ((folder / name).read_text().strip() for name in ("password", "port"))
            with redis.Redis(port=int(port), username=OWNER, password=password) as client:
                space = client.info("keyspace").get("db0", {"keys": 0, "expires": 0})
            return space["keys"], space["keys"] - space["expires"]
        return None
