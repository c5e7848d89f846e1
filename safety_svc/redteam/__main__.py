"""Attacks the mesh, or its prompt screen alone: `python -m safety_svc.redteam [--fast]`.

Against the running mesh it reads OPENAI_BASE_URL and OPENAI_API_KEY (`.chatmesh/dev.env`), as
clients do, and files what nothing stopped. Use a key of the tier pro: the shipped policy lets
administrators and enterprises do what strangers may not. With `--fast` the shipped screen is asked
in this process; `--record NAME` keeps the figures, `--show` draws all that were kept. The last line
of stdout is one JSON object.
"""

import argparse
import datetime as dt
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from safety_svc.policy_file import read as read_policy
from safety_svc.redteam import attempts, cases, fast, results
from safety_svc.redteam.attack import THROUGH, Outcome, Target, first_model
from safety_svc.redteam.attempts import Attempt
from safety_svc.redteam.fast import Tally
from safety_svc.redteam.screening import Screen
from safety_svc.settings import POLICY

CASES = Path("tests/unit/safety/redteam_cases.jsonl")
Z_95 = 1.96
_DIGEST_LENGTH = 12


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    rate, square = hits / count, Z_95**2
    middle = (rate + square / (2 * count)) / (1 + square / count)
    spread = math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    half = Z_95 * spread / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def report(outcomes: Iterable[tuple[Attempt, Outcome]]) -> dict[str, dict[str, float]]:
    """Figures by technique: counts of outcomes; what was of use, with its interval."""
    counts: dict[str, Counter[Outcome]] = {}
    for attempt, outcome in outcomes:
        counts.setdefault(attempt.technique.name, Counter())[outcome] += 1
    found: dict[str, dict[str, float]] = {}
    for name, count in counts.items():
        judged = sum(count.values()) - count[Outcome.FAILED]
        through = sum(count[one] for one in THROUGH)
        low, high = wilson(count[Outcome.USEFUL], judged)
        found[name] = {one.value: count[one] for one in Outcome}
        found[name] |= {
            "through": through / judged if judged else 0.0,
            "success": count[Outcome.USEFUL] / judged if judged else 0.0,
            "success_low": low,
            "success_high": high,
        }
    return found


def show(title: str, found: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the outcomes by technique."""
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


def fast_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every attempt against the screen of this process; keeps the figures when told to."""
    screen = Screen.shipped(arguments.weights)
    found = fast.screened(screen, attempts.attacks(arguments.technique, arguments.seeds))
    twins = fast.screened(screen, attempts.twins(arguments.technique, arguments.seeds))
    search: Mapping[str, float] = {}
    if not arguments.technique:
        found[fast.SEARCH], search = fast.searched(screen, arguments.budget)
        twins[fast.SEARCH] = fast.searched_twins(screen)
    print(f"{'technique':38}{'tries':>6}{'caught':>8}{'refused':>9}{'twins':>7}{'refused':>9}")
    for name, one in found.items():
        twin = twins.get(name, Tally())
        print(
            f"{name:38}{one.tries:>6}{one.caught:>8}{one.refused:>9}{twin.tries:>7}{twin.refused:>9}"
        )
    if arguments.record:
        version = {
            "version": arguments.record,
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "policy": screen.version,
            "classifier": screen.digest[:_DIGEST_LENGTH],
        }
        results.keep(arguments.results, results.record(version, found, twins, search))
    return {
        "techniques": len(found),
        "attempts": sum(one.tries for one in found.values()),
        "caught": sum(one.caught for one in found.values()),
        "refused": sum(one.refused for one in found.values()),
        "twins": sum(one.tries for one in twins.values()),
        "twins_refused": sum(one.refused for one in twins.values()),
        "search": dict(search),
    }


def mesh_run(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Every attempt against the running mesh; exit status 1 when it answered none of them."""
    base_url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    target = Target(base_url, key, arguments.model or first_model(base_url, key))
    planned = attempts.attacks(arguments.technique, arguments.seeds)
    harmless = attempts.twins(arguments.technique, arguments.seeds)
    with ThreadPoolExecutor(arguments.concurrency) as threads:
        outcomes = list(threads.map(target.attack, [*planned, *harmless]))
    came = list(zip(planned, outcomes, strict=False))
    found = report(came)
    twins = report(zip(harmless, outcomes[len(planned) :], strict=True))
    show("attacks", found)
    show("harmless requests in the same frames", twins)
    through = [attempt for attempt, outcome in came if outcome in THROUGH]
    filed = 0
    if through and not arguments.dry:
        version = read_policy(POLICY.read_text(encoding="utf-8"), POLICY.name).version
        today = dt.datetime.now(dt.UTC).date().isoformat()
        new = [cases.case_of(each, today, version) for each in through]
        filed = cases.file(arguments.cases, new)
    failed = sum(outcome is Outcome.FAILED for _, outcome in came)
    total = {
        "attempts": len(came),
        "through": len(through),
        "useful": sum(outcome is Outcome.USEFUL for _, outcome in came),
        "failed": failed,
        "filed": filed,
        "techniques": found,
        "twins": twins,
    }
    return total, 1 if failed == len(came) else 0


def main() -> int:
    """Runs what is asked for; exit status 1 when the mesh did not answer."""
    parser = argparse.ArgumentParser(prog="safety_svc.redteam", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="the screen alone, in this process")
    parser.add_argument(
        "--record", default="", help="with --fast: keep the figures as this version"
    )
    parser.add_argument("--weights", type=Path, help="with --fast: of this folder")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--show", action="store_true", help="only write page and picture")
    parser.add_argument("--budget", type=int, default=fast.BUDGET, help="tries of a search")
    parser.add_argument("--technique", action="append", default=[], help="only it; repeatable")
    parser.add_argument("--seeds", type=int, default=1_000, help="at most so many for a technique")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--model", default="", help="default: the first that the edge lists")
    parser.add_argument("--cases", type=Path, default=CASES, help="where successes are filed")
    parser.add_argument("--dry", action="store_true", help="file nothing")
    parser.add_argument("--recheck", action="store_true", help="only screen the filed cases again")
    arguments = parser.parse_args()
    status, said = 0, {}
    if arguments.recheck:
        said = {"known_open": recheck(arguments.cases)}
    elif arguments.show:
        kept = results.read(arguments.results)
        results.PAGE.write_text(results.page(kept), encoding="utf-8")
        results.draw(kept, results.PICTURE)
        said = {"versions": len(kept)}
    elif arguments.fast:
        said = fast_run(arguments)
    else:
        said, status = mesh_run(arguments)
    print(json.dumps(said))
    return status


if __name__ == "__main__":
    sys.exit(main())
