"""Keys that nobody has: how many are looked up, and what a flood of them leaves alone."""

import asyncio
import string

import grpc
import pytest

from gateway.admission import unknown
from gateway.admission.cache import Ages, FreshCache
from gateway.admission.unknown import IN_FLIGHT_MAX, MISS_BURST_MAX, MISSES_PER_S, UnknownKeys
from mesh.chassis import key_form
from mesh.chassis.errors import MeshError
from mesh.control.render import OUTLIER_DETECTION

NO = MeshError(grpc.StatusCode.UNAUTHENTICATED, "INVALID_API_KEY", "no such key")
FORMS = 2


async def misses(keys: UnknownKeys, count: int) -> int:
    """Looks `count` unknown keys up; gives how many were asked for."""
    asked, refusals = 0, set()
    for _ in range(count):
        try:
            async with keys.place():
                asked += 1
                keys.note_miss()
        except MeshError as error:
            refusals.add((error.reason, error.retry_after_s))
    assert refusals <= {("SERVICE_UNAVAILABLE", 1.0)}
    return asked


async def test_misses_are_bounded_and_come_back_with_time() -> None:
    now = [0.0]
    keys = UnknownKeys(lambda: now[0])
    assert await misses(keys, 100) == MISS_BURST_MAX
    now[0] += 1
    assert await misses(keys, 100) == MISSES_PER_S
    now[0] += 1000
    assert await misses(keys, 100) == MISS_BURST_MAX


async def test_keys_that_somebody_has_cost_nothing() -> None:
    keys = UnknownKeys(lambda: 0.0)
    for _ in range(10 * MISS_BURST_MAX):
        async with keys.place():
            pass
    assert await misses(keys, 1) == 1


async def test_at_once_there_are_few_and_others_wait() -> None:
    keys, inside, most = UnknownKeys(lambda: 0.0), 0, 0

    async def look_up() -> None:
        nonlocal inside, most
        async with keys.place():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            keys.note_miss()

    ends = await asyncio.gather(*(look_up() for _ in range(100)), return_exceptions=True)
    assert most == IN_FLIGHT_MAX
    served = sum(end is None for end in ends)
    assert MISS_BURST_MAX <= served < MISS_BURST_MAX + IN_FLIGHT_MAX


async def test_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown, "WAIT_S_MAX", 0.0)
    keys = UnknownKeys(lambda: 0.0)
    async with keys.place(), keys.place():
        with pytest.raises(MeshError):
            async with keys.place():
                pass
    async with keys.place():
        pass


def test_misses_are_too_few_to_take_an_instance_out() -> None:
    """C-core counts NOT_FOUND as a failure: in its interval, two instances, nothing else asked."""
    interval_s = float(OUTLIER_DETECTION["interval"].removesuffix("s"))
    of_one = MISS_BURST_MAX + MISSES_PER_S * interval_s + IN_FLIGHT_MAX
    hosts = OUTLIER_DETECTION["failure_percentage_minimum_hosts"]
    volume = OUTLIER_DETECTION["failure_percentage_request_volume"]
    failed_min = volume * OUTLIER_DETECTION["failure_percentage_threshold"] / 100
    assert FORMS * of_one / hosts < failed_min


async def test_a_flood_of_misses_pushes_no_key_out_of_the_cache() -> None:
    asked: list[str] = []

    async def load(key: str) -> str:
        asked.append(key)
        if key.startswith("bad"):
            raise NO
        return key

    now, is_refusal = 0.0, lambda error: error.reason == NO.reason
    ages = Ages(fresh_s=0.8, refresh_s=0.4, refused_s=0.5, stale_s=30)
    cache = FreshCache(load, is_refusal, ages, 3, lambda: now)
    assert await cache.get("good") == "good"
    for number in range(50):
        with pytest.raises(MeshError):
            await cache.get(f"bad{number}")
    assert await cache.get("good") == "good"
    assert asked.count("good") == 1
    assert not cache.needs_question("good")
    # The last refusals are remembered, the first are not; both for a while.
    assert [cache.needs_question(f"bad{number}") for number in (0, 49)] == [True, False]
    now = 0.6
    assert cache.needs_question("bad49")


async def test_a_key_that_is_refused_later_is_a_value_no_more() -> None:
    now, known = 0.0, True

    async def load(key: str) -> str:
        if not known:
            raise NO
        return key

    is_refusal = lambda error: error.reason == NO.reason  # noqa: E731
    ages = Ages(fresh_s=0.8, refresh_s=0.4, refused_s=0.5, stale_s=30)
    cache = FreshCache(load, is_refusal, ages, 3, lambda: now)
    assert await cache.get("k") == "k"
    now, known = 1.0, False
    for _ in range(2):
        with pytest.raises(MeshError):
            await cache.get("k")
    now, known = 2.0, True
    assert await cache.get("k") == "k"


def test_any_slip_in_a_key_is_seen_without_asking() -> None:
    key = key_form.key_of(bytes(range(32)))
    assert key_form.is_possible(key)
    letters = string.ascii_letters + string.digits + "-_"
    for place in range(len(key_form.PREFIX), len(key)):
        other = next(letter for letter in letters if letter != key[place])
        assert not key_form.is_possible(key[:place] + other + key[place + 1 :])
        swapped = key[: place - 1] + key[place] + key[place - 1] + key[place + 1 :]
        assert swapped == key or not key_form.is_possible(swapped)
    assert not key_form.is_possible(key + "\n")
    assert not key_form.is_possible("cm-ü" + key[4:])


def test_keys_of_before_have_no_checksum_and_stay_possible() -> None:
    old = "cm-" + "A" * key_form.RANDOM_LENGTH
    assert key_form.is_possible(old)
    assert not key_form.has_checksum(old)
    assert key_form.has_checksum(key_form.key_of(bytes(32)))
