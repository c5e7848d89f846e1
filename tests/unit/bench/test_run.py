"""A run of the benchmark, small, with the bare backend as its contender."""

import argparse
import asyncio
import json

import psutil

from tests.bench import idle, mock_openai, report
from tests.bench.__main__ import BASE, CELLS, Clock, Run
from tests.bench.figures import without_nan
from tests.bench.load import Account, Target
from tests.bench.measure import Cell
from tests.bench.systems import System


def test_no_round_begins_that_ends_too_late() -> None:
    clock = Clock(end_s=100.0, begin_s=0.0, longest_round_s=30.0)
    assert clock.room_for_a_round(69.0)
    assert not clock.room_for_a_round(71.0)


def test_a_wave_is_repeated_only_ahead_of_time() -> None:
    clock = Clock(end_s=110.0, begin_s=10.0)
    assert clock.room_to_repeat(59.0, done=0.5)
    assert not clock.room_to_repeat(61.0, done=0.5)


def test_the_base_of_the_shares_is_measured() -> None:
    assert BASE in CELLS
    assert {cell.token_count for cell in CELLS if cell.stream_count > 64} == {BASE.token_count}


async def test_rounds_and_their_report() -> None:
    server = await asyncio.start_server(mock_openai.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(f"http://127.0.0.1:{port}/v1", (Account("", "none"),), "bench")
    mock = System("mock", target, psutil.Process(), whole=False)
    arguments = argparse.Namespace(rounds=2, repeats=0, minutes=1.0)
    cell = Cell(2, 8, 0.0)
    async with server:
        run = Run(arguments, [mock], mock)
        await run.rounds((cell,))
    (figures,) = (report.medians(some) for some in run.results.values())
    assert figures["whole_answers"] == 4
    assert figures["turns_per_s"] > 0
    assert json.loads(json.dumps(without_nan(figures)))["metered_tokens_per_s"] is None
    assert "2 × 8 tokens, medians of 2" in report.tables(run.results, {"mock": {"mock": 1.0}})


async def test_idle_streams_are_those_that_began_and_wait() -> None:
    """The second prompt never begins, the third one ends at once."""
    begin = mock_openai.HEAD + mock_openai.FIRST + mock_openai.TOKENS[0]
    end = mock_openai.delta({}, "stop") + mock_openai.DONE
    answers = {b"waits": begin, b"silent": mock_openai.HEAD, b"ends": begin + end}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(next(answer for word, answer in answers.items() if word in body))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = idle.Opening(Target(f"http://127.0.0.1:{port}/v1", (Account("", "x"),), "bench"))
    async with server:
        await opening.open(["waits", "silent", "ends"], patience_s=0.2)
        assert opening.prompts == ["waits"]
        assert sum(opening.refused.values()) == 2
        await opening.close()
