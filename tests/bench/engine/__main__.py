"""The engine against its peers, in one interleaved run. `make bench-engine`; see README.md.

Prints a table for each model, then what features.py measures of our engine alone and the limits of
the machine, and as the last line everything as one line of JSON.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.engine import features
from tests.bench.engine.contenders import Burst, Contender, Driver, contenders
from tests.bench.engine.install import install
from tests.bench.engine.shapes import SHAPES, checkpoint
from tests.bench.quiet import FOREIGN_CORES_MAX, wait_until_quiet

ROOT = Path(__file__).resolve().parents[3]
WORK = ROOT / "build" / "bench" / "engine"
PROMPT_TOKENS, NEW_TOKENS = 512, 128
LONG_PROMPT_TOKENS = 1024
ATTEMPTS = 3  # a burst that a neighbour disturbed is repeated


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.bench.engine", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="parts of contenders' names")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-bench" / "engine")
    parser.add_argument("--no-features", action="store_true", help="only the comparison")
    parser.add_argument("--quiet-timeout", type=float, default=120.0, help="seconds to wait")
    options = parser.parse_args()
    chosen = [
        contender
        for contender in contenders(install(options.peers.resolve()))
        if not options.only or any(part in contender.name for part in options.only)
    ]
    WORK.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in options.models:
        folder = checkpoint(SHAPES[name], WORK)
        results[name] = compare(chosen, folder, options)
        show(name, results[name])
    report: dict[str, Any] = {"models": results}
    if not options.no_features:
        report["features"] = features.measure(checkpoint(SHAPES["27m"], WORK), options.threads)
    print(json.dumps(report))


def compare(chosen: list[Contender], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All contenders on one model: started once, asked in turn, round by round."""
    drivers: list[Driver] = []
    try:
        for contender in chosen:
            log = WORK / f"{contender.name.replace(' ', '-')}.log"
            try:
                # The first start may convert the checkpoint and fill caches; the second one counts.
                Driver(contender, folder, options.threads, log).close()
                wait_until_quiet(options.quiet_timeout)
                drivers.append(Driver(contender, folder, options.threads, log))
            except RuntimeError as error:
                print(f"left out: {error}; see {log}", file=sys.stderr)
        for round_number in range(options.rounds):
            for count in options.concurrency:
                for driver in drivers:
                    sizes = Burst(count, PROMPT_TOKENS, NEW_TOKENS, seed=1000 * round_number)
                    reply = undisturbed(driver, sizes, options.quiet_timeout)
                    rate = count * NEW_TOKENS / reply["seconds"]
                    driver.figures.tokens_per_s.setdefault(count, []).append(rate)
            for driver in drivers:
                sizes = Burst(1, LONG_PROMPT_TOKENS, 1, seed=1000 * round_number + 500)
                reply = undisturbed(driver, sizes, options.quiet_timeout)
                if reply["first_token_s"] is not None:
                    driver.figures.first_token_1k_s.append(reply["first_token_s"])
        return {driver.contender.name: driver.figures.summary() for driver in drivers}
    finally:
        for driver in drivers:
            driver.close()


def undisturbed(driver: Driver, sizes: Burst, quiet_timeout_s: float) -> Any:
    """One burst beside which nothing else ran; after `ATTEMPTS` the last one counts, and the report
    names the foreign use."""
    for attempt in range(ATTEMPTS):
        wait_until_quiet(quiet_timeout_s)
        reply, foreign_cores = driver.ask(sizes)
        print(
            f"{driver.contender.name}: {sizes.concurrency} x {sizes.prompt_tokens}+"
            f"{sizes.new_tokens} in {reply['seconds']:.2f} s, foreign {foreign_cores:.2f}",
            file=sys.stderr,
        )
        if foreign_cores < FOREIGN_CORES_MAX or attempt == ATTEMPTS - 1:
            driver.figures.foreign_cores = max(driver.figures.foreign_cores, foreign_cores)
            return reply
        sizes = replace(sizes, seed=sizes.seed + 1)  # no peer may have kept the prompt
    raise AssertionError("unreachable")


def show(model: str, figures: dict[str, Any]) -> None:
    """The table of one model: tokens a second, and each rate over the first contender's peers."""
    counts = list(next(iter(figures.values()))["tokens_per_s"])
    print(f"\n{model}: output tokens/s at {', '.join(map(str, counts))} requests")
    for name, row in figures.items():
        rates = "  ".join(f"{row['tokens_per_s'][count]:9.1f}" for count in counts)
        first = row["first_token_1k_ms"]
        print(
            f"  {name:22} {rates}   first token of 1k "
            f"{'      -' if first is None else f'{first:7.1f}'} ms   start {row['start_s']:6.2f} s"
            f"   peak {row['peak_mib']:6d} MiB   foreign {row['foreign_cores_max']:.2f}"
        )
    ours, *peers = figures
    for peer in peers:
        ratios = "  ".join(
            f"{figures[ours]['tokens_per_s'][c] / figures[peer]['tokens_per_s'][c]:8.2f}x"
            for c in counts
        )
        print(f"  {ours} / {peer:22} {ratios}")


if __name__ == "__main__":
    main()
