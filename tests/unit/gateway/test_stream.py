"""Heartbeats and stalled readers, under a clock of the test's own."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.faces.openai.chunks import PING
from gateway.faces.openai.stream import ClientWriter

HEARTBEAT_S, STALL_S = 15.0, 30.0


class VirtualTime:
    """Time that passes only when all wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._sleepers.append((self.now + seconds, event))
        await event.wait()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        await self.settle()
        while due := [each for each in self._sleepers if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self._sleepers.remove(first)
            self.now = max(self.now, first[0])
            first[1].set()
            await self.settle()
        self.now = end


def client(time: VirtualTime, write: Callable) -> ClientWriter:
    return ClientWriter(write, HEARTBEAT_S, STALL_S, clock=time.clock, sleep=time.sleep)


async def test_a_ping_after_each_silence_of_15_s():
    time, sent = VirtualTime(), []

    async def write(data: bytes) -> None:
        sent.append((time.now, data))

    writer = client(time, write)
    async with asyncio.timeout(None) as limit, writer.guarded(limit):
        await time.advance(14)
        await writer.write(b"event")
        await time.advance(14.9)
        assert sent == [(14, b"event")]
        await time.advance(0.2)
        assert sent[-1] == (29, PING)
        await time.advance(30)
        assert [at for at, data in sent if data == PING] == [29, 44, 59]
    await time.advance(100)
    assert len(sent) == 4


async def test_no_ping_while_events_flow():
    time, sent = VirtualTime(), []

    async def write(data: bytes) -> None:
        sent.append(data)

    writer = client(time, write)
    async with asyncio.timeout(None) as limit, writer.guarded(limit):
        for _ in range(10):
            await time.advance(10)
            await writer.write(b"event")
    assert PING not in sent


async def test_a_message_that_is_not_taken_ends_the_answer():
    time = VirtualTime()

    async def write(data: bytes) -> None:
        await asyncio.Event().wait()

    writer = client(time, write)

    async def answer() -> None:
        async with asyncio.timeout(None) as limit, writer.guarded(limit):
            await writer.write(b"event")

    answering = asyncio.create_task(answer())
    await time.advance(STALL_S - 1)
    assert not answering.done()
    await time.advance(HEARTBEAT_S + 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answering, 5)
    assert writer.is_stuck


async def test_messages_never_overlap():
    time, running, most = VirtualTime(), [0], [0]

    async def write(data: bytes) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1

    writer = client(time, write)
    async with asyncio.timeout(None) as limit, writer.guarded(limit):
        await asyncio.gather(*(writer.write(b"x") for _ in range(5)), time.advance(60))
    assert most == [1]
