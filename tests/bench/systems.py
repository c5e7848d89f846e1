"""Systems under load: chatmesh from a checkout, and proxies in front of a ready-made backend."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.bench import processes
from tests.bench.load import Account, Target, wave

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench"
PEERS = ROOT / ".venv-bench"
START_TIMEOUT_S = 240.0
FIRST_ANSWER_TIMEOUT_S = 30.0
GREETING = "Good morning!"
# Simulated answers neither end by themselves nor take time.
FAST = {"INFERENCE_SIMULATED_IGNORE_EOS": "true", "INFERENCE_QUEUE_DEPTH_MAX": "4096"}
SIMULATED = {"INFERENCE_ENGINE": "simulated", **FAST}
TORCH = {"INFERENCE_ENGINE": "torch", "INFERENCE_QUEUE_DEPTH_MAX": "4096"}
# Requests are counted as for everybody; the limits alone are out of reach. (The limiter counts in
# microseconds a request, so there is a greatest limit.)
TIERS = ("free", "pro", "enterprise")
UNLIMITED = {"GATEWAY_REQUESTS_PER_MINUTE": json.dumps(dict.fromkeys(TIERS, 1_000_000))}
ACCOUNTS_PER_TIER = 2
PEER_KEY = "sk-bench"


@dataclass(frozen=True)
class System:
    """A running system.

    Attributes:
        name: as the tables call it.
        root: the process under which all its processes are.
        whole: chatmesh; a proxy has no services to tell apart and no ledger.
    """

    name: str
    target: Target
    root: psutil.Process
    whole: bool


async def answering(target: Target, root: psutil.Process, log: Path) -> None:
    """Returns when a first answer of one token came; raises RuntimeError when the process ended."""
    end, said = time.monotonic() + FIRST_ANSWER_TIMEOUT_S, "no connection"
    while True:
        with contextlib.suppress(OSError):
            found = await wave(target, 1, 1, 0, iter([GREETING]), exact=False)
            if found.whole:
                return
            said = str(found.others())
        if time.monotonic() > end or not processes.alive(root):
            raise RuntimeError(f"{target.base_url} does not answer ({said}); see {log}")
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def mock() -> AsyncIterator[System]:
    """The bare backend of the proxies."""
    port, log = processes.free_port(), WORK / "mock.log"
    command = [sys.executable, str(ROOT / "tests" / "bench" / "mock_openai.py"), str(port)]
    with processes.started(command, log, {}, ROOT) as root:
        target = Target(f"http://127.0.0.1:{port}/v1", (Account("", "none"),), "bench")
        await answering(target, root, log)
        yield System("mock", target, root, whole=False)


@contextlib.asynccontextmanager
async def litellm(backend: System) -> AsyncIterator[System]:
    """The LiteLLM proxy, one worker, no database."""
    port, config, log = processes.free_port(), WORK / "litellm.json", WORK / "litellm.log"
    behind = {"model": "openai/bench", "api_base": backend.target.base_url, "api_key": "none"}
    models = [{"model_name": "bench", "litellm_params": behind}]
    config.write_text(
        json.dumps({"model_list": models, "general_settings": {"master_key": PEER_KEY}})
    )
    command = [str(PEERS / "bin" / "litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        "PATH": f"{PEERS / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    with processes.started(command, log, environment, WORK) as root:
        target = Target(f"http://127.0.0.1:{port}/v1", (Account("", PEER_KEY),), "bench")
        await answering(target, root, log)
        yield System("litellm", target, root, whole=False)


@contextlib.asynccontextmanager
async def router(backend: System) -> AsyncIterator[System]:
    """SGLang's router (Rust), which checks a key and passes bytes on: the bound of a pure proxy."""
    port, log = processes.free_port(), WORK / "router.log"
    url = backend.target.base_url.removesuffix("/v1")
    command = [str(PEERS / "router" / "bin" / "python"), "-m", "sglang_router.launch_router"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", url]
    command += ["--policy", "round_robin", "--api-key", PEER_KEY, "--log-level", "error"]
    command += ["--prometheus-port", str(processes.free_port())]
    with processes.started(command, log, {}, WORK) as root:
        target = Target(f"http://127.0.0.1:{port}/v1", (Account("", PEER_KEY),), "bench")
        await answering(target, root, log)
        yield System("router", target, root, whole=False)


@contextlib.asynccontextmanager
async def chatmesh(
    name: str,
    engine: Mapping[str, str],
    *,
    checkout: Path = ROOT,
    tls: bool = False,
    accounts_per_tier: int = ACCOUNTS_PER_TIER,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[System]:
    """A copy of the whole system of a checkout, in a folder of its own, with accounts to ask as.

    `checkout` has an environment of its own: `make .venv/run.stamp` was run there.
    """
    home, log = WORK / f"home-{name}", WORK / f"{name}.log"
    ready = home / "dev.env"
    ready.unlink(missing_ok=True)
    environment = {
        "CHATMESH_HOME": str(home),
        "EDGE_PORT": str(processes.free_port()),
        "EDGE_TLS_PORT": str(processes.free_port()),
        **engine,
        **UNLIMITED,
        **settings,
    }
    python, begin = str(checkout / ".venv" / "bin" / "python"), time.monotonic()
    with processes.started([python, "-m", "mesh.up"], log, environment, checkout) as root:
        while not ready.exists():
            if time.monotonic() - begin > START_TIMEOUT_S or not processes.alive(root):
                raise RuntimeError(f"{checkout} did not start; see {log}")
            await asyncio.sleep(0.05)
        accounts = await _accounts(python, checkout, home, accounts_per_tier)
        target = _target(ready, environment["EDGE_TLS_PORT"] if tls else "", accounts)
        await answering(target, root, log)
        yield System(name, target, root, whole=True)


async def _accounts(python: str, checkout: Path, home: Path, count: int) -> tuple[Account, ...]:
    """New accounts without a budget, the tiers in turn."""

    async def one(tier: str) -> Account:
        process = await asyncio.create_subprocess_exec(
            *(python, "-m", "mesh.ctl", "keys", "create", "--tier", tier, "--budget-usd=-1"),
            cwd=checkout,
            env={**os.environ, "CHATMESH_HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"no account of tier {tier} was made in {home}")
        return Account(tier, output.decode().split()[-1])

    return tuple([await one(tier) for _ in range(count) for tier in TIERS])


def _target(file: Path, tls_port: str, accounts: tuple[Account, ...]) -> Target:
    """Reads what `mesh.up` wrote for clients."""
    pairs = (line.partition("=") for line in file.read_text().splitlines() if "=" in line)
    values = {name.strip().removeprefix("export "): value.strip("'\" ") for name, _, value in pairs}
    if tls_port:
        url = f"https://localhost:{tls_port}/v1"
        return Target(url, accounts, "chatmesh-tiny", values["CHATMESH_CA_CERT"])
    return Target(values["OPENAI_BASE_URL"], accounts, "chatmesh-tiny")
