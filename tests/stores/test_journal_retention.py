"""Ended turns are kept for a while and within bounds in bytes, on the real Redis."""

from dataclasses import replace

import pytest_asyncio

from gateway.settings import TurnLimits
from gateway.turn.journal import COMPLETED, RUNNING, Outcome, Write
from gateway.upstreams.journal import RedisJournal, head_key
from mesh.chassis.redis_client import connect

LIMITS = TurnLimits(turn_retention_bytes_max=10_000, account_retention_bytes_max=4_000)


@pytest_asyncio.fixture
async def journal(redis_url):
    client = connect(redis_url, name="journal")
    yield RedisJournal(client, LIMITS)
    await client.aclose()


def writes(turn: str, account: str, size: int) -> tuple[Write, Write]:
    """A turn that begins with its plan, and ends."""
    begun = Write(turn, "owner", 0, 0, 1, True, b"", RUNNING, b"p" * (size // 2), account)
    ended = replace(begun, number=9, serial=2, is_whole=False, batch=b"b" * (size // 2), plan=b"")
    return begun, replace(ended, state=COMPLETED)


async def end(journal: RedisJournal, turn: str, account: str, size: int) -> None:
    for write in writes(turn, account, size):
        (written,) = await journal.write([write])
        assert written.outcome is Outcome.WRITTEN
    await journal.tidy()


async def kept(journal: RedisJournal, *turns: str) -> list[str]:
    return [turn for turn in turns if await journal.head(turn)]


async def test_an_account_keeps_its_newest_within_its_bytes(journal):
    for number in range(5):
        await end(journal, f"a{number}", "acc_a", 1_000)
    await end(journal, "b0", "acc_b", 1_000)
    assert await kept(journal, *(f"a{n}" for n in range(5)), "b0") == ["a1", "a2", "a3", "a4", "b0"]
    assert await journal.batches("a0") == []


async def test_all_accounts_together_are_bounded_too(journal):
    for number in range(12):
        await end(journal, f"t{number}", f"acc_{number}", 1_000)
    assert await kept(journal, *(f"t{n}" for n in range(12))) == [f"t{n}" for n in range(2, 12)]


async def test_a_running_turn_is_never_among_those_that_go(journal):
    (begun, _) = writes("long", "acc_a", 9_000)
    await journal.write([begun])
    for number in range(6):
        await end(journal, f"a{number}", "acc_a", 1_000)
    assert await kept(journal, "long", "a0", "a5") == ["long", "a5"]


async def test_an_ended_turn_is_forgotten_when_its_time_is_over(journal, redis_url):
    await end(journal, "t", "acc", 1_000)
    client = connect(redis_url, name="look")
    left_s = [await client.ttl(key) for key in (head_key("t"), head_key("t") + ":log")]
    await client.aclose()
    assert all(LIMITS.turn_retention_s - 5 <= each <= LIMITS.turn_retention_s for each in left_s)


async def test_no_owner_is_left_with_a_turn_that_ended(journal):
    await end(journal, "t", "acc", 100)
    (begun, _) = writes("running", "acc", 100)
    await journal.write([begun])
    assert await journal.orphans("other", 10) == []  # nobody has said that the owner ever lived
    await journal.keep_alive("owner", 1)
    await journal.leave("owner")
    assert await journal.orphans("other", 10) == ["running"]
