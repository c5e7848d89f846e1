"""python -m tests.simulation --seed N [--variant NAME] [--trace] | --seeds COUNT [--first N]"""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.simulate import simulate
from tests.simulation.variants import VARIANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="one run")
    parser.add_argument("--seeds", type=int, help="so many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed of them")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="with this broken on purpose")
    parser.add_argument("--trace", action="store_true", help="what happened, line by line")
    asked = parser.parse_args()
    variant = VARIANTS[asked.variant] if asked.variant else None
    if asked.seeds is None:
        result = simulate(asked.seed or 0, variant, name=asked.variant or "", trace=asked.trace)
        print(*result.trace, sep="\n")
        print(result if result.violations else f"seed {result.seed}: all laws hold")
        return bool(result.violations)
    begin, failed, kinds = time.perf_counter(), 0, Counter[str]()
    for seed in range(asked.first, asked.first + asked.seeds):
        result = simulate(seed, variant, name=asked.variant or "")
        kinds.update(result.faults)
        if result.violations:
            failed += 1
            print(f"seed {seed}:\n{result}\n", flush=True)
    print(
        f"{asked.seeds} seeds, {failed} failed, {time.perf_counter() - begin:.1f} s; {dict(kinds)}"
    )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
