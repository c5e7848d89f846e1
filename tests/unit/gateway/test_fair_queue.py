"""The queue in which turns wait to begin, on a clock that is a number."""

import asyncio
import random
from collections import Counter

import grpc
import pytest

from gateway.settings import QueueLimits
from gateway.turn.fair_queue import FairQueue
from mesh.chassis.errors import MeshError
from tests.simulation.loop import VirtualLoop

PLANNING_S = 0.01


def run(work):
    """Runs a test's coroutine on a clock that jumps."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class Bench:
    """Turns that pass a queue, each planned for PLANNING_S."""

    def __init__(self, **limits) -> None:
        self.crowded: set[str] = set()
        self.queue = FairQueue(
            QueueLimits(**limits), lambda model, coming_count: model in self.crowded
        )
        self.planning_count = self.planning_count_seen = 0
        self.served: list[str] = []

    async def turn(self, account: str, tier: str = "free", model: str = "m") -> None:
        async with self.queue.entered(account, tier, model):
            self.planning_count += 1
            self.planning_count_seen = max(self.planning_count_seen, self.planning_count)
            self.served.append(account)
            try:
                await asyncio.sleep(PLANNING_S)
            finally:
                self.planning_count -= 1

    def start(self, account: str, tier: str = "free", count: int = 1) -> list[asyncio.Task]:
        return [asyncio.ensure_future(self.turn(account, tier)) for _ in range(count)]


def test_what_has_room_does_not_wait():
    async def work():
        bench = Bench(planning_count_max=4)
        tasks = bench.start("a", count=4)
        await asyncio.sleep(0)
        assert bench.planning_count == 4
        assert asyncio.get_running_loop().time() == 0
        await asyncio.gather(*tasks)

    run(work())


def test_no_more_are_planned_at_once_and_all_are_served():
    async def work():
        bench = Bench(planning_count_max=3)
        await asyncio.gather(*bench.start("a", count=20), *bench.start("b", count=20))
        assert bench.planning_count_seen == 3
        assert Counter(bench.served) == {"a": 20, "b": 20}

    run(work())


def test_a_greedy_account_holds_up_nobody_else():
    async def work():
        bench = Bench(planning_count_max=2)
        greedy = bench.start("greedy", "enterprise", count=200)
        await asyncio.sleep(3 * PLANNING_S)
        modest = bench.start("modest", "free", count=2)
        before = len(bench.served)
        await asyncio.gather(*modest)
        # One of its own tags lies a whole unit behind the greedy one's, which has 16 in it.
        assert len(bench.served) - before <= 2 + 2 * 17
        for task in greedy:
            task.cancel()

    run(work())


@pytest.mark.parametrize(("tier", "share"), [("pro", 4), ("enterprise", 16)])
def test_accounts_that_wait_are_served_by_the_weights_of_their_tiers(tier, share):
    async def work():
        bench = Bench(planning_count_max=1)
        tasks = [*bench.start("free", "free", 100), *bench.start("other", tier, 400)]
        await asyncio.sleep(100 * PLANNING_S)
        served = Counter(bench.served[1:100])  # the first came before anybody waited
        assert served["other"] / served["free"] == pytest.approx(share, rel=0.2)
        for task in tasks:
            task.cancel()

    run(work())


def test_turns_of_a_crowded_model_wait_and_hold_up_no_other():
    async def work():
        bench = Bench(planning_count_max=2)
        bench.crowded.add("m")
        waiting = bench.start("a", count=5)
        await asyncio.sleep(PLANNING_S)
        assert bench.served == []
        await bench.turn("b", model="n")
        assert bench.served == ["b"]
        bench.crowded.clear()
        bench.queue.advance()
        await asyncio.gather(*waiting)
        assert bench.served == ["b", *"aaaaa"]
        assert bench.planning_count_seen == 2

    run(work())


def test_what_would_wait_too_long_is_refused_at_once_with_the_time_to_wait():
    async def work():
        bench = Bench(planning_count_max=1, queue_wait_s_max=1.0)
        waiting = bench.start("a", count=150)
        await asyncio.sleep(20 * PLANNING_S)  # 100 a second are served: 1.3 s are left to wait
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with pytest.raises(MeshError) as refused:
            await bench.turn("a")
        assert loop.time() == begin
        assert (refused.value.reason, refused.value.code) == (
            "OVERLOADED",
            grpc.StatusCode.UNAVAILABLE,
        )
        assert refused.value.retry_after_s == 1.0
        # Another account's place is nearer.
        served = len(bench.served)
        await bench.turn("b")
        assert len(bench.served) - served <= 3
        await asyncio.gather(*waiting)
        await bench.turn("a")

    run(work())


def test_the_time_to_wait_is_that_after_which_there_is_room():
    async def work():
        bench = Bench(planning_count_max=1, queue_wait_s_max=2.5)
        waiting = bench.start("a", count=450)
        await asyncio.sleep(20 * PLANNING_S)
        with pytest.raises(MeshError) as refused:
            await bench.turn("a")
        assert refused.value.retry_after_s == pytest.approx(1.8, abs=0.1)
        await asyncio.sleep(refused.value.retry_after_s + 5 * PLANNING_S)
        await bench.turn("a")
        await asyncio.gather(*waiting)

    run(work())


@pytest.mark.parametrize("limits", [{"waiting_count_max": 5}, {"account_waiting_count_max": 5}])
def test_the_queue_is_bounded_in_all_and_for_each_account(limits):
    async def work():
        bench = Bench(planning_count_max=1, **limits)
        tasks = bench.start("a", count=7)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each.reason for each in results if each] == ["OVERLOADED"]
        assert len(bench.served) == 6

    run(work())


def test_a_wait_that_turns_out_longer_than_it_seemed_ends():
    async def work():
        bench = Bench(planning_count_max=1, queue_wait_s_max=1.0)
        loop = asyncio.get_running_loop()
        async with bench.queue.entered("stuck", "free", "m"):
            with pytest.raises(MeshError) as refused:
                await bench.turn("a")
            assert (refused.value.reason, loop.time()) == ("OVERLOADED", 2.0)
        await bench.turn("a")

    run(work())


@pytest.mark.parametrize("seed", range(30))
def test_whoever_leaves_the_queue_leaves_no_trace(seed):
    """Callers that go at any moment, the one in which their place comes among them."""

    async def work():
        rng = random.Random(seed)
        bench = Bench(planning_count_max=3, queue_wait_s_max=0.2)
        tasks = []
        for _ in range(300):
            account, tier = rng.choice(["a", "b", "c"]), rng.choice(["free", "pro", "enterprise"])
            tasks.append(asyncio.ensure_future(bench.turn(account, tier, rng.choice("mn"))))
            if rng.random() < 0.1:
                bench.crowded ^= {"n"}
                bench.queue.advance()
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, PLANNING_S / 2, PLANNING_S]))
        bench.crowded.clear()
        bench.queue.advance()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = Counter(type(each).__name__ for each in results)
        assert set(kinds) <= {"NoneType", "CancelledError", "MeshError"}
        assert kinds["NoneType"] <= len(bench.served)
        assert bench.planning_count_seen == 3
        queue = bench.queue
        assert (queue._planning_count, queue._waiting) == (0, [])
        assert not queue._waiting_count
        assert not queue._next_tag
        assert not queue._waiting_models
        await asyncio.gather(*bench.start("a", count=9))

    run(work())
