"""The load client against the bare backend, over real sockets."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.bench import mock_openai
from tests.bench.load import Account, Connections, Target, wave
from tests.bench.open_loop import arrivals, offer
from tests.bench.prompts import endless
from tests.bench.reply import ANSWERED, FAILED


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    """The bare backend on a port of loopback."""
    server = await asyncio.start_server(mock_openai.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Target(f"http://127.0.0.1:{port}/v1", (Account("free", "none"),), "bench")


async def test_a_wave_brings_whole_answers(target: Target) -> None:
    found = await wave(target, 3, 25, 0.0, endless(0))
    assert len(found.whole) == 3
    assert found.token_count == 75
    assert found.others() == {}
    assert found.first_token_ms(1.0) > 0


async def test_each_arrival_is_asked_once(target: Target) -> None:
    coming = arrivals(200.0, 0.2, [1.0], seed=1)
    outcomes = await offer(target, target.accounts, coming, 5, endless(0))
    assert [one.arrival for one in outcomes] == coming
    assert {one.answer.kind for one in outcomes} == {ANSWERED}


async def test_a_server_that_hangs_up_is_a_failure_and_the_next_request_connects_again() -> None:
    served = []

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        served.append(writer)
        if len(served) == 1:
            writer.write(mock_openai.HEAD + mock_openai.FIRST + mock_openai.TOKENS[0])
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(f"http://127.0.0.1:{port}/v1", (Account("free", "none"),), "bench")
    async with server:
        pool = Connections(target)
        for _ in range(2):
            answer = await pool.ask(target.request(target.accounts[0], 5, "Hello"), 5)
            assert (answer.kind, answer.detail) == (FAILED, "connection cut")
        pool.close()
    assert len(served) == 2


async def test_nobody_waits_for_ever() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(f"http://127.0.0.1:{port}/v1", (Account("free", "none"),), "bench")
    async with server:
        pool = Connections(target)
        answer = await pool.ask(target.request(target.accounts[0], 5, "Hello"), 5, 0.05)
        assert (answer.kind, answer.detail) == (FAILED, "no end after 0 s")
        pool.close()
