"""One reader's way through a turn, wherever the turn runs and however often its owner dies."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from gateway import errors
from gateway.errors import public
from gateway.turn.calls import CallReading
from gateway.turn.domain import Failed, Finished, Started
from gateway.turn.events import (
    BEGINNING,
    Cursor,
    Numbered,
    bad_cursor,
    behind,
    cuts_short,
    weight,
)
from gateway.turn.journal import RUNNING, Head, JournalAway, JournalStore
from gateway.turn.plan import Plan
from gateway.turn.run import Run
from gateway.turn.stored import events_of
from mesh.chassis.errors import MeshError

# Between two looks at a turn that another gateway runs, when no news came.
LOOK_S = 0.25
LOOK_S_MIN = 0.05
# The lease of an owner is looked at so soon after it would have ended.
LEASE_MARGIN_S = 0.005
# A reader at another gateway says each LOOK_S that it is there.
READ_LEASE_MS = 2_000
# How long a reader waits for a journal that is away, or has lost a turn that its owner still has.
PATIENCE_S = 10.0
RETRY_AFTER_S = 1.0

T = TypeVar("T")
Batches = AsyncGenerator[Sequence[Numbered], None]


def check_cursor(cursor: Cursor, head: Head, *, redraws: bool) -> None:
    """Whether what follows a cursor can be told exactly; never guessed.

    Args:
        cursor: where a reader is, by the word of the epoch that numbered its last event.
        head: the turn now.
        redraws: every epoch gives the same events the same numbers.

    Raises:
        MeshError: CURSOR_INVALID, CURSOR_LOST.
    """
    if cursor.epoch > head.epoch:
        raise bad_cursor()
    # Seen by the reader, never journaled, and made otherwise by the next owner.
    if not redraws and cursor.epoch < head.epoch:
        if cursor.number > head.epoch_numbers[cursor.epoch]:
            raise lost_cursor()
    elif head.state != RUNNING and cursor.number > head.number:
        raise lost_cursor() if cursor.epoch < head.epoch else bad_cursor()


def lost_cursor() -> MeshError:
    """The refusal to go on from a cursor that was valid once."""
    message = (
        "What followed this event cannot be told exactly any more; GET the turn for its text, or "
        "follow it from the beginning."
    )
    return public(errors.CURSOR_LOST, message, param="after")


def no_such_turn() -> MeshError:
    """The refusal to show a turn."""
    message = "You have no turn of this id, or it ended longer ago than turns are kept."
    return public(errors.TURN_NOT_FOUND, message, param="turn_id")


def journal_away() -> MeshError:
    """The turn may be there; the journal does not say."""
    return public(
        errors.SERVICE_UNAVAILABLE,
        "The journal of turns does not answer; try again shortly.",
        retry_after_s=RETRY_AFTER_S,
        service="journal",
    )


class Following:
    """The events of a turn for one reader."""

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        store: JournalStore,
        *,
        run_of: Callable[[str], Run | None],
        lives: Callable[[Head], Awaitable[bool]],
        adopt: Callable[[Head], Awaitable[Run | None]],
    ) -> None:
        """`run_of` gives the turn if it runs here, `lives` tells whether it runs elsewhere; `adopt`
        makes it run here."""
        self.plan = plan
        self._store, self._run_of, self._lives, self._adopt = store, run_of, lives, adopt
        self._cursor, self._epoch = cursor, cursor.epoch
        self._calls = CallReading(plan) if plan.has_tools else None
        self._is_over = False

    @property
    def started(self) -> Started:
        """The first event, also for a reader that is past it."""
        run = self._run_of(self.plan.turn_id)
        return self.plan.started(journaled=run is None or run.recording.is_journaled)

    @property
    def epoch(self) -> int:
        """Of whoever numbers the events now."""
        return self._epoch

    async def events(self) -> Batches:
        """What follows the cursor, to the end of the turn.

        Raises:
            MeshError: CURSOR_INVALID, CURSOR_LOST, TURN_NOT_FOUND, SERVICE_UNAVAILABLE.
        """
        while not self._is_over:
            run = self._run_here()
            source = self._here(run) if run else self._elsewhere()
            async with contextlib.aclosing(source) as batches:
                async for batch in batches:
                    self._cursor = Cursor(self._epoch, batch[-1].number)
                    self._is_over = isinstance(batch[-1].event, Finished | Failed)
                    if told := self._calls.told(batch) if self._calls else batch:
                        yield told
                    if self._is_over:
                        return

    def _run_here(self) -> Run | None:
        """The turn, if it runs here; one that was adopted elsewhere may not know it yet."""
        run = self._run_of(self.plan.turn_id)
        return run if run and run.recording.epoch >= self._cursor.epoch else None

    async def _here(self, run: Run) -> Batches:
        """Events from the log of their owner; ends with the turn, or when it has moved."""
        head = run.head
        check_cursor(self._cursor, head, redraws=run.redraws)
        if head.epoch == self._cursor.epoch and self._cursor.number > run.log.number:
            raise bad_cursor()
        self._epoch = head.epoch
        # One that is ahead of what was journaled sees how this owner comes to where it is.
        begin = self._cursor.number
        if self._is_ahead(head):
            begin = head.epoch_numbers[self._cursor.epoch]
        if self._calls:  # which are read from the beginning
            begin = BEGINNING
        async with contextlib.aclosing(run.log.read(begin)) as batches:
            async for batch in batches:
                if left := self._left(batch, head):
                    yield left
        if not run.log.is_moved:  # stopped, perhaps, before where the reader was
            check_cursor(self._cursor, run.head, redraws=run.redraws)
            self._is_over = True

    async def _elsewhere(self) -> Batches:
        """Events from the journal; ends with the turn, or when it runs here."""
        index = 0
        async with self._store.news(self.plan.turn_id) as news:
            while True:
                news.clear()
                head = await self._patiently(self._head)
                check_cursor(self._cursor, head, redraws=self.plan.redraws)
                self._epoch = head.epoch
                stored = await self._patiently(partial(self._batches, index))
                found = [each for data in stored for each in events_of(data, self.started)]
                batch = self._left(found, head)
                if self._skips(batch, head):  # it was written anew, whole, or is gone
                    if index == 0:
                        await asyncio.sleep(LOOK_S)
                    index = 0
                    continue
                index += len(stored)
                if batch:
                    yield batch
                if head.state != RUNNING:
                    self._is_over = True
                    return
                wait_s = await self._wait_s(head)
                if not wait_s:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), wait_s)

    def _is_ahead(self, head: Head) -> bool:
        """Whether the reader saw what an earlier owner never journaled."""
        cursor = self._cursor
        return cursor.epoch < head.epoch and cursor.number > head.epoch_numbers[cursor.epoch]

    def _left(self, events: Sequence[Numbered], head: Head) -> list[Numbered]:
        """What the reader has not seen of them.

        Raises:
            MeshError: CURSOR_LOST: the turn was stopped, or failed, before where the reader is.
        """
        number = self._cursor.number
        if self._is_ahead(head) and any(
            each.number <= number and cuts_short(each.event) for each in events
        ):
            raise lost_cursor()
        left = [left for each in events if (left := behind(each, number))]
        if self._calls:
            self._calls.skip(events, number)
        return left

    def _skips(self, batch: Sequence[Numbered], head: Head) -> bool:
        """Whether more lies between the cursor and the head than the batch has."""
        begin = end = self._cursor.number
        if batch:
            begin, end = batch[0].number - weight(batch[0].event), batch[-1].number
        return begin > self._cursor.number or end < head.number

    async def _wait_s(self, head: Head) -> float:
        """How long to wait for news; 0: the turn runs here now."""
        try:
            if self._run_here() or (not await self._lives(head) and await self._adopt(head)):
                return 0.0
            alive_s = await self._store.alive_s(head.owner)
            await self._store.mark_read(head.turn_id, READ_LEASE_MS)
        except JournalAway:
            return LOOK_S  # the next look finds out
        # An owner that lives renews its lease long before it ends.
        return min(LOOK_S, max(alive_s, LOOK_S_MIN) + LEASE_MARGIN_S)

    async def _head(self) -> Head | None:
        return await self._store.head(self.plan.turn_id)

    async def _batches(self, index: int) -> Sequence[bytes] | None:
        return await self._store.batches(self.plan.turn_id, index)

    async def _patiently(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """What `look` finds, sooner or later."""
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                if (found := await look()) is not None:
                    return found
                failure = no_such_turn()
            except JournalAway:
                failure = journal_away()
            if asyncio.get_running_loop().time() > end:
                raise failure
            await asyncio.sleep(LOOK_S)
