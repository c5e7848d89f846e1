"""Open-loop load: requests come when they come, whatever became of those before.

A closed loop of N streams cannot overload anything: who waits does not ask. Here arrivals are a
Poisson process from a seed, so the same seed asks the same at the same moments.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.load import Account, Connections, Target, connections
from tests.bench.reply import Answer

DRAIN_S = 30.0  # how long the last requests may take after the load ended; then they failed


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come.

    Attributes:
        at_s: seconds after the begin.
        asker: number of the one who asks.
    """

    at_s: float
    asker: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an arrival.

    Attributes:
        ended_s: seconds after the begin of the load.
    """

    arrival: Arrival
    answer: Answer
    ended_s: float


def arrivals(
    rate_per_s: float, seconds: float, weights: Sequence[float], seed: int
) -> list[Arrival]:
    """A Poisson process of that rate; each arrival's asker is drawn with the weights.

    Pauses between arrivals are exponential, so the times are those of independent people.
    """
    draw = random.Random(seed)
    found, at_s = list[Arrival](), draw.expovariate(rate_per_s)
    while at_s < seconds:
        found.append(Arrival(at_s, draw.choices(range(len(weights)), weights)[0]))
        at_s += draw.expovariate(rate_per_s)
    return found


async def offer(
    target: Target,
    askers: Sequence[Account],
    coming: Sequence[Arrival],
    token_count: int,
    prompts: Iterator[str],
) -> list[Outcome]:
    """Sends each request at its time, at once if that has passed; returns when all have ended.

    Each request is made ready before its time. A request fails when it takes longer than DRAIN_S.
    """
    async with connections(target) as pool:
        requests = [target.request(askers[one.asker], token_count, next(prompts)) for one in coming]
        begin, asking = time.perf_counter(), list[asyncio.Task[Outcome]]()
        for one, request in zip(coming, requests, strict=True):
            wait = one.at_s - (time.perf_counter() - begin)
            if wait > 0:
                await asyncio.sleep(wait)
            asking.append(asyncio.create_task(_ask(pool, one, request, token_count, begin)))
        return await asyncio.gather(*asking)


async def _ask(
    pool: Connections, one: Arrival, request: bytes, token_count: int, begin: float
) -> Outcome:
    answer = await pool.ask(request, token_count, DRAIN_S)
    return Outcome(one, answer, time.perf_counter() - begin)
