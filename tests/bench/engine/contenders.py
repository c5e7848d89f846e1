"""Who is compared, how a contender's process is started and asked, and what is kept of it."""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.bench.engine.install import Peers
from tests.bench.quiet import Watch

ROOT = Path(__file__).resolve().parents[3]
# 32 requests of 640 tokens of the largest model in bf16, and little more.
KV_CACHE_BYTES = 640 << 20
DRIVERS = Path(__file__).resolve().parent / "drivers"


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine in one setting.

    Attributes:
        python: the interpreter of its environment.
        arguments: of the driver, behind folder and threads.
    """

    name: str
    python: Path
    driver: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def contenders(peers: Peers) -> list[Contender]:
    """Ours first; the order of the rounds."""
    ours = Path(sys.executable)

    def own(name: str, weights: str, kv: str) -> Contender:
        chosen = (
            ("INFERENCE_WEIGHTS", weights),
            ("INFERENCE_KV", kv),
            ("INFERENCE_SPECULATION", "off"),  # random weights repeat: every draft would stand
            ("INFERENCE_KV_CACHE_BYTES", str(KV_CACHE_BYTES)),
        )
        return Contender(name, ours, "chatmesh_engine.py", environment=chosen)

    def llama(kind: str) -> Contender:
        return Contender(f"llama.cpp {kind}", peers.hf, "llama_cpp.py", (kind, str(peers.llama)))

    return [
        own("chatmesh int8", "int8", "int8"),
        own("chatmesh bf16", "bf16", "bf16"),
        llama("Q8_0"),
        llama("F16"),
        Contender("vLLM float32", peers.vllm, "vllm_cpu.py", ("float32",)),
        Contender("vLLM bfloat16", peers.vllm, "vllm_cpu.py", ("bfloat16",)),
        Contender("CTranslate2 int8", peers.hf, "ctranslate2_int8.py"),
        Contender("transformers float32", peers.hf, "transformers_generate.py"),
    ]


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that are sent at once; the prompts are drawn from `seed`."""

    concurrency: int
    prompt_tokens: int
    new_tokens: int
    seed: int


@dataclass
class Figures:
    """What was measured of one contender on one model; lists are rounds."""

    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    first_token_1k_s: list[float] = field(default_factory=list)
    foreign_cores: float = 0.0
    start_s: float = 0.0
    peak_mib: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Medians, and how far the rounds lie apart."""
        rates = {count: statistics.median(rounds) for count, rounds in self.tokens_per_s.items()}
        spread = {
            count: (max(rounds) - min(rounds)) / rates[count]
            for count, rounds in self.tokens_per_s.items()
        }
        first = statistics.median(self.first_token_1k_s) if self.first_token_1k_s else None
        return {
            "tokens_per_s": {count: round(rate, 1) for count, rate in rates.items()},
            "spread": {count: round(value, 3) for count, value in spread.items()},
            "first_token_1k_ms": None if first is None else round(first * 1000, 1),
            "start_s": round(self.start_s, 2),
            "peak_mib": round(self.peak_mib),
            "foreign_cores_max": round(self.foreign_cores, 3),
        }


class Driver:
    """A contender's process, ready to be asked."""

    def __init__(self, contender: Contender, folder: Path, threads: int, log: Path) -> None:
        self.contender, self.figures = contender, Figures()
        begin = time.monotonic()
        command = [contender.python, DRIVERS / contender.driver, folder, str(threads)]
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [str(part) for part in (*command, *contender.arguments)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT) if contender.python == Path(sys.executable) else "",
                    "OMP_NUM_THREADS": str(threads),
                    **dict(contender.environment),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.process = psutil.Process(self._child.pid)
        if not self._reply().get("ready"):
            raise RuntimeError(f"{contender.name} did not start; see {log}")
        self.figures.start_s = time.monotonic() - begin

    def _reply(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.contender.name} ended with {self._child.wait()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, burst: Burst) -> tuple[Any, float]:
        """Runs one burst: the driver's reply, and the cores that others used beside it."""
        assert self._child.stdin is not None
        with Watch([self.process, psutil.Process()]) as watch:
            self._child.stdin.write(json.dumps(asdict(burst)) + "\n")
            self._child.stdin.flush()
            reply = self._reply()
        peak = reply["peak_mib"] or peak_mib(self.process)
        self.figures.peak_mib = max(self.figures.peak_mib, peak)
        return reply, watch.foreign_cores

    def close(self) -> None:
        """Ends the process and what it started."""
        below = self.process.children(recursive=True)
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
        for process in below:
            if process.is_running():
                process.kill()


def peak_mib(root: psutil.Process) -> float:
    """Largest resident memory that a process, and each below it, ever had; summed, MiB."""
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        total += sum(float(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    return total
