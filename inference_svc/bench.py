"""Throughput of the engine against concurrency: `python -m inference_svc.bench --out plot.png`.

Random prompts that share nothing, greedy answers of one length, all requests of a level sent at
once; the engine is the one that the environment's settings choose, in this process. Prints a table
and, as the last line, JSON.
"""

import argparse
import asyncio
import importlib.util
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from inference_svc.engine.choose import choose_engine
from inference_svc.engine.protocol import Engine, EngineRequest, Sampling, StopRule
from inference_svc.model_folder import ModelFolder, open_model
from inference_svc.settings import MODEL_DEFAULT, Settings

UNUSED_REDIS = "redis://unused"


@dataclass(frozen=True, slots=True)
class Level:
    """What was measured at one concurrency; medians of the rounds.

    Attributes:
        tokens_per_s: generated tokens over the time from the first request to the last token.
        first_token_ms: median over the requests.
        inter_token_ms: mean time between the tokens of a request.
    """

    concurrency: int
    tokens_per_s: float
    first_token_ms: float
    inter_token_ms: float


class Load:
    """Sends waves of requests to one engine."""

    def __init__(self, engine: Engine, vocabulary_size: int) -> None:
        self._engine, self._vocabulary_size = engine, vocabulary_size
        self._draw, self._count = random.Random(0), 0

    async def _ask(self, prompt_tokens: int, new_tokens: int) -> tuple[float, float]:
        """Seconds to the first and to the last token."""
        self._count += 1
        prompt = [self._draw.randrange(self._vocabulary_size) for _ in range(prompt_tokens)]
        stop, greedy = StopRule(new_tokens), Sampling(temperature=0.0)
        begin, first, finish = time.perf_counter(), 0.0, None
        request = EngineRequest(str(self._count), prompt, stop, sampling=greedy)
        stream = self._engine.submit(request)
        while finish is None:
            finish = (await stream.take()).finish
            first = first or time.perf_counter() - begin
        return first, time.perf_counter() - begin

    async def wave(self, concurrency: int, prompt_tokens: int, new_tokens: int) -> Level:
        """That many requests at once."""
        begin = time.perf_counter()
        asks = (self._ask(prompt_tokens, new_tokens) for _ in range(concurrency))
        times = await asyncio.gather(*asks)
        seconds = time.perf_counter() - begin
        between = [(last - first) / max(new_tokens - 1, 1) for first, last in times]
        return Level(
            concurrency,
            concurrency * new_tokens / seconds,
            statistics.median(first for first, _ in times) * 1000,
            statistics.mean(between) * 1000,
        )


def median_level(rounds: list[Level]) -> Level:
    """The median of each figure."""
    return Level(
        rounds[0].concurrency,
        statistics.median(level.tokens_per_s for level in rounds),
        statistics.median(level.first_token_ms for level in rounds),
        statistics.median(level.inter_token_ms for level in rounds),
    )


async def measure(
    model: ModelFolder, settings: Settings, options: argparse.Namespace
) -> list[Level]:
    """All levels, round by round, so that a disturbance meets each alike."""
    engine = choose_engine(settings, model)
    await engine.start()
    try:
        load = Load(engine, int(model.config["vocab_size"]))
        await load.wave(1, options.prompt_tokens, 2)
        rounds: dict[int, list[Level]] = {count: [] for count in options.concurrency}
        for _ in range(options.rounds):
            for count, levels in rounds.items():
                levels.append(await load.wave(count, options.prompt_tokens, options.new_tokens))
    finally:
        await engine.stop()
    return [median_level(levels) for levels in rounds.values()]


def plot(levels: list[Level], title: str, out: Path) -> None:
    """Throughput and time to the first token against concurrency, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    counts = [level.concurrency for level in levels]
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    upper.plot(counts, [level.tokens_per_s for level in levels], marker="o")
    upper.set(ylabel="output tokens/s", title=title, ylim=(0, None))
    lower.plot(counts, [level.first_token_ms for level in levels], marker="o", label="first token")
    lower.plot(
        counts, [level.inter_token_ms for level in levels], marker="s", label="between tokens"
    )
    lower.set(ylabel="ms", xlabel="concurrent requests", yscale="log")
    lower.set_xscale("log", base=2)
    lower.set_xticks(counts, [str(count) for count in counts])
    lower.legend()
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="inference_svc.bench", description=__doc__)
    parser.add_argument("--model", default=str(MODEL_DEFAULT), help="folder or hub id")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="PNG to write; needs matplotlib")
    options = parser.parse_args(arguments)
    if options.out and importlib.util.find_spec("matplotlib") is None:
        parser.error("--out needs matplotlib: pip install -e '.[training]'")
    settings = Settings(model=options.model, redis_url=UNUSED_REDIS)
    model = open_model(options.model, "")
    levels = asyncio.run(measure(model, settings, options))
    print(f"{'requests':>8} {'tokens/s':>10} {'first token ms':>15} {'between tokens ms':>18}")
    for level in levels:
        print(
            f"{level.concurrency:8} {level.tokens_per_s:10.1f} {level.first_token_ms:15.1f} "
            f"{level.inter_token_ms:18.2f}"
        )
    if options.out:
        shape = f"{options.prompt_tokens} prompt + {options.new_tokens} new tokens"
        plot(levels, f"{model.id}: {shape}", options.out)
        print(f"plotted to {options.out}", file=sys.stderr)
    print(json.dumps({"model": model.id, "levels": [asdict(level) for level in levels]}))


if __name__ == "__main__":
    main()
