"""This checkout against an earlier one, in one interleaved run of both whole systems.

    python -m tests.bench.earlier --python OTHER/.venv/bin/python --checkout OTHER

`OTHER` is a checkout of the earlier commit in which `make .venv/run.stamp` was run. Every request
has a natural prompt of its own. Prints medians, ratios and, as the last line, the same as JSON.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
import uvloop

from tests.bench import processes
from tests.bench.load import Target, wave

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench"
PROMPTS = ROOT / "training" / "data" / "content"
START_TIMEOUT_S = 240.0
FAST = {"INFERENCE_SIMULATED_IGNORE_EOS": "true", "INFERENCE_QUEUE_DEPTH_MAX": "4096"}
STORES = ("redis-server", "postgres", "envoy")


def natural_prompts() -> Iterator[str]:
    """Distinct harmless questions as people ask them, for ever."""
    questions = [
        question.strip()
        for file in (PROMPTS / "facts.tsv", PROMPTS / "explain.tsv")
        for line in file.read_text().splitlines()
        if "\t" in line and not line.startswith("#")
        for question in line.split("\t")[0].split(" | ")
    ]
    return itertools.cycle(questions)


@dataclass
class Copy:
    """A running system and what was measured of it, by number of streams."""

    name: str
    target: Target
    root: psutil.Process
    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    first_token_ms: dict[int, list[float]] = field(default_factory=dict)
    cpu_us_per_token: dict[int, list[float]] = field(default_factory=dict)
    cpu_ms_per_turn: dict[str, list[float]] = field(default_factory=dict)

    async def measure(
        self, stream_count: int, token_count: int, seconds: float, prompts: Iterator[str]
    ) -> str:
        """One wave; keeps its figures and says them."""
        before = processes.cpu_seconds(self.root)
        named = by_name(self.root)
        found = await wave(self.target, stream_count, token_count, seconds, prompts)
        after = processes.cpu_seconds(self.root)
        spent = processes.cpu_spent(before, after)
        turns = len(found.first_token_s)
        for name, value in by_name(self.root).items():
            share = (value - named.get(name, 0.0)) / turns * 1000
            self.cpu_ms_per_turn.setdefault(f"{stream_count} {name}", []).append(share)
        figures = (found.tokens_per_s, found.first_token_p50_ms, spent / found.token_count * 1e6)
        kept = (self.tokens_per_s, self.first_token_ms, self.cpu_us_per_token)
        for each, value in zip(kept, figures, strict=True):
            each.setdefault(stream_count, []).append(value)
        return f"{figures[0]:>9,.0f} tokens/s {figures[1]:>8.2f} ms {figures[2]:>7.1f} CPU µs/token"


def by_name(root: psutil.Process) -> dict[str, float]:
    """CPU seconds of each service of a copy."""
    found: dict[str, float] = {}
    for one in processes.tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(one.cmdline())
            name = next((store for store in STORES if store in command), "")
            name = name or (command.split(" -m ")[1].split()[0] if " -m " in command else "other")
            times = one.cpu_times()
            found[name] = found.get(name, 0.0) + times.user + times.system
    return found


@contextlib.asynccontextmanager
async def running(
    name: str, python: str, checkout: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Copy]:
    """A copy of the whole system of a checkout."""
    home, log = WORK / f"home-{name}", WORK / f"{name}.log"
    ready = home / "dev.env"
    ready.unlink(missing_ok=True)
    environment = {
        "CHATMESH_HOME": str(home),
        "EDGE_PORT": str(processes.free_port()),
        "EDGE_TLS_PORT": str(processes.free_port()),
        "INFERENCE_ENGINE": "simulated",
        **FAST,
        **settings,
    }
    begin = time.monotonic()
    with processes.started([python, "-m", "mesh.up"], log, environment, checkout) as root:
        while not ready.exists():
            if time.monotonic() - begin > START_TIMEOUT_S or not root.is_running():
                raise RuntimeError(f"{checkout} did not start; see {log}")
            await asyncio.sleep(0.05)
        pairs = (line.partition("=") for line in ready.read_text().splitlines() if "=" in line)
        values = {key: value for key, _, value in pairs}
        target = Target(values["OPENAI_BASE_URL"], values["OPENAI_API_KEY"], "chatmesh-tiny")
        yield Copy(name, target, root)


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    WORK.mkdir(parents=True, exist_ok=True)
    prompts = natural_prompts()
    async with contextlib.AsyncExitStack() as stack:
        copies = [
            await stack.enter_async_context(
                running("earlier", arguments.python, Path(arguments.checkout).resolve())
            ),
            await stack.enter_async_context(running("now", sys.executable, ROOT)),
        ]
        for one in copies:
            await wave(one.target, 32, arguments.tokens, 2, prompts)
        for number in range(1, arguments.rounds + 1):
            for streams in arguments.streams:
                for one in copies if number % 2 else copies[::-1]:
                    shown = await one.measure(streams, arguments.tokens, arguments.seconds, prompts)
                    print(f"round {number} {one.name:<8}{streams:>4} streams {shown}", flush=True)
    report(*copies)


def report(earlier: Copy, now: Copy) -> None:
    """Prints medians, their ratios and differences, and the line of JSON."""
    result: dict[str, object] = {"bench": "earlier"}
    for streams in now.tokens_per_s:
        medians = {
            name: [statistics.median(getattr(one, name)[streams]) for one in (earlier, now)]
            for name in ("tokens_per_s", "first_token_ms", "cpu_us_per_token")
        }
        speed, first, cpu = medians.values()
        result[f"streams_{streams}"] = {
            "tokens_per_s": [round(value) for value in speed],
            "ratio_tokens_per_s": round(speed[1] / speed[0], 3),
            "first_token_ms": [round(value, 2) for value in first],
            "added_first_token_ms": round(first[1] - first[0], 2),
            "cpu_us_per_token": [round(value, 1) for value in cpu],
            "added_cpu_us_per_token": round(cpu[1] - cpu[0], 1),
        }
    result["cpu_ms_per_turn"] = {
        key: [
            round(statistics.median(one.cpu_ms_per_turn.get(key, [0.0])), 2)
            for one in (earlier, now)
        ]
        for key in sorted(now.cpu_ms_per_turn)
    }
    for name, value in result.items():
        print(f"{name:<14} {value}")
    print(json.dumps(result))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", required=True, help="folder of the earlier commit")
    parser.add_argument("--python", required=True, help="its interpreter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--seconds", type=float, default=5.0, help="least length of a wave")
    uvloop.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
