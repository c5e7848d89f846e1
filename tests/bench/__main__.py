"""chatmesh, an earlier commit of it, LiteLLM and a pure proxy, in one interleaved run.

`make bench`; see README.md. Prints tables and, as the last line, the same as one line of JSON.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from tests.bench import processes, report, systems
from tests.bench.figures import shown, without_nan
from tests.bench.limits import raise_file_limit
from tests.bench.load import wave
from tests.bench.measure import Cell, Measured, measure
from tests.bench.prompts import endless
from tests.bench.quiet import FOREIGN_CORES_MAX
from tests.bench.systems import System

OURS = "chatmesh"
ONE, BASE = Cell(1, 32, 1.0), Cell(64, 128, 2.5)
CELLS = (
    ONE,
    Cell(64, 32, 2.5),
    BASE,
    Cell(64, 256, 2.5, metered=True),
    Cell(256, 128, 2.5),
    Cell(1024, 128, 0.0),
)
# The real engine ends its answers itself.
TORCH_CELLS = (Cell(1, 48, 2.0, exact=False), Cell(64, 48, 5.0, exact=False))
# Of whole answers at LiteLLM; a wave of more takes it up to a minute.
LITELLM_TOKEN_COUNT_MAX = 64 * 128
SHORT_ANSWERS = (("temperature", 0.3),)


@dataclass
class Clock:
    """The time that a run may take, and how far it is.

    Attributes:
        end_s: of the monotonic clock, as all of it.
    """

    end_s: float
    begin_s: float
    longest_round_s: float = 0.0

    def room_for_a_round(self, now_s: float) -> bool:
        """Whether one more round as long as the longest ends in time."""
        return now_s + self.longest_round_s < self.end_s

    def room_to_repeat(self, now_s: float, done: float) -> bool:
        """Whether the run, `done` (0 to 1) through, is ahead of its time."""
        return now_s - self.begin_s < done * (self.end_s - self.begin_s)


class Run:
    """The rounds of a benchmark and what they gave."""

    def __init__(self, arguments: argparse.Namespace, running: list[System], backend: System):
        self.arguments, self.running, self.backend = arguments, running, backend
        self.results: dict[tuple[str, Cell], list[Measured]] = {}
        now = time.monotonic()
        self.clock = Clock(now + arguments.minutes * 60, now)

    async def rounds(self, cells: tuple[Cell, ...]) -> None:
        """Each system in turn, each cell after the other; the first one is another each time."""
        for number in range(self.arguments.rounds):
            if not self.clock.room_for_a_round(time.monotonic()):
                print(f"the time is up after {number} rounds", flush=True)
                return
            begin = time.monotonic()
            for at, cell in enumerate(cells):
                done = (number + at / len(cells)) / self.arguments.rounds
                turn = number % len(self.running)
                for system in self.running[turn:] + self.running[:turn]:
                    if _asked(system, cell):
                        await self._one(number, system, cell, done)
            taken = time.monotonic() - begin
            self.clock.longest_round_s = max(self.clock.longest_round_s, taken)

    async def _one(self, number: int, system: System, cell: Cell, done: float) -> None:
        """One measurement; again when others used the processors and there is time for it."""
        for attempt in range(self.arguments.repeats + 1):
            # The same prompts in the same order for each system.
            prompts = endless(1_000 * number + cell.stream_count + cell.token_count + attempt)
            found = await measure(system, self.backend, _for(system, cell), prompts)
            _tell(number, system, cell, found)
            quiet = found.foreign_cores <= FOREIGN_CORES_MAX
            if quiet or not self.clock.room_to_repeat(time.monotonic(), done):
                break
        self.results.setdefault((system.name, cell), []).append(found)


def _asked(system: System, cell: Cell) -> bool:
    few = cell.stream_count * cell.token_count <= LITELLM_TOKEN_COUNT_MAX
    return few or system.name != "litellm"


def _for(system: System, cell: Cell) -> Cell:
    """Only chatmesh has a ledger."""
    return cell if system.whole else replace(cell, metered=False)


def _tell(number: int, system: System, cell: Cell, found: Measured) -> None:
    others = ", ".join(f"{count} {kind}" for kind, count in found.wave.others().items())
    print(
        f"round {number + 1} {system.name:<9} {cell!s:>11}  "
        f"{shown(found.wave.turns_per_s):>8} turns/s "
        f"{shown(sum(found.cpu_ms.values()), 2):>7} CPU ms/turn "
        f"{shown(found.wave.first_token_ms(0.5)):>8} ms to the first "
        f"{found.foreign_cores:>5.2f} cores of others  {others}",
        flush=True,
    )


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    systems.WORK.mkdir(parents=True, exist_ok=True)
    torch = arguments.engine == "torch"
    engine = systems.TORCH if torch else systems.SIMULATED
    cells = TORCH_CELLS if torch else CELLS
    cells = tuple(c for c in cells if not arguments.cells or str(c) in arguments.cells)
    begin = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(systems.mock())
        running = [
            await stack.enter_async_context(one) for one in _contenders(arguments, engine, backend)
        ]
        if torch:
            running = [_sampling(one) for one in running]
        for one in running:  # connections, caches and code paths are warm in every round
            await wave(one.target, 32, 32, 2.0, endless(0), exact=False)
        found = Run(arguments, running, backend)
        found.clock.end_s -= time.monotonic() - begin  # starting counts too
        await found.rounds(cells)
        memory = {one.name: _memory(one) for one in running}
    _report(arguments, found.results, memory, time.monotonic() - begin)


def _memory(system: System) -> dict[str, float]:
    found = processes.memory_kib(system.root)
    return found if system.whole else {system.name: sum(found.values())}


def _sampling(system: System) -> System:
    return replace(system, target=replace(system.target, sampling=SHORT_ANSWERS))


def _contenders(
    arguments: argparse.Namespace, engine: dict[str, str], backend: System
) -> list[contextlib.AbstractAsyncContextManager[System]]:
    made = [systems.chatmesh(OURS, engine, tls=arguments.tls)]
    if arguments.against:
        checkout = Path(arguments.against).resolve()
        made.append(systems.chatmesh("earlier", engine, checkout=checkout, tls=arguments.tls))
    if arguments.engine == "simulated":
        made += [systems.litellm(backend), systems.router(backend)]
    names = [OURS, *(["earlier"] if arguments.against else []), "litellm", "router"]
    return [
        one
        for name, one in zip(names, made, strict=False)
        if not arguments.only or name in arguments.only
    ]


def _report(
    arguments: argparse.Namespace,
    results: dict[tuple[str, Cell], list[Measured]],
    memory: dict[str, dict[str, float]],
    seconds: float,
) -> None:
    print(report.tables(results, memory))
    ratios, shares = report.ratios(results, OURS), report.shares(results, BASE)
    print(f"\nturns/s, {ratios}\nturns/s as a share of {BASE}: {shares}\n{seconds:.0f} s in all")
    by_system: dict[str, dict[str, object]] = {}
    for (name, cell), some in results.items():
        by_system.setdefault(name, {})[str(cell)] = report.medians(some)
    line = {
        "bench": "turns",
        "commit": commit(systems.ROOT),
        "against": commit(Path(arguments.against)) if arguments.against else None,
        "engine": arguments.engine,
        "cpus": os.cpu_count(),
        "seconds": round(seconds),
        "ratios": ratios,
        "shares": shares,
        "memory_kib": memory,
        "systems": by_system,
    }
    print(json.dumps(without_nan(line)))


def commit(checkout: Path) -> str:
    """The short id of what is checked out; with + if files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="folder of an earlier commit with its environment")
    parser.add_argument("--engine", choices=("simulated", "torch"), default="simulated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="of what others disturbed, at most")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="no round begins that ends later"
    )
    parser.add_argument("--cells", nargs="*", help='only these, such as "64 × 128"')
    parser.add_argument("--only", nargs="*", help="chatmesh, earlier, litellm, router")
    parser.add_argument("--tls", action="store_true", help="TLS at our edge (proxies have none)")
    raise_file_limit()
    uvloop.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
