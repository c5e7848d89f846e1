"""Attacks the running mesh and files what gets through: `python -m safety_svc.redteam`.

Reads OPENAI_BASE_URL and OPENAI_API_KEY (`.chatmesh/dev.env`), as clients do. Use a key of the tier
pro: the shipped policy lets administrators and enterprises do what strangers may not. The last line
of stdout is one JSON object.
"""

import argparse
import datetime as dt
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import yaml

from safety_svc.policy_file import read as read_policy
from safety_svc.redteam import cases
from safety_svc.redteam.attack import Attempt, Outcome, Target, first_model
from safety_svc.redteam.screening import Screen
from safety_svc.redteam.templates import CONTROLS, TEMPLATES
from safety_svc.settings import POLICY

SEEDS = Path(__file__).with_name("seeds.yaml")
CASES = Path("tests/unit/safety/redteam_cases.jsonl")
Z_95 = 1.96


def attempts(templates: Sequence[str] = (), seed_count_max: int = 1_000) -> list[Attempt]:
    """Every template with each of its seeds."""
    seeds = yaml.safe_load(SEEDS.read_text(encoding="utf-8"))
    return [
        Attempt(template, _seed(seed))
        for template in TEMPLATES
        if not templates or template.name in templates
        for seed in seeds[template.goal][:seed_count_max]
    ]


def controls(templates: Sequence[str] = ()) -> list[Attempt]:
    """Every innocent frame with harmless seeds: what must go through."""
    seeds = yaml.safe_load(SEEDS.read_text(encoding="utf-8"))
    return [
        Attempt(template, _seed(seed))
        for template in TEMPLATES
        if template.is_innocent and (not templates or template.name in templates)
        for seed in seeds[CONTROLS[template.goal]]
    ]


def _seed(seed: Mapping[str, str] | str) -> Mapping[str, str]:
    return {"en": seed} if isinstance(seed, str) else seed


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    rate, square = hits / count, Z_95**2
    middle = (rate + square / (2 * count)) / (1 + square / count)
    spread = math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    half = Z_95 * spread / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def report(results: Iterable[tuple[Attempt, Outcome]]) -> dict[str, dict[str, float]]:
    """Figures by template: counts of outcomes, and the success of the attack with its interval."""
    counts: dict[str, Counter[Outcome]] = {}
    for attempt, outcome in results:
        counts.setdefault(attempt.template.name, Counter())[outcome] += 1
    found: dict[str, dict[str, float]] = {}
    for name, count in counts.items():
        judged = sum(count.values()) - count[Outcome.FAILED]
        low, high = wilson(count[Outcome.THROUGH], judged)
        rate = count[Outcome.THROUGH] / judged if judged else 0.0
        found[name] = {one.value: count[one] for one in Outcome}
        found[name] |= {"success": rate, "success_low": low, "success_high": high}
    return found


def show(title: str, found: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the outcomes by template."""
    print(f"{title:38}{'tries':>6}" + "".join(f"{one.value:>10}" for one in Outcome))
    for name, figures in found.items():
        counts = [int(figures[one.value]) for one in Outcome]
        print(f"{name:38}{sum(counts):>6}" + "".join(f"{count:>10}" for count in counts))


def recheck(path: Path) -> int:
    """Screens the filed cases with what ships now, and writes which are open; returns how many."""
    screen = Screen.shipped()
    marked = [
        replace(case, known_open=not screen.blocks(case.messages)) for case in cases.read(path)
    ]
    cases.write(path, marked)
    return sum(case.known_open for case in marked)


def main() -> int:
    """Runs the attacks; exit status 1 when the mesh did not answer them."""
    parser = argparse.ArgumentParser(prog="safety_svc.redteam", description=__doc__)
    parser.add_argument("--template", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--seeds", type=int, default=1_000, help="at most so many for a template")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--model", default="", help="default: the first that the edge lists")
    parser.add_argument("--cases", type=Path, default=CASES, help="where successes are filed")
    parser.add_argument("--dry", action="store_true", help="file nothing")
    parser.add_argument("--recheck", action="store_true", help="only screen the filed cases again")
    arguments = parser.parse_args()
    if arguments.recheck:
        print(json.dumps({"known_open": recheck(arguments.cases)}))
        return 0
    base_url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    target = Target(base_url, key, arguments.model or first_model(base_url, key))
    planned = attempts(arguments.template, arguments.seeds)
    control = controls(arguments.template)
    with ThreadPoolExecutor(arguments.concurrency) as threads:
        outcomes = list(threads.map(target.attack, [*planned, *control]))
    results = list(zip(planned, outcomes, strict=False))
    found = report(results)
    harmless = report(zip(control, outcomes[len(planned) :], strict=True))
    show("attacks", found)
    show("harmless requests in the same frames", harmless)
    through = [attempt for attempt, outcome in results if outcome is Outcome.THROUGH]
    filed = 0
    if through and not arguments.dry:
        version = read_policy(POLICY.read_text(encoding="utf-8"), POLICY.name).version
        today = dt.datetime.now(dt.UTC).date().isoformat()
        filed = cases.file(
            arguments.cases, [cases.case_of(each, today, version) for each in through]
        )
    failed = sum(outcome is Outcome.FAILED for _, outcome in results)
    total = {"attempts": len(results), "through": len(through), "failed": failed, "filed": filed}
    print(json.dumps({**total, "templates": found, "control": harmless}))
    return 1 if failed == len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
