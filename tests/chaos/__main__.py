"""Kills and pauses processes of a running copy under clients that resume: `make chaos`.

Prints its progress, a table for docs/LOG.md, and as the last line the same as JSON. The exit status
is 1 when a law was broken; docs/CHAOS.md has the laws, and what a client may see of each kill.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos import report
from tests.chaos.experiment import ENGINES, REPLICAS, VIOLATIONS_SHOWN_MAX, Options, as_json, run
from tests.support.running import running_mesh


def parse(arguments: list[str] | None = None) -> Options:
    """The command line."""
    own = Options()
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=own.seconds, help="of blows")
    parser.add_argument("--interval", type=float, default=own.interval_s, help="between two blows")
    parser.add_argument("--clients", type=int, default=own.clients)
    parser.add_argument("--seed", type=int, default=own.seed, help="of schedule and requests")
    parser.add_argument("--kinds", default="", help="such as gateway,envoy; default: all")
    parser.add_argument("--shapes", default="", help="such as stream,typed; default: all")
    parser.add_argument("--engine", choices=tuple(ENGINES), default=own.engine)
    parser.add_argument("--wishes", type=int, default=own.wish_count, help="different requests")
    parser.add_argument("--pauses", type=float, default=own.pause_share, help="share of SIGSTOP")
    given = parser.parse_args(arguments)
    return Options(
        seconds=given.seconds,
        interval_s=given.interval,
        clients=given.clients,
        seed=given.seed,
        kinds=_words(given.kinds),
        shapes=_words(given.shapes),
        engine=given.engine,
        wish_count=given.wishes,
        pause_share=given.pauses,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def main() -> int:
    """Runs it; returns the exit status."""
    options = parse()
    print(options.command(), flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_mesh(Path(folder), REPLICAS=REPLICAS, **ENGINES[options.engine]) as mesh,
    ):
        result = run(mesh, options, lambda line: print(line, flush=True))
    print(f"\n{report.table(result)}\n")
    for one in result.violations[:VIOLATIONS_SHOWN_MAX]:
        print(f"VIOLATION {one.law}: {one.detail}")
    if result.violations:
        print(f"{len(result.violations)} violations; the same again: {options.command()}")
    print(as_json(result, options))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
