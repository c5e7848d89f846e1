"""Block manager and scheduler: who gets which block, who runs, who gives way."""

import pytest

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import EngineRequest, StopRule
from inference_svc.engine.torch.block_manager import BlockManager, prefix_hashes
from inference_svc.engine.torch.plan import Plan
from inference_svc.engine.torch.scheduler import Scheduler
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.threads import cpu_quota
from inference_svc.engine.vocabulary import Vocabulary

VOCABULARY = Vocabulary([b"x"] * 100, frozenset(), "")


def sequence(
    number: int, prompt: int, limit: int, *, priority: int = 0, salt: str = ""
) -> Sequence:
    rule = StopRule(limit)
    ids = [(number % 3) + i % 7 for i in range(prompt)]  # prompts that share prefixes
    request = EngineRequest(str(number), ids, rule, priority=priority, cache_salt=salt)
    return Sequence(request, AnswerState(rule, VOCABULARY), number)


def step(scheduler: Scheduler, now_s: float = 0.0) -> Plan:
    """One engine step with a model that always says 1."""
    plan = scheduler.plan(now_s)
    for chunk in plan.chunks.values():
        samples = chunk.samples
        scheduler.record(chunk, [1] if samples else [])
        if samples:
            chunk.sequence.answer.push(1)
            if chunk.sequence.answer.finish:
                scheduler.remove(chunk.sequence)
    return plan


def scheduler_of(blocks: int, budget: int = 64, running: int = 8, **more: float) -> Scheduler:
    return Scheduler(
        BlockManager(blocks), step_token_count_max=budget, running_count_max=running, **more
    )


def test_the_youngest_is_preempted_and_goes_on_first() -> None:
    scheduler = scheduler_of(4)
    old, young = sequence(0, 16, 40), sequence(1, 16, 40)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preempted_total:
        plan = step(scheduler)
    assert plan.preempted == [young]
    assert not young.blocks
    scheduler.add(sequence(2, 1, 1))
    admitted = []
    while scheduler.busy:
        admitted += step(scheduler).admitted
    assert admitted[0] is young
    assert young.answer.token_count == old.answer.token_count == 40


def test_the_lower_priority_gives_way_unless_it_has_waited_long() -> None:
    for now_s, expected in ((1.0, 0), (11.0, 1)):
        scheduler = scheduler_of(4)
        both = [sequence(0, 16, 40, priority=-1), sequence(1, 16, 40)]
        for one in both:
            scheduler.add(one)
        while not scheduler.preempted_total:
            plan = step(scheduler, now_s)
        assert plan.preempted == [both[expected]]


def test_decodes_go_before_a_long_prompt_and_share_the_step() -> None:
    scheduler = scheduler_of(100, 32)
    short, long = sequence(0, 4, 50), sequence(1, 200, 4)
    scheduler.add(short)
    step(scheduler)
    scheduler.add(long)
    sizes = [[c.end - c.begin for c in step(scheduler).chunks.values()] for _ in range(3)]
    assert sizes == [[1, 31], [1, 31], [1, 31]]


def test_higher_priority_is_admitted_first() -> None:
    scheduler = scheduler_of(100, 16, 1)
    scheduler.add(sequence(0, 4, 2))
    scheduler.add(sequence(1, 4, 2, priority=1))
    assert [one.arrival for one in scheduler.plan(0.0).admitted] == [1]


def test_a_newcomer_leaves_room_for_those_that_run_to_grow() -> None:
    scheduler = scheduler_of(6)
    for number in range(2):
        scheduler.add(sequence(number, 16, 8))
    step(scheduler)  # a block each
    scheduler.add(sequence(2, 40, 1))  # 3 blocks, and 2 must stay free
    assert not step(scheduler).admitted
    while scheduler.busy:
        step(scheduler)
    assert scheduler.preempted_total == 0


def test_prefix_is_shared_within_a_salt_and_never_across() -> None:
    manager = BlockManager(100)
    scheduler = Scheduler(manager, step_token_count_max=256, running_count_max=8)
    cached = {}
    for number, salt in ((0, "a"), (3, "a"), (6, "b"), (9, "")):
        one = sequence(number, 40, 1, salt=salt)
        scheduler.add(one)
        step(scheduler)
        cached[number] = one.cached_count
    assert cached == {0: 0, 3: 32, 6: 0, 9: 0}
    assert len(manager.recent_prefixes()) == 4


def test_least_recently_used_prefix_is_evicted_end_first() -> None:
    manager = BlockManager(3)
    hashes = prefix_hashes(list(range(48)), "a")
    blocks = manager.allocate(3)
    for block, digest in zip(blocks, hashes, strict=True):
        manager.register(block, digest)
    manager.release(blocks)
    assert (manager.match(hashes), manager.free_count) == (3, 3)
    manager.allocate(1)
    assert manager.match(hashes) == 2  # the last block of the prefix went
    assert manager.evicted_total == 1


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    manager = BlockManager(2)
    blocks = manager.allocate(1)
    manager.share(blocks)
    manager.release(blocks)
    assert (manager.free_count, manager.owned_alone(blocks)) == (1, blocks)
    manager.release(blocks)
    assert manager.free_count == 2
    with pytest.raises(AssertionError, match="cannot be shared"):
        manager.share(blocks)


def test_the_report_of_prefixes_follows_use_and_eviction() -> None:
    manager = BlockManager(2)
    old, new = prefix_hashes(list(range(32)), "a")
    blocks = manager.allocate(2)
    for block, digest in zip(blocks, (old, new), strict=True):
        manager.register(block, digest)
    manager.release(blocks)
    expected = [int.from_bytes(digest[:8], "little") for digest in (new, old)]
    assert list(manager.recent_prefixes()) == expected
    manager.release(manager.adopt([old]))
    assert list(manager.recent_prefixes()) == expected[::-1]
    manager.allocate(1)
    assert list(manager.recent_prefixes()) == expected[1:]


def test_releasing_twice_is_an_error() -> None:
    manager = BlockManager(2)
    blocks = manager.allocate(1)
    manager.release(blocks)
    with pytest.raises(AssertionError):
        manager.release(blocks)


def test_hash_depends_on_salt_and_on_all_tokens_before() -> None:
    ids = list(range(64))
    assert prefix_hashes(ids, "a")[:3] == prefix_hashes(ids[:48], "a")
    assert prefix_hashes(ids, "a")[3] != prefix_hashes([9, *ids[1:]], "a")[3]
    assert not set(prefix_hashes(ids, "a")) & set(prefix_hashes(ids, "b"))


@pytest.mark.parametrize(
    ("text", "affinity", "expected"),
    [
        ("max 100000", 8, 8),
        ("200000 100000", 8, 2),
        ("50000 100000", 8, 1),
        (None, 4, 4),
        ("-1 100000", 4, 4),
        ("900000 100000", 4, 4),
    ],
)
def test_cpu_quota(text, affinity, expected) -> None:
    assert cpu_quota(text, affinity) == expected
