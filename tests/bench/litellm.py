"""chatmesh against the LiteLLM proxy, in one interleaved run. `make bench`; see README.md.

Prints a table and, as the last line, the same as one line of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop

from tests.bench import processes
from tests.bench.load import Stream, Target, Wave, connect, wave

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench"
START_TIMEOUT_S = 240.0
LITELLM_KEY = "sk-bench"
IDLE_SETTLE_S = 2.0
# Simulated answers neither end by themselves nor take time.
FAST = {"INFERENCE_SIMULATED_IGNORE_EOS": "true", "INFERENCE_QUEUE_DEPTH_MAX": "4096"}
IDLE = {**FAST, "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": "5000"}


@dataclass
class Contender:
    """A system under load and what was measured of it."""

    name: str
    target: Target
    root: psutil.Process
    idle: Target
    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    first_token_ms: dict[int, list[float]] = field(default_factory=dict)
    cpu_us_per_token: dict[int, list[float]] = field(default_factory=dict)
    rss_kib_per_idle_stream: float | None = None

    async def measure(self, stream_count: int, token_count: int, seconds: float) -> Wave:
        """One wave; keeps its figures."""
        before = processes.cpu_seconds(self.root)
        result = await wave(self.target, stream_count, token_count, seconds)
        spent = processes.cpu_spent(before, processes.cpu_seconds(self.root))
        for kept, value in (
            (self.tokens_per_s, result.tokens_per_s),
            (self.first_token_ms, result.first_token_p50_ms),
            (self.cpu_us_per_token, spent / result.token_count * 1e6),
        ):
            kept.setdefault(stream_count, []).append(value)
        return result

    async def measure_idle(self, stream_count: int) -> None:
        """Memory of streams that had one token and wait for the next."""
        await wave(self.target, stream_count, 1, 0)  # pools and buffers are as large as they get
        before = processes.rss_bytes(self.root)
        streams = [await connect(self.idle) for _ in range(stream_count)]
        request = self.idle.request(256)
        asking = [asyncio.ensure_future(stream.ask(request)) for stream in streams]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.gather(*(_first(s, a) for s, a in zip(streams, asking, strict=True)))
            await asyncio.sleep(IDLE_SETTLE_S)
            grown = processes.rss_bytes(self.root) - before
            self.rss_kib_per_idle_stream = grown / stream_count / 1024
        finally:
            for stream in streams:
                stream.close()
            await asyncio.gather(*asking, return_exceptions=True)

    def summary(self) -> dict[str, Any]:
        """Medians over the rounds."""
        figures = {
            name: {str(count): round(statistics.median(some), 3) for count, some in kept.items()}
            for name, kept in (
                ("tokens_per_s", self.tokens_per_s),
                ("first_token_ms", self.first_token_ms),
                ("cpu_us_per_token", self.cpu_us_per_token),
            )
        }
        return {**figures, "rss_kib_per_idle_stream": self.rss_kib_per_idle_stream}


async def _first(stream: Stream, asking: "asyncio.Future[tuple[int, float]]") -> None:
    """Waits for a stream's first token; raises what its request failed with."""
    waiting = asyncio.ensure_future(stream.first.wait())
    await asyncio.wait((waiting, asking), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if asking.done():
        asking.result()


async def answering(target: Target, root: psutil.Process, log: Path) -> None:
    """Returns when a first short answer came; raises RuntimeError when the process ended."""
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            await wave(target, 1, 4, 0)
            return
        except (OSError, RuntimeError) as error:
            if time.monotonic() > end or not root.is_running():
                raise RuntimeError(
                    f"{target.base_url} does not answer ({error}); see {log}"
                ) from error
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def mock() -> AsyncIterator[Target]:
    """The bare backend."""
    port = processes.free_port()
    command = [sys.executable, str(ROOT / "tests" / "bench" / "mock_openai.py"), str(port)]
    log = WORK / "mock.log"
    with processes.started(command, log, {}, ROOT) as root:
        target = Target(f"http://127.0.0.1:{port}/v1", "none", "bench")
        await answering(target, root, log)
        yield target


@contextlib.asynccontextmanager
async def litellm(backend: Target) -> AsyncIterator[Contender]:
    """The LiteLLM proxy, one worker, in front of the bare backend."""
    port, config, log = processes.free_port(), WORK / "litellm.json", WORK / "litellm.log"
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{name}",
                "api_base": backend.base_url,
                "api_key": backend.api_key,
            },
        }
        for name in ("bench", "bench-idle")
    ]
    settings = {"model_list": models, "general_settings": {"master_key": LITELLM_KEY}}
    config.write_text(json.dumps(settings))
    command = [str(ROOT / ".venv-bench" / "bin" / "litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        "PATH": f"{ROOT / '.venv-bench' / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    with processes.started(command, log, environment, WORK) as root:
        target = Target(f"http://127.0.0.1:{port}/v1", LITELLM_KEY, "bench")
        await answering(target, root, log)
        yield Contender("litellm", target, root, Target(target.base_url, LITELLM_KEY, "bench-idle"))


@contextlib.asynccontextmanager
async def chatmesh(
    engine: dict[str, str], *, plain: bool
) -> AsyncIterator[tuple[Contender, float]]:
    """A copy of the whole system in a folder of its own; also gives seconds to its first token."""
    home, log = WORK / "home", WORK / "chatmesh.log"
    ready = home / "dev.env"
    ready.unlink(missing_ok=True)
    environment = {
        "CHATMESH_HOME": str(home),
        "EDGE_PORT": str(processes.free_port()),
        "EDGE_TLS_PORT": str(processes.free_port()),
        "INFERENCE_ENGINE": "simulated",
        **engine,
    }
    begin = time.monotonic()
    command = [sys.executable, "-m", "mesh.up"]
    with processes.started(command, log, environment, ROOT) as root:
        while not ready.exists():
            if time.monotonic() - begin > START_TIMEOUT_S or not root.is_running():
                raise RuntimeError(f"chatmesh did not start; see {log}")
            await asyncio.sleep(0.05)
        target = await _target(ready, environment["EDGE_TLS_PORT"], plain=plain)
        await answering(target, root, log)
        yield Contender("chatmesh", target, root, target), time.monotonic() - begin


async def _target(file: Path, tls_port: str, *, plain: bool) -> Target:
    """Reads what `mesh.up` wrote for clients; the model is the first one it lists."""
    pairs = (line.partition("=") for line in file.read_text().splitlines() if "=" in line)
    values = {name.strip().removeprefix("export "): value.strip("'\" ") for name, _, value in pairs}
    ca_file = "" if plain else values["CHATMESH_CA_CERT"]
    url = values["OPENAI_BASE_URL"] if plain else f"https://localhost:{tls_port}/v1"
    model = values.get("OPENAI_MODEL") or os.environ.get("BENCH_MODEL", "chatmesh-tiny")
    return Target(url, values["OPENAI_API_KEY"], model, ca_file)


async def rounds(
    contenders: list[Contender], backend: Target, arguments: argparse.Namespace
) -> list[float]:
    """Measures the contenders in turn; returns the bare backend's first-token times, in ms."""
    bare = []
    for number in range(1, arguments.rounds + 1):
        for stream_count in arguments.streams:
            for one in contenders:
                result = await one.measure(stream_count, arguments.tokens, arguments.seconds)
                print(
                    f"round {number}  {one.name:<9} {stream_count:>4} streams "
                    f"{result.tokens_per_s:>10,.0f} tokens/s "
                    f"{result.first_token_p50_ms:>9.1f} ms to the first "
                    f"{one.cpu_us_per_token[stream_count][-1]:>7.1f} CPU µs/token",
                    flush=True,
                )
        bare.append((await wave(backend, 1, arguments.tokens, 1)).first_token_p50_ms)
    return bare


def report(contenders: list[Contender], bare: list[float], starts: dict[str, float]) -> None:
    """Prints medians, ratios and the line of JSON."""
    figures = {one.name: one.summary() for one in contenders}
    bare_ms = statistics.median(bare)
    result: dict[str, Any] = {"bench": "litellm", "cpus": os.cpu_count(), **figures}
    result["backend_first_token_ms"] = round(bare_ms, 3)
    for one in contenders:
        at_one = figures[one.name]["first_token_ms"].get("1")
        if at_one is not None:
            # The simulated engine needs no time: all of chatmesh's is added time.
            own = bare_ms if one.name == "litellm" else 0.0
            figures[one.name]["added_first_token_ms"] = round(at_one - own, 3)
    result.update({name: round(seconds, 2) for name, seconds in starts.items()})
    if {"litellm", "chatmesh"} <= figures.keys():
        ours, theirs = figures["chatmesh"], figures["litellm"]
        result["ratio_tokens_per_s"] = {
            count: round(value / theirs["tokens_per_s"][count], 2)
            for count, value in ours["tokens_per_s"].items()
        }
        if "added_first_token_ms" in ours:
            result["ratio_added_first_token"] = {
                count: round(value / max(theirs["first_token_ms"][count] - bare_ms, 0.001), 3)
                for count, value in ours["first_token_ms"].items()
            }
    for name, value in result.items():
        print(f"{name:<28} {value}")
    print(json.dumps(result))


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    WORK.mkdir(parents=True, exist_ok=True)
    starts: dict[str, float] = {}
    idle_kib: float | None = None
    both = arguments.only in ("", "chatmesh")
    if both:
        # The first start makes the stores, so the second one is warm.
        async with chatmesh(IDLE, plain=arguments.plain) as (one, seconds):
            starts["first_start_s"] = seconds
            await one.measure_idle(arguments.idle)
            idle_kib = one.rss_kib_per_idle_stream
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(mock())
        contenders = []
        if arguments.only in ("", "litellm"):
            contenders.append(await stack.enter_async_context(litellm(backend)))
            await contenders[0].measure_idle(arguments.idle)
        if both:
            entered = await stack.enter_async_context(chatmesh(FAST, plain=arguments.plain))
            starts["warm_start_to_first_token_s"] = entered[1]
            entered[0].rss_kib_per_idle_stream = idle_kib
            contenders.append(entered[0])
        for one in contenders:  # connections, caches and code paths are warm in every round
            await wave(one.target, 16, arguments.tokens, 0)
        bare = await rounds(contenders, backend, arguments)
    report(contenders, bare, starts)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a wave")
    parser.add_argument("--idle", type=int, default=256, help="streams of the memory measurement")
    parser.add_argument("--only", choices=("litellm", "chatmesh"), default="")
    parser.add_argument("--plain", action="store_true", help="no TLS at the edge")
    uvloop.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
