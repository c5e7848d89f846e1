"""Group commit: what is asked while the last group is in the store goes there together.

A write costs a round trip and a commit, whether it carries one row or a hundred. Nobody waits for
a group to fill: the first row goes at once, alone, and what comes meanwhile is the next group
(DeWitt et al., "Implementation Techniques for Main Memory Database Systems", SIGMOD 1984).

Rows stay independent: a group that fails is repeated row by row, so that each caller gets the
failure of its own row and no other. Every row must therefore be repeatable: of a group whose
answer was lost, nobody knows whether it was written.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
import structlog
from prometheus_client import Counter, Histogram

from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError

# A row of a group of 256 costs a sixth less than one of 64, which costs half of one of 8: larger
# groups would only hold their locks for longer.
ROW_COUNT_MAX = 256
# 16 full groups: at 100 us a row the last one waits 0.4 s. Beyond that the store cannot keep up.
WAITING_ROW_COUNT_MAX = 4096
# Rows of failed groups that are in the store at once, each on a connection: half of the smallest
# pool that uses this, so that the groups after them find one too.
APART_ROW_COUNT_MAX = 4

Row = TypeVar("Row")
Answer = TypeVar("Answer")

log = structlog.get_logger()
_row_count = Histogram(
    "chatmesh_group_commit_rows",
    "Rows that went to the store together",
    ["group"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
_apart = Counter(
    "chatmesh_group_commit_rows_apart_total", "Rows of failed groups, repeated alone", ["group"]
)


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Row, Answer]):
    """A row and who waits for its answer, until `answer_by` (monotonic; None: no limit)."""

    row: Row
    answered: "asyncio.Future[Answer]"
    answer_by: float | None

    def fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def succeed(self, answer: Answer) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


class GroupCommit(Generic[Row, Answer]):
    """Sends rows in groups, one group at a time.

    Args:
        name: what is written, such as "hold"; a label of the metrics.
        write: writes all rows or none, and gives an answer a row, in their order. It must come to
            an end by itself; how a group of one fails is how its caller's call fails.
        row_count_max: most rows of a group.
        waiting_row_count_max: most rows that wait to be sent.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[Row]], Awaitable[Sequence[Answer]]],
        *,
        row_count_max: int = ROW_COUNT_MAX,
        waiting_row_count_max: int = WAITING_ROW_COUNT_MAX,
    ) -> None:
        self._name, self._write = name, write
        self._row_count_max, self._waiting_row_count_max = row_count_max, waiting_row_count_max
        self._waiting: deque[_Asked[Row, Answer]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._apart: set[asyncio.Task[None]] = set()
        self._apart_turns = asyncio.Semaphore(APART_ROW_COUNT_MAX)

    async def ask(self, row: Row) -> Answer:
        """The answer to the row, once it is written.

        A caller that is cancelled before its row is sent is forgotten. Once sent, the row stands:
        the store may have it already, and to its caller that is the lost answer which makes it
        repeat the call, as with a write that went alone.

        Raises:
            StoreUnavailableError: more rows wait than the store can take.
            MeshError: DEADLINE_TOO_SHORT: the time of the call being served ended before the row
                was sent.
            Exception: what `write` raised for this row.
        """
        if len(self._waiting) + len(self._apart) >= self._waiting_row_count_max:
            raise StoreUnavailableError(f"{self._name}: too many rows wait")
        remaining_s = deadlines.remaining_s()
        answer_by = None if remaining_s is None else time.monotonic() + remaining_s
        loop = asyncio.get_running_loop()
        asked: _Asked[Row, Answer] = _Asked(row, loop.create_future(), answer_by)
        self._waiting.append(asked)
        if self._sender is None:
            # Not under the deadline and the trace of the caller that happened to come first.
            self._sender = loop.create_task(self._send_all(), context=Context())
        return await asked.answered

    async def drain(self) -> None:
        """Returns when every row that was asked for is answered; the callers have ended before."""
        while under_way := [
            task for task in (*self._apart, self._sender) if task is not None and not task.done()
        ]:
            await asyncio.wait(under_way)

    async def _send_all(self) -> None:
        try:
            await asyncio.sleep(0)  # who asks in this turn of the event loop comes along
            while self._waiting:
                group = self._next_group()
                if group:
                    await self._send(group)
        finally:
            self._sender = None

    def _next_group(self) -> list[_Asked[Row, Answer]]:
        group: list[_Asked[Row, Answer]] = []
        while self._waiting and len(group) < self._row_count_max:
            asked = self._waiting.popleft()
            if _is_wanted(asked):
                group.append(asked)
        return group

    async def _send(self, group: Sequence[_Asked[Row, Answer]]) -> None:
        _row_count.labels(self._name).observe(len(group))
        try:
            answers = await self._write([asked.row for asked in group])
            for asked, answer in zip(group, answers, strict=True):
                asked.succeed(answer)
        except Exception as error:
            if len(group) == 1:
                group[0].fail(error)
            else:
                log.warning("group_repeated_apart", group=self._name, error=type(error).__name__)
                self._repeat_apart(group)

    def _repeat_apart(self, group: Sequence[_Asked[Row, Answer]]) -> None:
        """Sends each row alone, beside the next groups: one that waits holds up none of them."""
        _apart.labels(self._name).inc(len(group))
        for asked in group:
            task = asyncio.create_task(self._send_apart(asked))
            self._apart.add(task)
            task.add_done_callback(self._apart.discard)

    async def _send_apart(self, asked: _Asked[Row, Answer]) -> None:
        async with self._apart_turns:
            if _is_wanted(asked):
                await self._send([asked])


def _is_wanted(asked: _Asked[Row, Answer]) -> bool:
    """Whether its caller still waits and will do so for the time of a write."""
    if asked.answered.done():
        return False
    if asked.answer_by is None or asked.answer_by - time.monotonic() >= deadlines.REMAINING_S_MIN:
        return True
    asked.fail(
        MeshError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "DEADLINE_TOO_SHORT",
            "The store is busy and no time was left for this write; allow the request more time.",
        )
    )
    return False
