"""What single mechanisms of our engine are worth, each against the engine without it.

Every experiment runs on one node with the same memory and threads, both sides in turn.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from inference_svc.engine.protocol import (
    BLOCK_TOKEN_COUNT,
    EngineRequest,
    Sampling,
    StopRule,
)
from inference_svc.engine.torch.engine import TorchEngine, TorchOptions
from inference_svc.engine.torch.metrics import Histogram
from inference_svc.model_folder import open_model
from tests.bench.engine.shapes import CONTEXT

LENGTHS = Path(__file__).parent / "azure_conv_lengths.tsv"
LENGTH_SHARE = 4  # the trace's lengths over this: the models here are small, and so is the patience
RESERVED_TOKENS = 300
REPEATS = 5


def measure(folder: Path, threads: int) -> dict[str, Any]:
    """All experiments on one checkpoint. Takes a few minutes."""

    async def all_of_them() -> dict[str, Any]:
        return {
            "batching": await batching(folder, threads),
            "prefix_cache": await prefix_cache(folder, threads),
            "prompt_lookup": await prompt_lookup(folder, threads),
            "overhead": await overhead(folder, threads),
        }

    report = asyncio.run(all_of_them())
    for name, figures in report.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    return report


@asynccontextmanager
async def engine(folder: Path, threads: int, **options: Any) -> AsyncIterator[TorchEngine]:
    """A started engine with int8 weights and KV cache."""
    chosen: dict[str, Any] = {
        "kv_cache_bytes": 512 << 20,
        "queue_depth_max": 4096,
        "running_count_max": 64,
        "step_token_count_max": 512,
        "weights": "int8",
        "kv": "int8",
        "thread_count": threads,
    }
    made = TorchEngine(open_model(str(folder), ""), TorchOptions(**{**chosen, **options}))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


class Asker:
    """Sends greedy requests of random prompts and counts."""

    def __init__(self, target: TorchEngine, seed: int = 0) -> None:
        self._target, self._draw, self._count = target, random.Random(seed), 0
        self.running_count_max = 0

    def prompt(self, length: int) -> list[int]:
        """Random token ids."""
        return [self._draw.randrange(RESERVED_TOKENS, 8192) for _ in range(length)]

    async def ask(self, prompt: Sequence[int], new_tokens: int, salt: str = "") -> float:
        """One answer; the time to its first token in seconds."""
        self._count += 1
        begin, first, finish = time.perf_counter(), 0.0, None
        stream = self._target.submit(
            EngineRequest(
                str(self._count),
                prompt,
                StopRule(new_tokens),
                sampling=Sampling(temperature=0.0),
                cache_salt=salt,
            )
        )
        while finish is None:
            finish = (await stream.take()).finish
            first = first or time.perf_counter()
            self.running_count_max = max(self.running_count_max, self._target.load().running_count)
        return first - begin


def lengths() -> list[tuple[int, int]]:
    """(prompt, answer) tokens of the bundled requests, scaled; within the context."""
    rows = [line.split() for line in LENGTHS.read_text().splitlines() if line[0] != "#"]
    scaled = [(max(1, int(p) // LENGTH_SHARE), max(1, int(o) // LENGTH_SHARE)) for p, o in rows]
    return [(min(p, CONTEXT - o), o) for p, o in scaled]


async def batching(folder: Path, threads: int) -> dict[str, Any]:
    """Continuous against static batches of the same requests in the same KV memory.

    A static batch is a rectangle, as in transformers' `generate`: prompts padded to the longest,
    all rows computed until the longest answer ends. As many requests as fit form one, each with
    room for the longest of all prompts and answers.
    """
    requests = lengths()
    longest = max(p for p, _ in requests) + max(o for _, o in requests)
    block_count = 16 * -(-longest // BLOCK_TOKEN_COUNT)
    rates: dict[str, list[float]] = {"continuous": [], "static": []}
    admitted = 0
    for repeat in range(3):
        async with engine(
            folder, threads, kv_block_count=block_count, running_count_max=256
        ) as made:
            asker = Asker(made, repeat)
            rates["continuous"].append(await _seconds(asker, [requests]))
            admitted = max(admitted, asker.running_count_max)
        async with engine(
            folder, threads, kv_block_count=block_count, running_count_max=256
        ) as made:
            asker = Asker(made, repeat)
            size = block_count * BLOCK_TOKEN_COUNT // longest
            batches = [rectangle(requests[at : at + size]) for at in range(0, len(requests), size)]
            rates["static"].append(await _seconds(asker, batches))
    tokens = sum(answer for _, answer in requests)
    continuous, static = (statistics.median(rates[name]) for name in ("continuous", "static"))
    return {
        "requests": len(requests),
        "continuous_tokens_per_s": round(tokens / continuous, 1),
        "static_tokens_per_s": round(tokens / static, 1),
        "ratio": round(static / continuous, 2),
        "admitted_paged": admitted,
        "admitted_contiguous": block_count * BLOCK_TOKEN_COUNT // longest,
    }


def rectangle(batch: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every request as long as the longest."""
    longest = max(p for p, _ in batch), max(o for _, o in batch)
    return [longest] * len(batch)


async def _seconds(asker: Asker, batches: list[list[tuple[int, int]]]) -> float:
    begin = time.perf_counter()
    for batch in batches:
        await asyncio.gather(*(asker.ask(asker.prompt(p), o) for p, o in batch))
    return time.perf_counter() - begin


async def prefix_cache(folder: Path, threads: int) -> dict[str, Any]:
    """First token behind a shared system prompt of 1,024 tokens and 32 of one's own."""
    cold, warm = [], []
    async with engine(folder, threads) as made:
        asker = Asker(made)
        await asker.ask(asker.prompt(64), 4)
        for repeat in range(REPEATS):
            system = asker.prompt(1024)
            cold.append(await asker.ask(system + asker.prompt(32), 1, f"tenant-{repeat}"))
            warm.append(await asker.ask(system + asker.prompt(32), 1, f"tenant-{repeat}"))
    return _ratio("cold_ms", cold, "warm_ms", warm)


async def prompt_lookup(folder: Path, threads: int) -> dict[str, Any]:
    """An answer that repeats its prompt, with and without drafts from the prompt.

    Random weights with a tied output matrix repeat their last token: the easiest copying there is,
    every draft stands.
    """
    seconds: dict[str, list[float]] = {"off": [], "ngram": []}
    async with (
        engine(folder, threads, speculation="off") as off,
        engine(folder, threads, speculation="ngram") as ngram,
    ):
        for repeat in range(REPEATS):
            for name, made in (("off", off), ("ngram", ngram)):
                asker = Asker(made, repeat)
                prompt = asker.prompt(32) * 4
                begin = time.perf_counter()
                await asker.ask(prompt, 256)
                seconds[name].append(time.perf_counter() - begin)
    return _ratio("off_ms", seconds["off"], "ngram_ms", seconds["ngram"])


async def overhead(folder: Path, threads: int) -> dict[str, Any]:
    """Share of a step that is not the model's computing, at 64 sequences that decode."""
    async with engine(folder, threads) as made:
        asker = Asker(made)
        await asyncio.gather(*(asker.ask(asker.prompt(128), 256) for _ in range(64)))
        metrics = made.metrics
        (steps, whole), (_, besides) = _read(metrics.step_seconds), _read(metrics.overhead_seconds)
    return {
        "steps": steps,
        "step_ms": round(whole / steps * 1000, 3),
        "besides_the_model_ms": round(besides / steps * 1000, 3),
        "share": round(besides / whole, 4),
    }


def _read(histogram: Histogram) -> tuple[int, float]:
    buckets, total = histogram.read()
    return int(buckets[-1][1]), total


def _ratio(name: str, first: list[float], other: str, second: list[float]) -> dict[str, Any]:
    before, after = statistics.median(first), statistics.median(second)
    return {
        name: round(before * 1000, 2),
        other: round(after * 1000, 2),
        "ratio": round(before / after, 2),
    }


if __name__ == "__main__":
    import sys

    measure(Path(sys.argv[1]), int(os.environ.get("THREADS", "2")))
