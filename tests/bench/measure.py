"""One measurement: a wave against a system, and what its processes, the client and others used."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from tests.bench import processes
from tests.bench.load import Target, Wave, connect, wave
from tests.bench.quiet import Watch
from tests.bench.systems import System

LEDGER_TIMEOUT_S = 10.0
LEDGER_POLL_S = 0.05


@dataclass(frozen=True)
class Cell:
    """What is asked: so many streams at once, so many tokens each, for so long at least.

    Attributes:
        exact: an answer is whole only with all its tokens (no end of its own).
        metered: also wait until every token is in the ledger.
    """

    stream_count: int
    token_count: int
    seconds: float
    exact: bool = True
    metered: bool = False

    def __str__(self) -> str:
        return f"{self.stream_count:,} × {self.token_count}"


@dataclass(frozen=True)
class Measured:
    """What one wave gave.

    Attributes:
        cpu_ms: of each service of the system, for each whole answer.
        client_ms: of this process (the load and the counting), for each whole answer.
        backend_ms: of the proxies' backend, for each whole answer.
        foreign_cores: what processes outside the benchmark used meanwhile.
        metered_per_s: tokens in the ledger over the time until the last one was there; nan: not
            asked for.
        ledger_lag_s: from the end of the last answer until then.
    """

    wave: Wave
    cpu_ms: dict[str, float]
    client_ms: float
    backend_ms: float
    foreign_cores: float
    metered_per_s: float = field(default=float("nan"))
    ledger_lag_s: float = field(default=float("nan"))


async def measure(system: System, backend: System, cell: Cell, prompts: Iterator[str]) -> Measured:
    """One wave of a cell."""
    in_ledger = await metered_tokens(system.target) if cell.metered else 0
    before, behind = by_service(system), by_service(backend)
    with Watch([psutil.Process()]) as watch:
        client, begin = time.process_time(), time.perf_counter()
        found = await wave(
            system.target,
            cell.stream_count,
            cell.token_count,
            cell.seconds,
            prompts,
            exact=cell.exact,
        )
        client = time.process_time() - client
        spent = processes.grown(before, by_service(system))
    behind = processes.grown(behind, by_service(backend))
    answers = max(1, len(found.whole))
    lag_s = rate = float("nan")
    if cell.metered:
        metered, at_s = await _all_metered(system.target, in_ledger + found.token_count)
        lag_s = max(0.0, at_s - begin - found.seconds)
        rate = (metered - in_ledger) / (found.seconds + lag_s)
    return Measured(
        found,
        {name: value / answers * 1000 for name, value in spent.items()},
        client / answers * 1000,
        sum(behind.values()) / answers * 1000,
        watch.foreign_cores,
        rate,
        lag_s,
    )


def by_service(system: System) -> dict[str, float]:
    """CPU seconds of each service; a proxy is one."""
    spent = processes.cpu_by_service(system.root)
    return spent if system.whole else {system.name: sum(spent.values())}


async def metered_tokens(target: Target) -> int:
    """Output tokens of all accounts in the ledger of this month."""
    return sum(await asyncio.gather(*(_usage(target, one.key) for one in target.accounts)))


async def _usage(target: Target, key: str) -> int:
    stream = await connect(target)
    try:
        account = next(one for one in target.accounts if one.key == key)
        body = await stream.fetch(target.message("GET", "/api/usage", account))
        return int(json.loads(body)["output_tokens"])
    finally:
        stream.close()


async def _all_metered(target: Target, expected: int) -> tuple[int, float]:
    """The ledger's count and when it had reached what was expected.

    Raises:
        RuntimeError: it did not in time. Tokens that were delivered are not charged: a fault.
    """
    end = time.perf_counter() + LEDGER_TIMEOUT_S
    while (found := await metered_tokens(target)) < expected:
        if time.perf_counter() > end:
            raise RuntimeError(f"the ledger has {found} of {expected} tokens")
        await asyncio.sleep(LEDGER_POLL_S)
    return found, time.perf_counter()
