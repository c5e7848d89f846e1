"""What of a turn is in the journal, and who may write to it.

A turn has one owner, named with an epoch in the journal's head of the turn. Every write names both
and is refused when they are not (any more) those of the head: a gateway that was paused, or cut off
from the store, finds out that another has adopted its turn (a fencing token, as in Gray &
Cheriton's leases, 1989, and Chubby's sequencers, 2006). The writes of an epoch are counted, so that
one that comes twice, or after a later one, changes nothing.

    Put      the plan and all that happened, whole: the first write, and the repair after a loss
    Append   what happened since the last write
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gateway import metrics
from gateway.turn.answer import Answer
from gateway.turn.events import EventLog, Numbered
from gateway.turn.plan import Plan
from gateway.turn.stored import Progress

RUNNING, COMPLETED, CANCELLED, FAILED = "running", "completed", "cancelled", "failed"
# Turns in one write at most, so that a large number of them does not hold up the store.
WRITE_COUNT_MAX = 256
# After a write of several turns the next one waits for more: a request costs the gateway and the
# store some 200 µs, whatever it holds. A gateway with one turn does not wait.
PACE_S = 0.003
# Steps of the event loop that what is due at once lets others take first.
STEPS_FIRST = 3
IDLE_S = 3600.0


class JournalAway(Exception):  # noqa: N818  # a state of the world, not a fault
    """The journal does not answer in time."""


class Outcome(Enum):
    """What became of a write, or of all that was to be written."""

    WRITTEN = "written"
    # Another owner has the turn.
    FENCED = "fenced"
    # The head is gone, or has not what the write goes on from: the whole must be written again.
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Write:
    """One write of an owner; `number` is that of its last event."""

    turn_id: str
    owner: str
    epoch: int
    number: int
    # Which write of the owner in this epoch it is, from 1.
    serial: int
    # It has all that happened, and the plan; else it goes on from the write before.
    is_whole: bool
    batch: bytes
    state: str = RUNNING
    plan: bytes = b""
    account_id: str = ""
    # With the plan: number of the last journaled event when each epoch before this one ended.
    epoch_numbers: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write."""

    outcome: Outcome
    # Somebody waits for news of the turn at another gateway.
    is_listened: bool = False
    # It was asked for that the turn be stopped.
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """A turn as the journal has it."""

    turn_id: str
    account_id: str
    owner: str
    epoch: int
    # Of the last journaled event.
    number: int
    state: str
    # Number of the last journaled event when each epoch ended.
    epoch_numbers: Sequence[int] = ()
    is_stopped: bool = False
    # Of the owner's last write.
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose turn an idempotency key names."""

    turn_id: str
    # SHA-256 of the request, hex.
    digest: str
    # The gateway that plans it.
    owner: str
    # The request that plans it: only that one may take the claim back.
    holder: str = ""
    # How often another request took it over: both may begin, each in an epoch of its own.
    epoch: int = 0


class JournalStore(Protocol):
    """Where turns are kept. Every method raises JournalAway when it does not answer in time."""

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """Does all, each by itself; in order for each turn."""

    async def tidy(self) -> None:
        """Makes room for turns that end, now and then."""

    async def head(self, turn_id: str) -> Head | None:
        """A turn; None: there is none, or not any more."""

    async def plan(self, turn_id: str) -> bytes:
        """Its plan; empty: there is none."""

    async def batches(self, turn_id: str, index: int = 0) -> list[bytes]:
        """What was written from the batch of this index on."""

    async def adopt(self, head: Head, owner: str) -> bool:
        """Makes `owner` the owner in the next epoch; False: the head has changed meanwhile, also by
        a write of an owner that was silent only."""

    async def stop(self, turn_id: str) -> None:
        """Asks the owner, whoever it is, to stop; remembered."""

    async def forget(self, turn_id: str, owner: str) -> None:
        """Takes a turn out, if it is still this owner's."""

    async def keep_alive(self, owner: str, lease_ms: int) -> None:
        """Says that an owner is alive for so long."""

    async def leave(self, owner: str) -> None:
        """Says that an owner is alive no more."""

    async def alive_s(self, owner: str) -> float:
        """For how long an owner is alive by its own last word; 0: it is not."""

    async def orphans(self, owner: str, count_max: int) -> list[str]:
        """Turns of owners that are not alive, and of `owner`, which knows whether it runs them;
        at most `count_max` of each. Takes owners without turns out."""

    async def claim(self, account_id: str, key: str, claim: Claim) -> Claim:
        """Lets an idempotency key name a turn; the claim that stands, this or an earlier one."""

    async def reclaim(self, account_id: str, key: str, old: Claim, claim: Claim) -> bool:
        """Puts a claim in the place of an old one; False: that stands no more."""

    async def disclaim(self, account_id: str, key: str, claim: Claim) -> None:
        """Takes a claim back, if it stands."""

    async def mark_read(self, turn_id: str, lease_ms: int) -> None:
        """Says that somebody reads a turn at another gateway than its owner."""

    async def is_read(self, turn_id: str) -> bool:
        """Whether somebody has said so lately."""

    def news(self, turn_id: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set when something was written of a turn, or it is to be stopped."""

    def stops(self, owner: str) -> AsyncIterator[str]:
        """Turns of an owner that are to be stopped, as it is said."""


class Lease:
    """Since when, and until when, nobody may have adopted a turn of this process.

    It is counted from before it was asked for, so that it ends here before it ends in the journal,
    also when this process sleeps.
    """

    def __init__(self) -> None:
        self._since, self._until = float("inf"), float("-inf")
        self._is_away, self._back_at = False, float("-inf")

    def covers(self, confirmed_at: float) -> bool:
        """Whether what was this process's own at a moment is so still, and for certain."""
        return self._since <= confirmed_at and asyncio.get_running_loop().time() < self._until

    def may_judge(self, lease_ms: int) -> bool:
        """Whether an owner that has no lease is no more.

        Not when the journal was away a moment ago: then nobody could renew one.
        """
        return asyncio.get_running_loop().time() - self._back_at >= lease_ms / 1000

    async def renew(self, store: JournalStore, owner: str, lease_ms: int) -> None:
        """Asks for a further lease; raises JournalAway."""
        begin = asyncio.get_running_loop().time()
        try:
            await store.keep_alive(owner, lease_ms)
        except JournalAway:
            self._is_away, self._back_at = True, float("inf")
            raise
        now = asyncio.get_running_loop().time()
        if self._is_away:
            self._is_away, self._back_at = False, now
        if begin > self._until:  # it had lapsed
            self._since = now
        self._until = begin + lease_ms / 1000


class Recording:
    """One turn of this process in the journal: what is written, what is next. Knows no store."""

    def __init__(
        self,
        plan: Plan,
        owner: str,
        log_: EventLog,
        answers: Sequence[Answer],
        epoch_numbers: Sequence[int] = (),
        *,
        is_journaled: bool = False,
    ) -> None:
        """A log that was read from the journal goes on in the next epoch."""
        self.plan, self.owner = plan, owner
        self.epoch, self.epoch_numbers = len(epoch_numbers), epoch_numbers
        self._log, self._progress = log_, Progress(answers)
        self._number, self.state, self._serial = log_.number, RUNNING, 0
        # Others can go on with it; a turn that is not yet is written whole.
        self.is_journaled = is_journaled
        self._must_put = not self.is_journaled
        if self.is_journaled:
            self._progress.written()
        self.is_away = self.is_fenced = self.is_listened = self._is_left = False
        # Called when another owner is found to have the turn; when it is to be stopped; when the
        # journal is found to be away.
        self.on_fenced: Callable[[], None] = _ignore
        self.on_away: Callable[[], None] = _ignore
        self.on_stopped: Callable[[], None] = _ignore
        self._written_state = RUNNING
        # When the last write that was accepted was sent.
        self.confirmed_at = float("-inf")
        self._is_held_back = False
        self._changed = asyncio.Event()

    @property
    def may_show(self) -> bool:
        """Whether readers may see what is not written yet."""
        # One that took a plan over has an epoch that the heir of the first owner may have too.
        if self._is_held_back or (self.epoch and not self.is_journaled):
            return False
        return self.is_away or (self.is_journaled and self.plan.redraws)

    def hold_back(self) -> None:
        """What follows another owner would not make alike: nobody sees it before it is written."""
        self._is_held_back = True

    @property
    def has_news(self) -> bool:
        """Whether there is something to write."""
        return not self.is_fenced and (
            self._must_put or self._number < self._log.number or self._written_state != self.state
        )

    def end(self, state: str) -> None:
        """The next write is the last, and says how the turn ended."""
        self.state = state

    def leave(self) -> None:
        """Nobody waits for an absent journal any more."""
        self._is_left = True
        self._changed.set()

    async def opened(self, *, patient: bool = False) -> None:
        """Returns when the plan is durable, or the journal away; who is patient waits it out."""
        while not (self.is_journaled or self.is_fenced) and (
            (patient and not self._is_left) or not self.is_away
        ):
            self._changed.clear()
            await self._changed.wait()

    async def flushed(self, *, patient: bool = False) -> Outcome | None:
        """Returns when all is written, or another has the turn; None: the journal is away, which
        who is patient waits out."""
        while self.has_news and ((patient and not self._is_left) or not self.is_away):
            self._changed.clear()
            await self._changed.wait()
        if self.is_fenced:
            return Outcome.FENCED
        return None if self.has_news else Outcome.WRITTEN

    def next_write(self) -> Write:
        """What is to be written now; `wrote` or `failed` must follow."""
        if self._must_put:
            self._progress.rewind()
        self._serial += 1
        self._sent_at = asyncio.get_running_loop().time()
        return Write(
            turn_id=self.plan.turn_id,
            owner=self.owner,
            epoch=self.epoch,
            number=self._log.number,
            serial=self._serial,
            is_whole=self._must_put,
            batch=self._progress.batch(
                self._log.events if self._must_put else _behind(self._log, self._number)
            ),
            state=self.state,
            plan=self.plan.stored.SerializeToString() if self._must_put else b"",
            account_id=self.plan.caller.account_id,
            epoch_numbers=self.epoch_numbers,
        )

    def wrote(self, write: Write, written: Written) -> None:
        """Takes the outcome of a write."""
        if written.outcome is Outcome.LOST:
            self._must_put = True
            return
        if written.outcome is Outcome.FENCED:
            self.is_fenced = True
            self.on_fenced()
        else:
            self._must_put = self.is_away = False
            self.is_journaled, self.is_listened = True, written.is_listened
            self._number, self._written_state = write.number, write.state
            self.confirmed_at = self._sent_at
            if written.is_stopped:
                self.on_stopped()
            self._log.show(self._log.number if self.may_show else write.number)
        self._changed.set()

    def failed(self) -> None:
        """The journal is away: what was to be written may be there or not."""
        self._must_put = self.is_away = True
        self.on_away()
        if self.may_show:
            self._log.show(self._log.number)
        self._changed.set()


def _ignore() -> None:
    """Nobody is to be told."""


def _behind(log_: EventLog, number: int) -> Sequence[Numbered]:
    index = len(log_.events)
    while index and log_.events[index - 1].number > number:
        index -= 1
    return log_.events[index:]


class JournalWriter:
    """Group commit: what all turns of this process have to write goes out together.

    One request to the store at a time, so that a busy system writes more at once instead of more
    often.
    """

    def __init__(
        self,
        store: JournalStore,
        retry_s: float = 0.5,
    ) -> None:
        self._store, self._retry_s = store, retry_s
        self._due: dict[Recording, float] = {}
        self._wake, self._writing = asyncio.Event(), asyncio.Lock()
        self._next_at = float("inf")

    def drop(self, recording: Recording) -> None:
        """Writes no more of a turn."""
        self._due.pop(recording, None)

    def note(self, recording: Recording, delay_s: float = 0.0) -> None:
        """Has a turn written within `delay_s`; those that can wait are written together."""
        at = asyncio.get_running_loop().time()
        if delay_s:
            at = (at // delay_s + 1) * delay_s
        if at < self._due.get(recording, float("inf")):
            self._due[recording] = at
            if at < self._next_at:
                self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            self._wake.clear()
            self._next_at = min(self._due.values(), default=float("inf"))
            now = asyncio.get_running_loop().time()
            if self._next_at > now:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(self._next_at, now + IDLE_S)):
                        await self._wake.wait()
                continue
            self._next_at = float("-inf")
            # What a turn begins with, its generation above all, is sent first.
            for _ in range(STEPS_FIRST):
                await asyncio.sleep(0)
            if await self.flush(now) > 1:
                await asyncio.sleep(PACE_S)

    async def flush(self, until: float = float("inf")) -> int:
        """Writes what is due until then; of how many turns."""
        async with self._writing:
            return await self._flush(until)

    async def _flush(self, until: float) -> int:
        due = [each for each, at in self._due.items() if at <= until][:WRITE_COUNT_MAX]
        for recording in due:
            del self._due[recording]
        recordings = [recording for recording in due if recording.has_news]
        if not recordings:
            return 0
        writes = [recording.next_write() for recording in recordings]
        try:
            results = await self._store.write(writes)
        except JournalAway:
            metrics.JOURNAL_FAILURES.inc()
            for recording in recordings:
                recording.failed()
                self.note(recording, self._retry_s)
            return 0
        for recording, write, written in zip(recordings, writes, results, strict=True):
            recording.wrote(write, written)
            if written.outcome is Outcome.LOST:
                self.note(recording)
        return len(recordings)
