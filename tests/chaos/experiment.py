"""The experiment: every request once undisturbed, then again and again while processes die."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clients.python.resume import Server
from mesh.home import Home
from tests.chaos import documented, strikes, verdict
from tests.chaos.clients import Crowd, Place
from tests.chaos.schedule import Blow, schedule
from tests.chaos.verdict import Gaps, Outcome, References, Struck, Usage, Violation
from tests.chaos.wishes import SHAPES_BY_ENGINE, Wish, plan
from tests.support.running import PROJECT, RunningMesh

# A copy whose streams last: 100 tokens a second, up to 4 s.
ENGINES: Mapping[str, Mapping[str, str]] = {
    "simulated": {
        "INFERENCE_ENGINE": "simulated",
        "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": "10",
        "INFERENCE_SIMULATED_ANSWER_TOKEN_COUNT_MIN": "40",
        "INFERENCE_SIMULATED_ANSWER_TOKEN_COUNT_MAX": "400",
    },
    "torch": {"INFERENCE_ENGINE": "torch"},
}
REPLICAS = "gateway=2,inference=2"
REFERENCE_CLIENTS = 24
REFERENCE_TIMEOUT_S = 300.0
# Usage events of a node that died with its last report, and repairs, come late.
LEDGER_TIMEOUT_S = 90.0
LEDGER_POLL_S = 1.0
RECOVERY_TIMEOUT_S = 60.0
VIOLATIONS_SHOWN_MAX = 20
UNKNOWN_COMMAND = 2  # argparse's exit status


@dataclasses.dataclass(frozen=True)
class Options:
    """How long, how hard, whom.

    Attributes:
        kinds: of processes that are struck; none: all.
        shapes: of requests; none: all that the engine can.
        wish_count: different requests, asked over and over.
        bound_s: time in which a wish must end, counted from the last blow.
        check_gaps: hold the silences to their targets.
    """

    seconds: float = 600.0
    interval_s: float = 2.0
    clients: int = 8
    seed: int = 1
    kinds: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    engine: str = "simulated"
    wish_count: int = 160
    pause_share: float = 0.25
    bound_s: float = 60.0
    check_gaps: bool = True

    def command(self) -> str:
        """What reproduces the schedule and the requests."""
        kinds = f" --kinds {','.join(self.kinds)}" if self.kinds else ""
        shapes = f" --shapes {','.join(self.shapes)}" if self.shapes else ""
        return (
            f"python -m tests.chaos --seconds {self.seconds:g} --interval {self.interval_s:g} "
            f"--clients {self.clients} --seed {self.seed} --engine {self.engine} "
            f"--wishes {self.wish_count} --pauses {self.pause_share:g}{kinds}{shapes}"
        )


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the clients saw, and what was done to the copy meanwhile."""

    references: References
    outcomes: Sequence[Outcome]
    struck: Sequence[Struck]
    # When the last blow was over.
    last_blow_s: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of it."""

    outcomes: Sequence[Outcome]
    struck: Sequence[Struck]
    gaps: Gaps
    violations: Sequence[Violation]
    audit: str


Say = Callable[[str], None]


def run(mesh: RunningMesh, options: Options, say: Say) -> Result:
    """The whole experiment on a running copy."""
    begin = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begin

    home = Home(mesh.home)
    shapes = options.shapes or SHAPES_BY_ENGINE[options.engine]
    wishes = plan(options.seed, options.wish_count, shapes)
    references = _references(mesh, wishes, clock)
    wishes = [wish for wish in wishes if wish.number in references]
    say(f"{clock():6.1f} s  {len(wishes)} requests undisturbed; now with blows")

    place = _place(mesh, dict.fromkeys(shapes, ""))
    crowd = Crowd(wishes, place, options.clients, clock)
    crowd.start()
    blows = schedule(
        options.seed, options.seconds, options.interval_s,
        strikes.processes(home, options.kinds), options.pause_share,
    )  # fmt: skip

    def dealt(blow: Blow) -> None:
        pause = f" for {blow.pause_s:.1f} s" if blow.pause_s else ""
        say(f"{clock():6.1f} s  {blow.how} {blow.process}{pause}; {len(crowd.outcomes)} done")

    struck = strikes.deal(home, blows, clock, dealt)
    last_s = max((one.at_s + one.blow.pause_s for one in struck), default=clock())
    crowd.stop()
    outcomes = [*crowd.join(options.bound_s), *crowd.outcomes]
    say(f"{clock():6.1f} s  {len(outcomes)} requests; waiting for the ledger")
    evidence = Evidence(references, outcomes, struck, last_s)
    return _judged(mesh, options, place, evidence)


def _references(
    mesh: RunningMesh, wishes: Sequence[Wish], clock: Callable[[], float]
) -> References:
    """Every wish once, with nobody struck.

    Raises:
        AssertionError: one of them failed: the copy is not well to begin with.
    """
    key = mesh.new_key()
    place = _place(mesh, {wish.shape: key for wish in wishes})
    crowd = Crowd(wishes, place, min(REFERENCE_CLIENTS, len(wishes)), clock, rounds=1)
    crowd.start()
    late = crowd.join(REFERENCE_TIMEOUT_S)
    failed = [*late, *(one for one in crowd.outcomes if one.failure)]
    assert not failed, f"undisturbed requests failed: {failed[:3]}"
    return verdict.comparable({one.number: one.answers for one in crowd.outcomes})


def _place(mesh: RunningMesh, keys: Mapping[str, str]) -> Place:
    """With a new account for each shape that has no key: drift then names its shape."""
    given = {shape: key or mesh.new_key() for shape, key in keys.items()}
    return Place(mesh.root_url, mesh.tls_address, mesh.ca_cert.read_bytes(), given)


def _judged(mesh: RunningMesh, options: Options, place: Place, seen: Evidence) -> Result:
    outcomes, struck = seen.outcomes, seen.struck
    accounts = {shape: shape for shape in place.keys}
    expected = verdict.expected_usage(seen.references, outcomes, accounts)
    found_gaps = verdict.gaps(outcomes, struck)
    audit = _audit(mesh)
    violations = [
        *verdict.wrong_answers(seen.references, outcomes),
        *verdict.wrong_ledger(expected, _settled_usage(place, expected)),
        *verdict.wrong_statuses(outcomes, struck, documented.load()),
        *verdict.hung(outcomes, seen.last_blow_s, options.bound_s),
        *(verdict.too_slow(found_gaps) if options.check_gaps else ()),
        *_not_back(mesh),
        *([Violation("audit", audit)] if audit not in ("clean", "not there") else ()),
    ]
    return Result(outcomes, struck, found_gaps, violations, audit)


def _settled_usage(place: Place, expected: Mapping[str, Usage]) -> dict[str, Usage]:
    """What the ledger has once it has all of it, or when it has had its time."""
    end = time.monotonic() + LEDGER_TIMEOUT_S
    while True:
        found = {shape: _usage(place, shape) for shape in expected}
        if found == expected or time.monotonic() > end:
            return found
        time.sleep(LEDGER_POLL_S)


def _usage(place: Place, shape: str) -> Usage:
    body: Mapping[str, Any] = Server(place.url, place.keys[shape]).call("GET", "/api/usage")
    return Usage(body["input_tokens"], body["output_tokens"], body["turn_count"])


def _audit(mesh: RunningMesh) -> str:
    """What `mesh.ctl audit` says: "clean", "not there" (an older copy), or its finding."""
    command = [sys.executable, "-m", "mesh.ctl", "audit", "--json"]
    done = subprocess.run(
        command, env=mesh.environment, cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if done.returncode == UNKNOWN_COMMAND:
        return "not there"
    return "clean" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def _not_back(mesh: RunningMesh) -> list[Violation]:
    """Every process serves again."""
    end = time.monotonic() + RECOVERY_TIMEOUT_S
    while True:
        rows = mesh.status()
        away = [row["instance"] for row in rows if row["health"] not in ("serving", "running")]
        if rows and not away:
            return []
        if time.monotonic() > end:
            return [Violation("away", f"does not serve again: {name}") for name in away or ["all"]]


def as_json(result: Result, options: Options) -> str:
    """One line for those who keep figures."""
    kinds = sorted({one.blow.kind for one in result.struck})
    return json.dumps(
        {
            "bench": "chaos",
            **dataclasses.asdict(options),
            "requests": len(result.outcomes),
            "reconnects": sum(t.status == 0 for one in result.outcomes for t in one.troubles),
            "troubles": dict(verdict.statuses(result.outcomes)),
            "blows": {kind: sum(one.blow.kind == kind for one in result.struck) for kind in kinds},
            "gap_s": {
                kind: {
                    "median": round(result.gaps.median(kind) or 0.0, 3),
                    "max": round(result.gaps.worst(kind) or 0.0, 3),
                }
                for kind in sorted(result.gaps.by_kind)
            },
            "audit": result.audit,
            "violation_count": len(result.violations),
            "violations": [
                dataclasses.asdict(one) for one in result.violations[:VIOLATIONS_SHOWN_MAX]
            ],
        }
    )
