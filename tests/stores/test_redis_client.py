"""The one way to make a Redis client: a cancellation that was asked for is never lost."""

import asyncio
import sys

import pytest
import redis.asyncio

from mesh.chassis.redis_client import connect

# Steps of the event loop into a command at which it is cancelled; a command has about ten.
STEP_COUNT = 60


async def lost_cancellations(client: "redis.asyncio.Redis") -> int:
    """How many of STEP_COUNT commands were cancelled while they ran and went on all the same."""
    lost = 0
    await client.ping()  # connected
    for step in range(STEP_COUNT):
        answered = asyncio.Event()

        async def turn(answered: asyncio.Event = answered) -> None:
            await client.ping()
            answered.set()
            await asyncio.Event().wait()  # what goes on after it: only a cancellation ends it

        task = asyncio.create_task(turn())
        for _ in range(step):
            await asyncio.sleep(0)
        if not answered.is_set():
            task.cancel()
            going_on = asyncio.create_task(answered.wait())
            await asyncio.wait([task, going_on], return_when=asyncio.FIRST_COMPLETED)
            lost += not task.done()
            going_on.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return lost


async def test_a_cancellation_is_never_lost(redis_url: str) -> None:
    async with connect(redis_url, name="test") as client:
        assert await lost_cancellations(client) == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="wait_for was mended in Python 3.12")
async def test_the_librarys_own_timeout_loses_some(redis_url: str) -> None:
    """Why `connect` sets none; when this fails the library has changed and may be trusted."""
    async with redis.asyncio.Redis.from_url(redis_url, socket_timeout=5) as client:
        assert await lost_cancellations(client) > 0


async def test_the_client_has_its_name_and_repeats_nothing(redis_url: str) -> None:
    async with connect(redis_url, name="billing-1") as client:
        assert await client.client_getname() in ("billing-1", b"billing-1")
        assert client.connection_pool.connection_kwargs["socket_timeout"] is None
    async with connect("redis://127.0.0.1:1/0", name="test") as away:
        with pytest.raises(redis.ConnectionError):
            await away.ping()
