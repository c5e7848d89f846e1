"""Open streams that wait: `python -m tests.bench.idle [--streams 10000]`; see README.md.

Opens streams of the simulated engine that had one token and get the next one minutes later. Prints
how many were accepted a second, the memory of each by service, and what they cost others: the
turns a second of 16 streams before, with and after them. Ends with one line of JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, islice

import psutil
import uvloop

from tests.bench import processes, systems
from tests.bench.figures import without_nan
from tests.bench.limits import raise_file_limit
from tests.bench.load import PATIENCE_S, Stream, Target, connect, wave
from tests.bench.prompts import endless, natural
from tests.bench.quiet import Watch
from tests.bench.reply import Answer
from tests.bench.systems import System

SLOW = {
    **systems.SIMULATED,
    "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": "400000",
    "INFERENCE_SIMULATED_RUNNING_COUNT_MAX": "50000",
    "INFERENCE_SIMULATED_KV_BLOCK_COUNT": "1000000",
}
OTHERS = 16
OTHERS_S = 3.0
OPENING_AT_ONCE = 64
FILES_SPARE = 1_000
# One address has fewer ports than one might want streams; loopback has many addresses.
SOURCES = [f"127.0.0.{number}" for number in range(2, 18)]
SAME_ANSWERS = (("seed", 18),)
SETTLE_S = 3.0
IDLE_S = 5.0
PROBE_S = 3.0
STREAM_S = 600.0  # a turn ends sooner by itself
GONE_S = 10.0  # after the readers left: their grace and the end of their turns


class Opening:
    """Streams as they are opened: those that wait, and why others do not."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.prompts: list[str] = []
        self.streams: list[Stream] = []
        self.asking: list[asyncio.Task[Answer]] = []
        self.refused: Counter[str] = Counter()

    async def open(self, prompts: Iterable[str], patience_s: float) -> float:
        """Opens one for each prompt, some at once; returns the seconds until each had its token."""
        begin, left = time.perf_counter(), enumerate(prompts)

        async def some() -> None:
            for number, prompt in left:
                await self._one(number, prompt, patience_s)

        await asyncio.gather(*(some() for _ in range(OPENING_AT_ONCE)))
        return time.perf_counter() - begin

    async def _one(self, number: int, prompt: str, patience_s: float) -> None:
        """One stream up to its first token."""
        stream = await connect(self.target, SOURCES[number % len(SOURCES)])
        request = self.target.request(self.target.account(number), 64, prompt)
        asking = asyncio.create_task(stream.ask(request, None, STREAM_S))
        first = asyncio.create_task(stream.first.wait())
        await asyncio.wait((first, asking), timeout=patience_s, return_when=FIRST_COMPLETED)
        first.cancel()
        if stream.first.is_set() and not asking.done():
            self.prompts.append(prompt)
            self.streams.append(stream)
            self.asking.append(asking)
            return
        stream.close()
        answer = await asking
        self.refused[f"{answer.kind}: {answer.detail}"] += 1

    async def close(self) -> None:
        """All readers leave."""
        for stream in self.streams:
            stream.close()
        await asyncio.gather(*self.asking)


async def that_begin(target: Target) -> list[str]:
    """The prompts whose first token the policy lets through at once; opens a stream with each.

    Some first tokens (a digit, half a word) are held back until more text has come, which here
    would be minutes; the simulated answer depends on prompt and seed. Also warms everything up.
    """
    opening = Opening(target)
    await opening.open(natural(), PROBE_S)
    await opening.close()
    return opening.prompts


async def others(system: System, seed: int) -> float:
    """Turns a second of 16 streams of one token each: the median of three waves."""
    found = [
        await wave(system.target, OTHERS, 1, OTHERS_S, endless(seed + number))
        for number in range(3)
    ]
    return statistics.median(one.turns_per_s for one in found)


async def cores(system: System) -> dict[str, float]:
    """What each service uses while nothing is asked."""
    before = processes.cpu_by_service(system.root)
    await asyncio.sleep(IDLE_S)
    spent = processes.grown(before, processes.cpu_by_service(system.root))
    return {name: round(value / IDLE_S, 3) for name, value in spent.items()}


async def measured(system: System, count: int) -> dict[str, object]:
    """The figures of so many idle streams."""
    prompts = await that_begin(system.target)
    await asyncio.sleep(GONE_S)
    before_per_s, before_cores = await others(system, 100), await cores(system)
    memory = processes.memory_kib(system.root)
    opening = Opening(system.target)
    with Watch([psutil.Process()]) as watch:
        seconds = await opening.open(islice(cycle(prompts), count), PATIENCE_S)
    await asyncio.sleep(SETTLE_S)
    held = sum(not asking.done() for asking in opening.asking)
    after, idle_cores = processes.memory_kib(system.root), await cores(system)
    with_per_s = await others(system, 200)
    await opening.close()
    await asyncio.sleep(GONE_S)
    after_per_s = await others(system, 300)
    grown = {name: (after[name] - memory.get(name, 0.0)) / max(1, held) for name in after}
    return {
        "streams": held,
        "not_opened": dict(opening.refused),
        "accepted_per_s": round(len(opening.streams) / seconds, 1),
        "kib_per_stream": {name: round(value, 2) for name, value in grown.items()},
        "kib_per_stream_in_all": round(sum(grown.values()), 2),
        "cores_without": round(sum(before_cores.values()), 3),
        "cores_with": idle_cores,
        "cores_with_in_all": round(sum(idle_cores.values()), 3),
        "others_turns_per_s": [round(v, 1) for v in (before_per_s, with_per_s, after_per_s)],
        "others_share": round(with_per_s / statistics.mean((before_per_s, after_per_s)), 3),
        "foreign_cores": round(watch.foreign_cores, 2),
    }


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    systems.WORK.mkdir(parents=True, exist_ok=True)
    async with systems.chatmesh("idle", SLOW) as system:
        system = replace(system, target=replace(system.target, sampling=SAME_ANSWERS))
        found = await measured(system, arguments.streams)
    for name, value in found.items():
        print(f"{name:<24} {value}")
    print(json.dumps(without_nan({"bench": "idle", **found})))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    arguments = parser.parse_args()
    files = raise_file_limit()
    if arguments.streams + FILES_SPARE > files:
        parser.error(f"{files} open files are allowed here; ask for fewer streams")
    uvloop.run(run(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
