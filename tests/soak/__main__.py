"""Mixed traffic and kills for long, and whether what the copy takes stays flat: `make soak`.

Prints its progress, a verdict for each series, and as the last line the same as JSON; draws the
series (SVG). The exit status is 1 when one grows, or a law of `make chaos` was broken.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.chaos import experiment
from tests.chaos.experiment import ENGINES, REPLICAS, VIOLATIONS_SHOWN_MAX
from tests.soak.plot import draw
from tests.soak.sample import Sample, Sampler
from tests.soak.verdict import Judged, judge
from tests.support.running import RunningMesh, running_mesh

SAMPLE_COUNT_MAX = 600
SAMPLE_INTERVAL_S_MIN = 2.0


class Watch:
    """Takes samples beside the traffic, in a thread."""

    def __init__(self, mesh: RunningMesh, interval_s: float) -> None:
        self._sampler, self._interval_s = Sampler(mesh), interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.samples.append(self._sampler.take())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=20.0, help="seconds between two blows")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=tuple(ENGINES), default="simulated")
    parser.add_argument("--plot", type=Path, default=Path("build/soak.svg"))
    return parser.parse_args(arguments)


def main() -> int:
    """Runs it; returns the exit status."""
    given = parse()
    seconds = given.minutes * 60
    options = replace(
        experiment.Options(),
        seconds=seconds,
        interval_s=given.interval,
        clients=given.clients,
        seed=given.seed,
        engine=given.engine,
        check_gaps=False,
    )
    interval_s = max(SAMPLE_INTERVAL_S_MIN, seconds / SAMPLE_COUNT_MAX)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_mesh(Path(folder), REPLICAS=REPLICAS, **ENGINES[given.engine]) as mesh,
        Watch(mesh, interval_s) as watch,
    ):
        result = experiment.run(mesh, options, lambda line: print(line, flush=True))
    given.plot.parent.mkdir(parents=True, exist_ok=True)
    draw(watch.samples, given.plot)
    judged = judge(watch.samples)
    growing = [one for one in judged if not one.is_flat]
    print(f"\n{len(watch.samples)} samples; the picture is {given.plot}")
    print("\n".join(map(str, judged)))
    for one in result.violations[:VIOLATIONS_SHOWN_MAX]:
        print(f"VIOLATION {one.law}: {one.detail}")
    is_well = not growing and not result.violations
    print("flat" if not growing else f"not flat: {len(growing)} of {len(judged)} series grow")
    print(as_json(given, watch.samples, judged, len(result.outcomes), len(result.violations)))
    return 0 if is_well else 1


def as_json(
    given: argparse.Namespace,
    samples: Sequence[Sample],
    judged: Sequence[Judged],
    request_count: int,
    violation_count: int,
) -> str:
    """One line for those who keep figures."""
    last = samples[-1]
    figures = {
        "bench": "soak",
        "minutes": given.minutes,
        "requests": request_count,
        "violation_count": violation_count,
        "growing": [asdict(one) for one in judged if not one.is_flat],
        "disk_mib": {part: round(size, 1) for part, size in sorted(last.disk_mib.items())},
        "redis_keys": last.redis_keys,
        "memory_mib": round(sum(one.memory_mib for one in last.processes.values()), 1),
    }
    return json.dumps(figures)


if __name__ == "__main__":
    sys.exit(main())
