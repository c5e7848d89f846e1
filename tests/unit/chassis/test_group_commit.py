"""Group commit without a store: who goes together, and who is spared."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from prometheus_client import REGISTRY

from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError
from mesh.chassis.group_commit import APART_ROW_COUNT_MAX, GroupCommit
from mesh.chassis.postgres import StoreUnavailableError


class Log:
    """A store that keeps the groups it was given and answers a row by its double.

    Rows below 0 are refused, with all that came along; `opened` lets the others through.
    """

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.remaining_s: list[float | None] = []

    async def write(self, rows: Sequence[int]) -> list[int]:
        self.groups.append(list(rows))
        self.remaining_s.append(deadlines.remaining_s())
        if min(rows) < 0:
            raise ValueError(f"{min(rows)} is refused")
        await self.opened.wait()
        return [2 * row for row in rows]


async def ticks(count: int = 5) -> None:
    """Lets the other tasks go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_asked_at_once_goes_together_up_to_the_limit() -> None:
    log = Log()
    group = GroupCommit("test", log.write, row_count_max=4)
    assert await asyncio.gather(*map(group.ask, range(10))) == [2 * n for n in range(10)]
    assert log.groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_what_is_asked_while_a_group_is_in_the_store_is_the_next_group() -> None:
    log = Log()
    log.opened.clear()
    group = GroupCommit("test", log.write)
    asked = [asyncio.ensure_future(group.ask(1))]
    await ticks()
    for row in (2, 3):  # at different times
        asked.append(asyncio.ensure_future(group.ask(row)))
        await ticks()
    assert log.groups == [[1]]
    log.opened.set()
    assert await asyncio.gather(*asked) == [2, 4, 6]
    assert log.groups == [[1], [2, 3]]


async def test_a_row_that_fails_fails_alone() -> None:
    log = Log()
    group = GroupCommit("test", log.write)
    before = REGISTRY.get_sample_value("chatmesh_group_commit_rows_apart_total", {"group": "test"})
    answers = await asyncio.gather(*map(group.ask, (1, -2, 3, -4)), return_exceptions=True)
    assert list(map(str, answers)) == ["2", "-2 is refused", "6", "-4 is refused"]
    assert log.groups == [[1, -2, 3, -4], [1], [-2], [3], [-4]]
    after = REGISTRY.get_sample_value("chatmesh_group_commit_rows_apart_total", {"group": "test"})
    assert after is not None
    assert after - (before or 0) == 4


async def test_rows_of_a_failed_group_hold_up_no_other_group() -> None:
    log = Log()
    log.opened.clear()
    group = GroupCommit("test", log.write)
    stuck = [asyncio.ensure_future(group.ask(row)) for row in (-1, *range(1, 10))]
    await ticks(20)  # the group fails, its rows alone do not come back
    assert log.groups[1:] == [[row] for row in (-1, *range(1, APART_ROW_COUNT_MAX + 1))]
    after = [asyncio.ensure_future(group.ask(row)) for row in (20, 21)]
    await ticks()
    assert log.groups[-1] == [20, 21]
    log.opened.set()
    assert await asyncio.gather(*after) == [40, 42]
    answers = await asyncio.gather(*stuck, return_exceptions=True)
    assert answers[1:] == [2 * row for row in range(1, 10)]
    assert isinstance(answers[0], ValueError)


async def test_a_caller_that_left_is_not_sent_and_one_that_was_sent_stands() -> None:
    log = Log()
    log.opened.clear()
    group = GroupCommit("test", log.write)
    sent = asyncio.ensure_future(group.ask(1))
    await ticks()
    left, stays = asyncio.ensure_future(group.ask(2)), asyncio.ensure_future(group.ask(3))
    await ticks()
    sent.cancel()
    left.cancel()
    await ticks()
    log.opened.set()
    assert await stays == 6
    assert log.groups == [[1], [3]]


async def test_beyond_the_limit_a_row_is_refused_at_once() -> None:
    log = Log()
    log.opened.clear()
    group = GroupCommit("test", log.write, waiting_row_count_max=3)
    sent = asyncio.ensure_future(group.ask(0))
    await ticks()
    waiting = [asyncio.ensure_future(group.ask(row)) for row in (1, 2, 3)]
    await ticks()
    with pytest.raises(StoreUnavailableError, match="too many rows wait"):
        await group.ask(4)
    log.opened.set()
    assert await asyncio.gather(sent, *waiting) == [0, 2, 4, 6]


async def test_a_row_whose_callers_time_is_over_is_not_sent() -> None:
    async def call(row: int, remaining_s: float | None) -> int:
        deadlines.enter(remaining_s)
        return await group.ask(row)

    log = Log()
    group = GroupCommit("test", log.write)
    calls = (call(1, 60.0), call(2, deadlines.REMAINING_S_MIN / 2), call(3, None))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert (answers[0], answers[2]) == (2, 6)
    late = answers[1]
    assert isinstance(late, MeshError)
    assert (late.code, late.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_TOO_SHORT")
    assert log.groups == [[1, 3]]


async def test_a_group_runs_under_no_callers_deadline() -> None:
    async def call(row: int) -> int:
        deadlines.enter(60.0)
        return await group.ask(row)

    log = Log()
    group = GroupCommit("test", log.write)
    await asyncio.gather(call(1), call(-2), return_exceptions=True)
    assert len(log.groups) == 3  # the rows alone as well
    assert log.remaining_s == [None, None, None]


async def test_drain_waits_for_what_was_taken_though_its_callers_left() -> None:
    log = Log()
    log.opened.clear()
    group = GroupCommit("test", log.write)
    asked = asyncio.ensure_future(group.ask(1))
    await ticks()
    asked.cancel()
    draining = asyncio.ensure_future(group.drain())
    await ticks()
    assert not draining.done()
    log.opened.set()
    await draining
    assert log.groups == [[1]]
    log.opened.clear()
    apart = asyncio.gather(group.ask(2), group.ask(-1), return_exceptions=True)
    await ticks()
    assert log.groups[-2:] == [[2], [-1]]
    draining = asyncio.ensure_future(group.drain())
    await ticks()
    assert not draining.done()
    log.opened.set()
    await draining
    assert (await apart)[0] == 4
    await group.drain()  # nothing under way
