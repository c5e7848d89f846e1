"""How old an answer may be."""

import asyncio

import grpc
import pytest

from gateway.admission.cache import Ages, FreshCache
from mesh.chassis.errors import MeshError

NO = MeshError(grpc.StatusCode.NOT_FOUND, "NO", "no such key")
AWAY = MeshError(grpc.StatusCode.UNAVAILABLE, "AWAY", "not there")
AGES = Ages(fresh_s=0.8, refresh_s=0.4, refused_s=0.5, stale_s=30, patience_s=0.05)


class Source:
    """Answers by script; counts the questions."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer: object = "one"
        self.questions = 0
        self.gate: asyncio.Event | None = None
        self.cache = FreshCache(
            self.load, lambda error: error.reason == "NO", AGES, 3, lambda: self.now
        )

    async def load(self, key: str) -> object:
        self.questions += 1
        answer = self.answer
        if self.gate:
            await self.gate.wait()
        if isinstance(answer, MeshError):
            raise answer
        return answer

    async def refuses(self, reason: str) -> None:
        with pytest.raises(MeshError) as caught:
            await self.cache.get("k")
        assert caught.value.reason == reason


async def test_fresh_refreshed_old():
    source = Source()
    assert await source.cache.get("k") == "one"
    source.now, source.answer = 0.3, "two"
    assert await source.cache.get("k") == "one"
    assert source.questions == 1
    source.now = 0.5
    assert await source.cache.get("k") == "one"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert source.questions == 2
    assert await source.cache.get("k") == "two"
    source.now, source.answer = 2.0, "three"
    assert await source.cache.get("k") == "three"


async def test_age_counts_from_the_question():
    source = Source()
    source.gate = asyncio.Event()
    asking = asyncio.create_task(source.cache.get("k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.now, source.answer = 0.7, NO
    source.gate.set()
    assert await asking == "one"
    source.gate, source.now = None, 0.81
    await source.refuses("NO")


async def test_refusals_are_remembered_for_less_long():
    source = Source()
    source.answer = NO
    await source.refuses("NO")
    source.answer, source.now = "one", 0.49
    await source.refuses("NO")
    source.now = 0.51
    assert await source.cache.get("k") == "one"


async def test_an_old_answer_helps_while_there_is_none():
    source = Source()
    await source.cache.get("k")
    source.now, source.answer = 29.0, AWAY
    assert await source.cache.get("k") == "one"
    source.now = 31.0
    await source.refuses("AWAY")
    source.answer = "two"
    assert await source.cache.get("k") == "two"


async def test_patience_with_a_source_that_hangs():
    source = Source()
    await source.cache.get("k")
    source.now, source.gate = 5.0, asyncio.Event()
    assert await source.cache.get("k") == "one"
    source.gate.set()


async def test_one_question_for_all_and_a_leaver_takes_nobody_along():
    source = Source()
    source.gate = asyncio.Event()
    waiting = [asyncio.create_task(source.cache.get("k")) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*waiting[1:]) == ["one"] * 4
    assert source.questions == 1


async def test_the_least_recently_used_leaves():
    source = Source()
    for key in ("a", "b", "c"):
        await source.cache.get(key)
    await source.cache.get("a")
    await source.cache.get("d")
    assert source.questions == 4
    await source.cache.get("a")
    assert source.questions == 4
    await source.cache.get("b")
    assert source.questions == 5
