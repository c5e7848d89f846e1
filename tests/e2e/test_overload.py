"""More than can be done, and a safety service that stands still: nothing collapses, nobody starves.

The capacity is the node's and not this machine's: so many answers at a time, each of a fixed length
in time, so that what is too much is the same everywhere.
"""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass

import httpx
import pytest

from tests.support.running import running_mesh

pytestmark = pytest.mark.mesh

TOKEN_COUNT = 10
INTERVAL_MS = 20
RUNNING_COUNT_MAX = 4
# Answers a second that the node can give.
CAPACITY = RUNNING_COUNT_MAX * 1000 / INTERVAL_MS / TOKEN_COUNT
LOAD_S = 6.0
# The greedy account asks for all of four times the capacity, the others for a twentieth each.
GREEDY_RATE, MODEST_RATE = 4 * CAPACITY, CAPACITY / 20
QUESTIONS = [
    "How do I keep basil alive on a north-facing windowsill?",
    "Write two sentences that say no to a meeting politely.",
    "What is the difference between a list and a tuple in Python?",
    "My tap drips at night only. What could it be?",
    "Name three rivers of France and where they end.",
    "Explain compound interest to a ten-year-old.",
    "What should I read before I visit Lisbon?",
    "Turn this into an agenda: budget, hiring, office move, any other business.",
]


@pytest.fixture(scope="module")
def small_copy(tmp_path_factory):
    """A copy with little capacity and a short queue."""
    no_rate = json.dumps(dict.fromkeys(("free", "pro", "enterprise"), 1_000_000))
    with running_mesh(
        tmp_path_factory.mktemp("overload"),
        INFERENCE_SIMULATED_TOKEN_INTERVAL_MS=str(INTERVAL_MS),
        INFERENCE_SIMULATED_IGNORE_EOS="true",
        INFERENCE_SIMULATED_RUNNING_COUNT_MAX=str(RUNNING_COUNT_MAX),
        INFERENCE_QUEUE_DEPTH_MAX="16",
        GATEWAY_QUEUE_WAIT_S_MAX="1.5",
        GATEWAY_REQUESTS_PER_MINUTE=no_rate,
    ) as copy:
        yield copy


@dataclass(frozen=True)
class Asked:
    """How a request ended."""

    account: str
    status: int
    text: str = ""
    tokens: int = 0
    code: str = ""
    retry_after: str = ""

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.tokens == TOKEN_COUNT and bool(self.text)


async def ask(client: httpx.AsyncClient, account: str, key: str, number: int) -> Asked:
    content = f"{QUESTIONS[number % len(QUESTIONS)]} ({account} {number})"
    body = {
        "model": "chatmesh-tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": TOKEN_COUNT,
    }
    headers = {"authorization": f"Bearer {key}"}
    answer = await client.post("/chat/completions", json=body, headers=headers)
    found = answer.json()
    if answer.status_code != 200:
        retry_after = answer.headers.get("retry-after", "")
        return Asked(account, answer.status_code, "", 0, found["error"]["code"], retry_after)
    text = found["choices"][0]["message"]["content"]
    return Asked(account, 200, text, found["usage"]["completion_tokens"])


async def arrivals(client, account: str, key: str, rate: float) -> list[Asked]:
    """Requests that come whether or not those before are answered (a Poisson process)."""
    rng, tasks, number = random.Random(account), [], 0
    loop = asyncio.get_running_loop()
    end = loop.time() + LOAD_S
    while True:
        await asyncio.sleep(rng.expovariate(rate))
        if loop.time() >= end:
            return await asyncio.gather(*tasks)
        tasks.append(asyncio.ensure_future(ask(client, account, key, number)))
        number += 1


def a_client(copy) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=copy.base_url, timeout=60, limits=httpx.Limits(max_connections=None)
    )


@pytest.mark.timeout(240)
async def test_four_times_the_capacity_is_served_at_capacity_and_fairly(small_copy):
    tiers = {"greedy": "pro", "free": "free", "pro": "pro", "enterprise": "enterprise"}
    keys = {name: small_copy.new_key(tier) for name, tier in tiers.items()}
    rates = {name: GREEDY_RATE if name == "greedy" else MODEST_RATE for name in tiers}
    async with a_client(small_copy) as client:
        results = await asyncio.gather(
            *(arrivals(client, name, key, rates[name]) for name, key in keys.items())
        )
        asked = [one for each in results for one in each]
        # It is as it was: what comes after need not wait.
        assert (await ask(client, "after", keys["free"], 0)).is_whole
    served = Counter(one.account for one in asked if one.is_whole)
    refused = [one for one in asked if one.status == 503]
    assert len(served) == len(tiers)
    # Answered whole or refused with the time to wait: nothing else, nothing half.
    assert sum(served.values()) + len(refused) == len(asked)
    assert {one.code for one in refused} == {"overloaded"}
    assert all(1 <= int(one.retry_after) <= 60 for one in refused)
    # What is too much is refused, and it is the greedy account's.
    assert len(refused) > len(asked) / 4
    assert {one.account for one in refused} == {"greedy"}
    # What is served is what can be: the node was never left idle for the queue's sake.
    assert sum(served.values()) > CAPACITY * LOAD_S / 2


@pytest.mark.timeout(240)
async def test_safety_that_stands_still_for_two_seconds_costs_no_turn(small_copy):
    pid = small_copy.row("safety-1")["pid"]
    key = small_copy.new_key("enterprise")
    stopped = asyncio.Event()

    async def user(client, number: int) -> list[Asked]:
        found = []
        while not stopped.is_set() or len(found) < 2:
            found.append(await ask(client, f"user-{number}", key, len(found)))
        return found

    async with a_client(small_copy) as client:
        users = [asyncio.ensure_future(user(client, number)) for number in range(4)]
        await asyncio.sleep(1)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1)
        stopped.set()
        asked = [one for each in await asyncio.gather(*users) for one in each]
    assert [one for one in asked if not one.is_whole] == []
    assert len(asked) > 2 * len(users)
