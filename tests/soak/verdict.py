"""Whether what a copy takes is flat. Pure: samples in, words out.

Of a series the first quarter is warm-up. The rest is flat when the median of its last third is not
above that of its first by more than the allowance: a leak that the allowance hides over a minute
shows over an hour, because the time between the two grows with the run and the allowance does not.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.soak.sample import Sample

Points = Sequence[tuple[float, float]]
WARM_UP = 0.25
POINT_COUNT_MIN = 9
# A process that was killed has several lives; one is judged that lasted this share of the run.
LIFE_SHARE_MIN = 0.3
# Bounded by their own limits, not by what is asked of the copy: these parts must not grow.
BOUNDED_PARTS = ("log", "nodes", "control", "operator", "run")


@dataclass(frozen=True)
class Allowance:
    """What a series may grow: the larger of both."""

    share: float
    absolute: float


ALLOWANCES: Mapping[str, Allowance] = {
    "memory_mib": Allowance(0.10, 16),
    "descriptors": Allowance(0.10, 16),
    "lag_ms": Allowance(1.0, 50),
    "disk_mib": Allowance(0.10, 48),  # two files of a log, and those of the edge
    "keys_without_expiry": Allowance(0.10, 200),
}


@dataclass(frozen=True)
class Judged:
    """One series and what became of it.

    Attributes:
        name: such as "memory_mib of gateway-1".
        first: median of its first third after the warm-up.
        last: median of its last third.
        allowed: how far `last` may be above `first`.
    """

    name: str
    first: float
    last: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        """It does not grow beyond its allowance."""
        return self.last - self.first <= self.allowed

    def __str__(self) -> str:
        word = "flat" if self.is_flat else "GROWS"
        return f"{word:5} {self.name}: {self.first:.1f} → {self.last:.1f} (+{self.allowed:.1f})"


def judge(samples: Sequence[Sample]) -> list[Judged]:
    """Every series that has enough points, by name."""
    span_s = samples[-1].at_s - samples[0].at_s if samples else 0.0
    found = []
    for kind, name, points in series(samples):
        long_enough = points and points[-1][0] - points[0][0] >= LIFE_SHARE_MIN * span_s
        if long_enough and (judged := _judged(f"{kind} of {name}", points, ALLOWANCES[kind])):
            found.append(judged)
    return sorted(found, key=lambda one: one.name)


def series(samples: Sequence[Sample]) -> Iterable[tuple[str, str, Points]]:
    """(kind, name, points) of all that is judged; of a process its longest life."""
    for name in sorted({name for one in samples for name in one.processes}):
        life = _longest_life(name, samples)
        used = [(one.at_s, one.processes[name]) for one in life]
        yield "memory_mib", name, [(at_s, one.memory_mib) for at_s, one in used]
        yield "descriptors", name, [(at_s, one.descriptor_count) for at_s, one in used]
        lags = [(at_s, one.lag_ms) for at_s, one in used if one.lag_ms is not None]
        if lags:
            yield "lag_ms", name, lags
    for part in BOUNDED_PARTS:
        points = [(one.at_s, one.disk_mib[part]) for one in samples if part in one.disk_mib]
        yield "disk_mib", part, points
    keys = [(one.at_s, one.redis_keys[1]) for one in samples if one.redis_keys is not None]
    yield "keys_without_expiry", "redis", keys


def _longest_life(name: str, samples: Sequence[Sample]) -> list[Sample]:
    lives: dict[int, list[Sample]] = {}
    for one in samples:
        if name in one.processes:
            lives.setdefault(one.processes[name].pid, []).append(one)
    return max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s)


def _judged(name: str, points: Points, allowance: Allowance) -> Judged | None:
    values = [value for _, value in points[int(len(points) * WARM_UP) :]]
    if len(points) < POINT_COUNT_MIN:
        return None
    third = max(1, len(values) // 3)
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    return Judged(name, first, last, max(first * allowance.share, allowance.absolute))
