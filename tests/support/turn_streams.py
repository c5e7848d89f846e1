"""Turns that stop in the middle until a test lets them go on, and their streams."""

import asyncio

from tests.support.fakes import Fakes, Script
from tests.support.gateway_turns import identity

WORDS = [f" wörd{number}" for number in range(12)]
WHOLE = "".join(WORDS)
PATIENCE_S = 10.0
OTHER = identity("acc_2")


def key(value: str, turn: str) -> tuple[tuple[str, str], ...]:
    return (*identity(turn=turn), ("idempotency-key", value))


async def happens(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_S)


async def until(condition) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not happen"
        await asyncio.sleep(0.005)


def gated(at: int = 6) -> Fakes:
    """Nodes that stop in the middle of an answer until the gate is opened."""
    fakes = Fakes()
    fakes.inference.scripts = [Script(WORDS, gate_at=at)]
    return fakes


async def read_until(call, text: str) -> bytes:
    """What a stream says, up to a text."""
    found = b""
    while text.encode() not in found:
        found += (await asyncio.wait_for(call.read(), PATIENCE_S)).data
    return found


async def rest_of(call) -> bytes:
    """What a stream still says."""
    found = b""
    while message := await asyncio.wait_for(call.read(), PATIENCE_S):
        found += message.data
    return found


def last_id(data: bytes) -> str:
    lines = [line for line in data.decode().split("\n") if line.startswith("id: ")]
    return lines[-1].removeprefix("id: ")
