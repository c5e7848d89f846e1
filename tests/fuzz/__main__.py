"""Fuzzes a running copy of its own, every public method: `python -m tests.fuzz --minutes 30`.

Every case has a number, and is made of it and the seed alone (and of ids that earlier cases made):
`--seed 7 --first 1200 --count 1` sends one again. Ends with the audit of the ledger; the exit
status is 1 when an answer was one that none may be, or the ledger is not exact.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.fuzz.drive import Outcome, audited, fuzzer
from tests.support.running import RunningMesh, running_mesh

WORKERS = 8
FINDINGS_SHOWN_MAX = 20
COUNT_MAX = 1 << 40


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=COUNT_MAX, help="most cases")
    parser.add_argument("--engine", choices=("simulated", "torch"), default="simulated")
    return parser.parse_args()


async def fuzzed(mesh: RunningMesh, given: argparse.Namespace) -> Outcome:
    """Sends the cases to a copy."""
    async with fuzzer(mesh.root_url, mesh.api_key) as found:
        numbers = range(given.first, given.first + given.count)
        await found.run(given.seed, numbers, given.minutes * 60, WORKERS)
        return found.outcome


def main() -> int:
    """Runs it; returns the exit status."""
    given = parse()
    settings = {"REPLICAS": "gateway=2,inference=2", "INFERENCE_ENGINE": given.engine}
    with tempfile.TemporaryDirectory() as folder, running_mesh(Path(folder), **settings) as mesh:
        outcome = asyncio.run(fuzzed(mesh, given))
        summary = audited(mesh, mesh.account_of(mesh.api_key))
    for finding in outcome.findings[:FINDINGS_SHOWN_MAX]:
        print(f"{finding}\n")
    print(f"{sum(outcome.answered.values())} cases: {dict(outcome.answered)}")
    print(f"ledger: {summary}")
    print(f"{len(outcome.findings)} answers that none may be")
    return 1 if outcome.findings or summary["differing_turns"] else 0


if __name__ == "__main__":
    sys.exit(main())
