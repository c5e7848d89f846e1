"""Whose turn it is: priorities, waiting, tenants; and when a first token can be expected."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.protocol import (
    DeadlineUnreachableError,
    EngineLoad,
    EngineRequest,
    StopRule,
)
from inference_svc.engine.torch.forecast import Rates
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.streams import Streams
from inference_svc.engine.torch.transcript import Limits
from inference_svc.engine.torch.waiting import ServiceCounters, WaitingQueue
from tests.support.engine_core import CoreUnderTest, request

BLOCK_COUNT = 40
PROMPT_MAX, ANSWER_MAX = 60, 20
# The bound of the VTC paper: twice the larger of a prompt and of all answers that run, weighted.
RUNNING_MAX = 4
VTC_BOUND = 2 * max(PROMPT_MAX, 2 * RUNNING_MAX * (PROMPT_MAX + ANSWER_MAX))


def busy_core(wait_s_max: float, running: int = RUNNING_MAX) -> CoreUnderTest:
    return CoreUnderTest(Limits(BLOCK_COUNT, 64, running, wait_s_max))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_tenants_that_always_wait_are_served_alike(seed) -> None:
    """One sends much and long, one little and short; both always have more than there is room."""
    rng = random.Random(seed)
    under_test = busy_core(0.5)
    shapes = {"much": (20, PROMPT_MAX, ANSWER_MAX), "little": (6, 8, 6)}
    waiting = dict.fromkeys(shapes, 0)
    served = dict.fromkeys(shapes, 0)
    owner: dict[str, tuple[str, int]] = {}
    for _ in range(400):
        for tenant, (depth, prompt_max, answer_max) in shapes.items():
            waiting[tenant] = sum(s.tenant == tenant for s in under_test.scheduler._waiting)
            for _ in range(depth - waiting[tenant]):
                name = str(len(owner))
                prompt_count = rng.randint(prompt_max // 2, prompt_max)
                prompt = [rng.randrange(40) for _ in range(prompt_count)]
                limit = rng.randint(answer_max // 2, answer_max)
                owner[name] = (tenant, prompt_count)
                under_test.add(request(name, prompt, limit, cache_salt=tenant))
        begun = {name for name, answer in under_test.answers.items() if answer}
        for event in under_test.step():
            name = event.sequence.request.request_id
            tenant, prompt_count = owner[name]
            served[tenant] += 2 * len(event.token_ids)
            if event.token_ids and name not in begun:
                served[tenant] += prompt_count - event.cached_count
        assert abs(served["much"] - served["little"]) <= VTC_BOUND
    assert min(served.values()) > VTC_BOUND


def test_without_the_counters_the_louder_tenant_gets_nearly_all() -> None:
    """What the bound is worth: by arrival alone, who sends six times as much gets as much more."""
    under_test = busy_core(0.5)
    under_test.scheduler._waiting.counters.charge = lambda tenant, cost: None
    served = {"much": 0, "little": 0}
    for number in range(300):
        for tenant, count in (("much", 6), ("little", 1)):
            for index in range(count):
                name = f"{tenant}{number}.{index}"
                under_test.add(request(name, range(40), 10, cache_salt=tenant))
        for event in under_test.step():
            served[event.sequence.tenant] += len(event.token_ids)
    assert served["much"] > 4 * served["little"]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), priority=st.sampled_from([-1, 0]))
def test_a_flood_of_higher_priority_delays_at_most_so_long(seed, priority) -> None:
    rng = random.Random(seed)
    wait_s_max = rng.choice([0.2, 0.5, 1.0])
    under_test = busy_core(wait_s_max, running=2)
    low = None
    for number in range(400):
        for _ in range(2):  # more than two places can serve
            name, salt = f"{number}.{rng.random()}", rng.choice(["", "a", "b", "c"])
            under_test.add(request(name, range(20), 6, priority=1, cache_salt=salt))
        under_test.step()
        if number == 0:  # the places are taken
            low = under_test.add(request("low", range(20), 6, priority=priority, cache_salt="d"))
        if low and low.admitted_s is not None:
            break
    waited_s = low.admitted_s - low.arrived_s
    # The second free place is its, and each is free after at most 7 steps of 10 ms.
    assert wait_s_max <= waited_s <= wait_s_max + 0.14


def test_the_higher_priority_keeps_every_other_place() -> None:
    queue = WaitingQueue(1.0)
    for number in range(8):
        queue.push(waiting(number, "a", priority=number % 2))
    assert [admitted(queue, 1.0) for _ in range(8)] == [0, 1, 2, 3, 4, 5, 6, 7]
    for number in range(8):
        queue.push(waiting(number, "a", priority=number % 2))
    assert [admitted(queue, 0.9) for _ in range(8)] == [1, 3, 5, 7, 0, 2, 4, 6]


def test_classes_that_waited_take_turns_whoever_waited_longest() -> None:
    """A debtor that waits for ever in one class takes no turn from another class."""
    queue = WaitingQueue(1.0)
    queue.push(waiting(0, "debtor", priority=0))
    for number in range(1, 13):
        priority = (1, 0, -1)[number % 3]
        queue.push(waiting(number, "b", priority=priority, arrived_s=1.0))
    queue.counters.charge("debtor", 1000)
    order = [admitted(queue, 3.0) for _ in range(8)]
    assert [(1, 0, -1)[number % 3] for number in order] == [0, 1, -1, 1, 0, 1, -1, 1]
    assert 0 not in order


def admitted(queue: WaitingQueue, now_s: float) -> int:
    first = queue.first(now_s, lambda _: True)
    queue.admit(first)
    return first.arrival


def test_a_free_place_goes_to_the_tenant_that_was_served_least() -> None:
    queue = WaitingQueue(10.0)
    sequences = [waiting(n, salt) for n, salt in enumerate("aaab")]
    for sequence in sequences:
        queue.push(sequence)
    order = []
    for _ in sequences:
        order.append(admitted(queue, 0.0))
        queue.counters.charge(sequences[order[-1]].tenant, 100)
    assert order == [0, 3, 1, 2]


def waiting(number: int, salt: str = "", priority: int = 0, arrived_s: float = 0.0) -> Sequence:
    one = EngineRequest(str(number), [1], StopRule(1), cache_salt=salt, priority=priority)
    return Sequence(one, None, number, arrived_s)


def test_who_was_away_has_no_credit_and_keeps_its_debt() -> None:
    counters = ServiceCounters()
    counters.arrives("old")
    counters.charge("old", 500)
    counters.arrives("new")
    assert counters["new"] == 500
    counters.charge("new", 1000)
    counters.waits_no_more("new")
    counters.leaves("new")
    counters.arrives("new")
    assert counters["new"] == 1500


def test_tenants_that_are_gone_are_forgotten_in_time() -> None:
    counters = ServiceCounters(idle_count_max=2)
    for tenant in ("a", "b", "c", 7):
        counters.arrives(tenant)
        counters.waits_no_more(tenant)
        counters.leaves(tenant)
    assert counters._served.keys() == {"b", "c"}


def test_a_request_is_ready_before_another_that_is_not() -> None:
    queue = WaitingQueue(10.0)
    for number in range(3):
        queue.push(waiting(number, "a"))
    assert queue.first(0.0, lambda s: s.arrival > 0).arrival == 1
    assert queue.first(0.0, lambda s: False) is None
    assert (len(queue), len(list(queue))) == (3, 3)


def test_the_forecast_follows_what_was_measured() -> None:
    rates = Rates(512)
    ahead = {"ahead_token_count": 5000, "ahead_count": 0, "running_count": 4}
    assert rates.first_token_s(1000, **ahead) == 0.0  # nothing is known: nobody is refused
    rates.step(512, 0.1)
    for _ in range(100):
        rates.step(1, 0.002)  # decoding is slower a token, and says nothing of prefill
    assert rates.first_token_s(1000, **ahead) == pytest.approx(6000 / 5120)
    rates.ended(2.0)
    ahead["ahead_count"] = 8
    assert rates.first_token_s(1000, **ahead) == pytest.approx(8 * 2.0 / 4 + 1000 / 5120)
    for _ in range(100):
        rates.step(512, 0.2)
        rates.admitted(100, 75)
    ahead["ahead_count"] = 0
    assert rates.first_token_s(1000, **ahead) == pytest.approx(6000 / 2560 / 4, rel=0.01)


def asking(number: int, time_left_s: float | None, priority: int = 0) -> EngineRequest:
    prompt = range(1, 1001)
    return EngineRequest(
        str(number), prompt, StopRule(9), time_left_s=time_left_s, priority=priority
    )


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    streams, rates = Streams(10, 4), Rates(512)
    streams.load = EngineLoad(0, 2, 10, 1000, 900)
    rates.step(500, 0.5)
    streams.check(asking(1, 1.1), rates)
    streams.check(asking(1, None), rates)
    with pytest.raises(DeadlineUnreachableError, match=r"1\.0 s away .* only 0\.9 s") as caught:
        streams.check(asking(1, 0.9), rates)
    assert caught.value.first_token_s == pytest.approx(1.0)
    streams.open(Sequence(asking(2, None), None, 2), lambda: None)
    with pytest.raises(DeadlineUnreachableError):  # one is ahead
        streams.check(asking(3, 1.1), rates)
    streams.check(asking(3, 1.1, priority=1), rates)  # not of this one


def test_a_deadline_counts_the_wait_for_a_place() -> None:
    streams, rates = Streams(10, 4), Rates(512)
    streams.load = EngineLoad(1, 4, 10, 1000, 900)
    rates.step(500, 0.5)
    rates.ended(8.0)
    streams.open(Sequence(asking(2, None), None, 2), lambda: None)
    with pytest.raises(DeadlineUnreachableError) as caught:
        streams.check(asking(3, 4.5), rates)
    assert caught.value.first_token_s == pytest.approx(2 * 8.0 / 4 + 1.0)
