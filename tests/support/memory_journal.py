"""A journal of turns in memory: what Redis does, in Python. `tests/stores/test_journal.py` holds
both to the same transcripts."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.turn.journal import RUNNING, Claim, Head, JournalAway, Outcome, Write, Written


@dataclass
class Stored:
    head: Head
    plan: bytes
    # The last write of the owner in its epoch.
    serial: int = 0
    batches: list[bytes] = field(default_factory=list)


class MemoryJournal:
    """A `JournalStore` of any number of gateways."""

    def __init__(self) -> None:
        self.turns: dict[str, Stored] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.alive_until: dict[str, float] = {}
        self.read_until: dict[str, float] = {}
        self.is_away = False
        self._listeners: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._stops: dict[str, asyncio.Queue[str]] = defaultdict(asyncio.Queue)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _check(self) -> None:
        if self.is_away:
            raise JournalAway

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        self._check()
        return [self.write_one(each) for each in writes]

    def write_one(self, write: Write) -> Written:
        found = self.turns.get(write.turn_id)
        # How much later the writer's epoch is than that of the head.
        age = write.epoch - found.head.epoch if found else 0
        if found and (age < 0 or (age == 0 and found.head.owner != write.owner)):
            return Written(Outcome.FENCED)
        if found and age == 0 and (found.serial >= write.serial or self._is_end(found, write)):
            return Written(Outcome.WRITTEN, is_stopped=found.head.is_stopped)
        if found and age > 0 and not write.is_whole:
            return Written(Outcome.LOST)
        outcome = self._put(found, write) if write.is_whole else self._append(found, write)
        if outcome is not Outcome.WRITTEN:
            return Written(outcome)
        for listener in self._listeners[write.turn_id]:
            listener.set()
        stopped = self.turns[write.turn_id].head.is_stopped
        return Written(outcome, bool(self._listeners[write.turn_id]), stopped)

    @staticmethod
    def _is_end(found: Stored, write: Write) -> bool:
        """Whether a turn that ended is written whole again, as it is."""
        now = (found.head.state, found.head.number)
        return write.is_whole and now == (write.state, write.number) and now[0] != RUNNING

    def _put(self, found: Stored | None, write: Write) -> Outcome:
        if found and found.head.state != RUNNING:
            return Outcome.FENCED
        head = Head(
            turn_id=write.turn_id,
            account_id=write.account_id,
            owner=write.owner,
            epoch=write.epoch,
            number=write.number,
            state=write.state,
            epoch_numbers=tuple(write.epoch_numbers),
            is_stopped=found.head.is_stopped if found else False,
        )
        self.turns[write.turn_id] = Stored(head, write.plan, write.serial, [write.batch])
        return Outcome.WRITTEN

    @staticmethod
    def _append(found: Stored | None, write: Write) -> Outcome:
        if found is None or found.serial + 1 != write.serial or found.head.state != RUNNING:
            return Outcome.LOST
        found.head = replace(found.head, number=write.number, state=write.state)
        found.serial = write.serial
        found.batches.append(write.batch)
        return Outcome.WRITTEN

    async def tidy(self) -> None:
        self._check()

    async def head(self, turn_id: str) -> Head | None:
        self._check()
        found = self.turns.get(turn_id)
        return replace(found.head, serial=found.serial) if found else None

    async def plan(self, turn_id: str) -> bytes:
        self._check()
        found = self.turns.get(turn_id)
        return found.plan if found else b""

    async def batches(self, turn_id: str, index: int = 0) -> list[bytes]:
        self._check()
        found = self.turns.get(turn_id)
        return found.batches[index:] if found else []

    async def adopt(self, head: Head, owner: str) -> bool:
        self._check()
        found = self.turns.get(head.turn_id)
        if found is None or found.head.state != RUNNING:
            return False
        now = found.head
        if (now.owner, now.epoch) == (owner, head.epoch + 1):
            return True
        if (now.owner, now.epoch, found.serial) != (head.owner, head.epoch, head.serial):
            return False
        numbers, found.serial = (*now.epoch_numbers, now.number), 0
        found.head = replace(now, owner=owner, epoch=now.epoch + 1, epoch_numbers=numbers)
        return True

    async def stop(self, turn_id: str) -> None:
        self._check()
        found = self.turns.get(turn_id)
        if found and found.head.state == RUNNING:
            found.head = replace(found.head, is_stopped=True)
            self._stops[found.head.owner].put_nowait(turn_id)

    async def forget(self, turn_id: str, owner: str) -> None:
        self._check()
        found = self.turns.get(turn_id)
        if found and found.head.owner == owner:
            del self.turns[turn_id]

    async def keep_alive(self, owner: str, lease_ms: int) -> None:
        self._check()
        self.alive_until[owner] = self._now() + lease_ms / 1000

    async def leave(self, owner: str) -> None:
        self._check()
        self.alive_until.pop(owner, None)

    async def alive_s(self, owner: str) -> float:
        self._check()
        return max(0.0, self.alive_until.get(owner, 0.0) - self._now())

    async def orphans(self, owner: str, count_max: int) -> list[str]:
        self._check()
        found = [
            stored.head.turn_id
            for stored in self.turns.values()
            if stored.head.state == RUNNING
            and (
                stored.head.owner == owner
                or self.alive_until.get(stored.head.owner, 0.0) <= self._now()
            )
        ]
        return found[:count_max]

    async def claim(self, account_id: str, key: str, claim: Claim) -> Claim:
        self._check()
        return self.claims.setdefault((account_id, key), claim)

    async def reclaim(self, account_id: str, key: str, old: Claim, claim: Claim) -> bool:
        self._check()
        if self.claims.get((account_id, key)) != old:
            return False
        self.claims[account_id, key] = claim
        return True

    async def disclaim(self, account_id: str, key: str, claim: Claim) -> None:
        self._check()
        if self.claims.get((account_id, key)) == claim:
            del self.claims[account_id, key]

    async def mark_read(self, turn_id: str, lease_ms: int) -> None:
        self._check()
        self.read_until[turn_id] = self._now() + lease_ms / 1000

    async def is_read(self, turn_id: str) -> bool:
        self._check()
        return self.read_until.get(turn_id, 0.0) > self._now()

    @contextlib.asynccontextmanager
    async def news(self, turn_id: str) -> AsyncIterator[asyncio.Event]:
        arrived = asyncio.Event()
        self._listeners[turn_id].add(arrived)
        try:
            yield arrived
        finally:
            self._listeners[turn_id].discard(arrived)

    async def stops(self, owner: str) -> AsyncIterator[str]:
        while True:
            yield await self._stops[owner].get()


class Link:
    """One gateway's way to the journal, which can be cut."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)
        if name in ("news", "stops"):
            return method

        async def call(*args: Any) -> Any:
            if self.is_cut:
                raise JournalAway
            return await method(*args)

        return call
