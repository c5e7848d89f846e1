"""The journal on the real Redis: its model answers alike, and a paused owner is fenced.

The simulation (`tests/simulation`) runs over the model in memory; what it proves holds for Redis
because both give the same answers to the same random calls.
"""

import random
from dataclasses import replace

import pytest
import pytest_asyncio

from gateway.settings import TurnLimits
from gateway.turn.journal import (
    CANCELLED,
    COMPLETED,
    RUNNING,
    Claim,
    Head,
    JournalStore,
    Outcome,
    Write,
)
from gateway.upstreams.journal import RedisJournal
from mesh.chassis.redis_client import connect
from tests.support.memory_journal import MemoryJournal

TURNS, OWNERS, KEYS = ("T1", "T2", "T3"), ("a", "b", "c"), ("k1", "k2")
LEASE_MS = 60_000
STEP_COUNT = 80
METHODS = (
    *("write",) * 10,
    *("adopt",) * 4,
    *("stop", "forget", "claim", "claim", "reclaim", "disclaim"),
    *("keep_alive", "leave", "mark_read", "look"),
)


@pytest_asyncio.fixture
async def journal(redis_url):
    client = connect(redis_url, name="journal")
    yield RedisJournal(client, TurnLimits(journal_timeout_s=10))
    await client.aclose()


class Caller:
    """Makes the same calls of both; draws them so that most make sense and some do not."""

    def __init__(self, rng: random.Random, real: JournalStore, model: MemoryJournal) -> None:
        self._rng, self._real, self._model = rng, real, model
        self._heads: list[Head] = []
        self._claims: list[Claim] = []
        self._serials: dict[tuple[str, str, int], int] = {}
        # Turns of which a last write was refused: Redis lists them no more until they are put.
        self._unlisted: set[str] = set()

    async def both(self, method: str, *args):
        """The answer, which is that of both."""
        real = await getattr(self._real, method)(*args)
        model = await getattr(self._model, method)(*args)
        assert real == model, f"{method}{args}: Redis says {real}, the model {model}"
        return real

    async def step(self) -> None:
        await getattr(self, "_" + self._rng.choice(METHODS))()

    async def _write(self) -> None:
        writes = [await self._drawn() for _ in range(self._rng.choice((1, 1, 2)))]
        for write in writes:
            await self._enter(write.owner)
        for written, write in zip(await self.both("write", writes), writes, strict=True):
            if written.outcome is Outcome.WRITTEN:
                key = write.turn_id, write.owner, write.epoch
                self._serials[key] = max(write.serial, self._serials.get(key, 0))
            if write.state != RUNNING:
                self._unlisted.add(write.turn_id)
            elif write.is_whole:
                self._unlisted.discard(write.turn_id)

    async def _drawn(self) -> Write:
        """Mostly what the owner of the head would write next."""
        rng, turn = self._rng, self._rng.choice(TURNS)
        head = await self.both("head", turn)
        owner, epoch = (head.owner, head.epoch) if head else (rng.choice(OWNERS), 0)
        if rng.random() < 0.25:
            owner, epoch = rng.choice(OWNERS), rng.randrange(3)
        known = self._serials.get((turn, owner, epoch), 0)
        is_whole = head is None or rng.random() < 0.25
        return Write(
            turn_id=turn,
            owner=owner,
            epoch=epoch,
            number=rng.randrange(-1, 4) if rng.random() < 0.2 else (head.number if head else 0) + 1,
            serial=max(1, known + rng.choice((1, 1, 1, 1, 0, -1, 2))),
            is_whole=is_whole,
            batch=rng.randbytes(6),
            state=rng.choice((RUNNING,) * 6 + (COMPLETED, CANCELLED)),
            plan=b"plan \xff" if is_whole else b"",
            account_id="acc" if is_whole else "",
            epoch_numbers=tuple(range(epoch)) if is_whole else (),
        )

    async def _adopt(self) -> None:
        head = await self.both("head", self._rng.choice(TURNS))
        if head:
            self._heads.append(head)
        if self._heads:  # also one that was read long ago
            known = self._heads[-1] if self._rng.random() < 0.7 else self._rng.choice(self._heads)
            owner = self._rng.choice(OWNERS)
            await self._enter(owner)
            await self.both("adopt", known, owner)

    async def _enter(self, owner: str) -> None:
        """Owners that write have said that they live, be it that they do no more."""
        if not await self._real.alive_s(owner):
            await self.both("keep_alive", owner, LEASE_MS)
            await self.both("leave", owner)

    async def _stop(self) -> None:
        await self.both("stop", self._rng.choice(TURNS))

    async def _forget(self) -> None:
        await self.both("forget", self._rng.choice(TURNS), self._rng.choice(OWNERS))

    async def _claim(self) -> None:
        rng = self._rng
        claim = Claim(rng.choice(TURNS), rng.choice("xy"), rng.choice(OWNERS), rng.choice("hi"))
        self._claims.append(await self.both("claim", "acc", rng.choice(KEYS), claim))

    async def _reclaim(self) -> None:
        if self._claims:
            old = self._rng.choice(self._claims)
            claim = replace(old, owner=self._rng.choice(OWNERS), epoch=old.epoch + 1)
            if await self.both("reclaim", "acc", self._rng.choice(KEYS), old, claim):
                self._claims.append(claim)

    async def _disclaim(self) -> None:
        if self._claims:
            key, claim = self._rng.choice(KEYS), self._rng.choice(self._claims)
            await self.both("disclaim", "acc", key, claim)

    async def _keep_alive(self) -> None:
        await self.both("keep_alive", self._rng.choice(OWNERS), LEASE_MS)

    async def _leave(self) -> None:
        await self.both("leave", self._rng.choice(OWNERS))

    async def _mark_read(self) -> None:
        await self.both("mark_read", self._rng.choice(TURNS), LEASE_MS)

    async def _look(self) -> None:
        """All that can be asked."""
        rng = self._rng
        for turn in TURNS:
            await self.both("head", turn)
            await self.both("plan", turn)
            await self.both("batches", turn, rng.randrange(4))
            await self.both("is_read", turn)
        for owner in OWNERS:
            alive = [bool(await each.alive_s(owner)) for each in (self._real, self._model)]
            assert alive[0] == alive[1], f"{owner} alive: Redis says {alive[0]}"
        await self._look_at_orphans(rng.choice(OWNERS))

    async def _look_at_orphans(self, owner: str) -> None:
        """Redis may name turns that are none: whoever asks looks at the head."""
        real = set(await self._real.orphans(owner, 100))
        model = set(await self._model.orphans(owner, 100))
        missing = model - real - self._unlisted
        assert not missing, f"Redis does not name {missing}"
        for turn in real - model:
            head = await self._real.head(turn)
            is_running = head is not None and head.state == RUNNING
            assert not is_running or (head.owner != owner and await self._real.alive_s(head.owner))


@pytest.mark.parametrize("seed", range(30))
async def test_the_model_answers_as_redis_does(journal, seed):
    rng = random.Random(seed)
    caller = Caller(rng, journal, MemoryJournal())
    for owner in OWNERS:
        await caller.both("keep_alive", owner, LEASE_MS)
    for _ in range(STEP_COUNT):
        await caller.step()
    await caller._look()


def begun(owner: str = "sleeper", epoch: int = 0) -> Write:
    return Write("T", owner, epoch, 0, 1, True, b"begun", RUNNING, b"plan", "acc")


def more(write: Write, batch: bytes) -> Write:
    return replace(
        write,
        number=write.number + 1,
        serial=write.serial + 1,
        is_whole=False,
        batch=batch,
        plan=b"",
    )


async def test_an_owner_that_slept_is_refused(journal):
    """It was paused longer than its lease; another adopted its turn; it wakes and writes."""
    first = begun()
    assert [each.outcome for each in await journal.write([first])] == [Outcome.WRITTEN]
    head = await journal.head("T")
    assert await journal.adopt(head, "heir")
    late = more(first, b"of the sleeper")
    whole = replace(late, is_whole=True, serial=3, plan=b"plan")
    refused = await journal.write([late, whole])
    assert [each.outcome for each in refused] == [Outcome.FENCED, Outcome.FENCED]
    heirs = Write("T", "heir", 1, 1, 1, False, b"of the heir")
    assert [each.outcome for each in await journal.write([heirs])] == [Outcome.WRITTEN]
    assert await journal.batches("T") == [b"begun", b"of the heir"]


async def test_an_owner_that_was_silent_only_keeps_its_turn(journal):
    first = begun()
    await journal.write([first])
    head = await journal.head("T")
    await journal.write([more(first, b"awake")])
    assert not await journal.adopt(head, "heir")
    assert (await journal.head("T")).owner == "sleeper"


async def test_a_write_that_comes_late_changes_nothing(journal):
    first = begun()
    second = more(first, b"second")
    await journal.write([first])
    await journal.write([second])
    again = await journal.write([first, second])
    assert [each.outcome for each in again] == [Outcome.WRITTEN, Outcome.WRITTEN]
    assert (await journal.head("T")).number == second.number
    assert await journal.batches("T") == [b"begun", b"second"]


async def test_an_adoption_whose_answer_was_lost_can_be_repeated(journal):
    await journal.write([begun()])
    head = await journal.head("T")
    assert await journal.adopt(head, "heir")
    assert await journal.adopt(head, "heir")
    assert not await journal.adopt(head, "another")
    assert (await journal.head("T")).epoch == 1


async def test_a_later_epoch_wins_over_a_journal_that_forgot_its_adoption(journal):
    await journal.write([begun()])
    append = Write("T", "heir", 1, 5, 7, False, b"more")
    assert [each.outcome for each in await journal.write([append])] == [Outcome.LOST]
    whole = replace(append, serial=8, is_whole=True, plan=b"plan", epoch_numbers=(0,))
    assert [each.outcome for each in await journal.write([whole])] == [Outcome.WRITTEN]
    late = more(begun(), b"of the sleeper")
    assert [each.outcome for each in await journal.write([late])] == [Outcome.FENCED]


async def test_who_listens_is_counted(journal):
    await journal.write([begun()])
    async with journal.news("T") as news:
        (written,) = await journal.write([more(begun(), b"more")])
        assert written.is_listened
        await news.wait()
