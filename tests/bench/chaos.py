"""kill -9 of each process under load, and what clients saw: `python -m tests.bench.chaos`.

Prints a table for docs/LOG.md; the last line is the same as JSON.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from tests.support.chaos import Load, Seen, kill_and_watch
from tests.support.running import running_mesh

PROCESSES = (
    "gateway-1",
    "billing-1",
    "conversation-1",
    "safety-1",
    "tokenizer-1",
    "inference-1",
    "edge-1",
    "control-1",
    "envoy",
    "redis",
    "postgres",
)
CLIENT_COUNT = 8


def row(seen: Seen) -> str:
    """One line of the table."""
    failures = ", ".join(f"{count} × {kind}" for kind, count in seen.failures.items()) or "none"
    return (
        f"| {seen.process} | {seen.down_s} | {seen.ok_during} | {failures} | "
        f"{seen.ok_after} / {seen.failed_after} | {seen.slowest_s} |"
    )


def main() -> int:
    """Runs all; the exit status is 1 when something did not come back."""
    results = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_mesh(Path(folder), REPLICAS="gateway=2,inference=2") as mesh,
    ):
        print("| killed | back after, s | good meanwhile | failed meanwhile | after | slowest, s |")
        print("|---|--:|--:|---|--:|--:|")
        for process in PROCESSES:
            with Load(mesh, CLIENT_COUNT) as load:
                results.append(kill_and_watch(mesh, load, process))
            print(row(results[-1]), flush=True)
    print(json.dumps({"bench": "chaos", "kills": [dataclasses.asdict(one) for one in results]}))
    return 0 if all(one.restarted for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
