"""Block manager and scheduler under random arrivals, cancels and preemptions: nothing leaks."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.answer import Answer
from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineRequest, StopRule
from inference_svc.engine.torch.block_manager import BlockManager, prefix_hashes
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
    return Sequence(request, Answer(rule, VOCABULARY), number)


def step(scheduler: Scheduler, budget: int) -> list:
    """One engine step with a model that always says 1."""
    chunks = scheduler.plan()
    assert sum(c.end - c.begin for c in chunks) <= budget
    assert len({c.sequence for c in chunks}) == len(chunks)
    owned = [b for s in scheduler._running for b in s.blocks[s.computed_count // 16 :]]
    assert len(set(owned)) == len(owned)  # a block that is written has one owner
    for chunk in chunks:
        assert chunk.begin == chunk.sequence.computed_count < chunk.end
        assert len(chunk.sequence.blocks) * BLOCK_TOKEN_COUNT >= chunk.end
        scheduler.commit(chunk)
        if chunk.samples:
            chunk.sequence.token_ids.append(1)
            chunk.sequence.answer.push(1)
            if chunk.sequence.answer.finish:
                scheduler.remove(chunk.sequence)
    return chunks


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(8, 40), budget=st.integers(16, 80))
def test_random_arrivals_cancels_and_preemptions_leave_every_block_free(
    seed, blocks, budget
) -> None:
    rng = random.Random(seed)
    manager = BlockManager(blocks)
    scheduler = Scheduler(manager, step_token_count_max=budget, running_count_max=8)
    alive: list[Sequence] = []
    finished = 0
    for number in range(40):
        total = rng.randint(2, blocks * BLOCK_TOKEN_COUNT)
        prompt = rng.randint(1, total - 1)
        priority, salt = rng.randint(-1, 1), rng.choice(["", "a", "b"])
        new = sequence(number, prompt, total - prompt, priority=priority, salt=salt)
        alive.append(new)
        scheduler.add(new)
        for _ in range(rng.randint(0, 20)):
            step(scheduler, budget)
        running = [s for s in alive if s in scheduler]
        if running and rng.random() < 0.3:
            scheduler.remove(rng.choice(running))
    for _ in range(200_000):
        if not scheduler.busy:
            break
        assert step(scheduler, budget), "busy, but nothing to compute"
    assert not scheduler.busy
    assert manager.free_count == blocks
    finished = [s for s in alive if s.answer.finish]
    assert all(s.answer.token_count == s.request.stop.max_token_count for s in finished)


def test_the_youngest_is_preempted_and_goes_on_first() -> None:
    manager = BlockManager(4)
    scheduler = Scheduler(manager, step_token_count_max=64, running_count_max=8)
    old, young = sequence(0, 16, 40), sequence(1, 16, 40)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preempted_total:
        step(scheduler, 64)
    assert young.blocks == []
    assert old in scheduler._running
    scheduler.add(sequence(2, 1, 1))
    assert scheduler._waiting[0][1] is young
    while scheduler.busy:
        step(scheduler, 64)
    assert young.answer.token_count == old.answer.token_count == 40


def test_decodes_go_before_a_long_prompt_and_share_the_step() -> None:
    scheduler = Scheduler(BlockManager(100), step_token_count_max=32, running_count_max=8)
    short, long = sequence(0, 4, 50), sequence(1, 200, 4)
    scheduler.add(short)
    step(scheduler, 32)
    scheduler.add(long)
    sizes = [[c.end - c.begin for c in step(scheduler, 32)] for _ in range(3)]
    assert sizes == [[1, 31], [1, 31], [1, 31]]


def test_higher_priority_is_admitted_first() -> None:
    scheduler = Scheduler(BlockManager(100), step_token_count_max=16, running_count_max=1)
    scheduler.add(sequence(0, 4, 2))
    scheduler.add(sequence(1, 4, 2, priority=1))
    assert [c.sequence.arrival for c in scheduler.plan()] == [1]


def test_prefix_is_shared_within_a_salt_and_never_across() -> None:
    manager = BlockManager(100)
    scheduler = Scheduler(manager, step_token_count_max=256, running_count_max=8)
    cached = {}
    for number, salt in ((0, "a"), (3, "a"), (6, "b"), (9, "")):
        one = sequence(number, 40, 1, salt=salt)
        scheduler.add(one)
        step(scheduler, 256)
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
