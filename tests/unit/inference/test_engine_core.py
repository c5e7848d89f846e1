"""The whole of the engine but its model: answers do not depend on company, and nothing is lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.protocol import EngineRequest, FinishReason, Sampling
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.transcript import Limits, replay
from tests.support.engine_core import CoreUnderTest, Guesser, alone, request
from tests.support.toy_backend import ToyBackend

REPEAT = 60  # positions after which the toy runs in circles, so that guesses come true
BAD = 99  # a token that the toy never says
ROOMY = Limits(200, 64, 16)


def random_request(rng: random.Random, number: int, token_count_max: int) -> EngineRequest:
    prompt_count = rng.randint(1, token_count_max - 2)
    limit = rng.randint(1, min(token_count_max - prompt_count, 90))
    family = rng.randint(0, 3)  # prompts of one family begin alike
    prompt = [(family * 7 + i * i) % 40 for i in range(prompt_count)]
    sampling = Sampling(temperature=0)
    if rng.random() < 0.3:
        sampling = Sampling(temperature=0.9, top_p=0.9, seed=number)
    return request(
        number,
        prompt,
        limit,
        sampling=sampling,
        priority=rng.randint(-1, 1),
        cache_salt=rng.choice(["", "a", "b"]),
        group=rng.choice(["", f"turn{number}"]),
    )


def siblings(rng: random.Random, first: EngineRequest) -> list[EngineRequest]:
    """The other answers of the same turn; one may be continued from elsewhere."""
    found = [first]
    if first.group:
        for index in range(rng.randint(0, 3)):
            emitted = alone(first, REPEAT)[:5] if rng.random() < 0.3 else ()
            if len(emitted) >= first.stop.max_token_count:
                emitted = ()
            found.append(
                EngineRequest(
                    f"{first.request_id}.{index}",
                    first.prompt_token_ids,
                    first.stop,
                    emitted_token_ids=emitted,
                    sampling=first.sampling,
                    priority=first.priority,
                    cache_salt=first.cache_salt,
                    group=first.group,
                )
            )
    return found


def check_blocks(under_test: CoreUnderTest) -> None:
    """Every block is owned as often as it stands in a table, or free."""
    owners = [0] * under_test.limits.block_count
    for sequence in under_test.scheduler:
        for block in sequence.blocks:
            owners[block] += 1
    assert owners == under_test.blocks._references
    used = sum(1 for count in owners if count)
    assert under_test.blocks.free_count == under_test.limits.block_count - used


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_answers_depend_on_nobody_and_every_block_comes_back(seed) -> None:
    """Random arrivals, cancels, preemptions, forks and drafts, some thousand steps in all."""
    rng = random.Random(seed)
    block_count, budget = rng.randint(8, 40), rng.randint(16, 80)
    under_test = CoreUnderTest(
        Limits(block_count, budget, rng.randint(1, 10), rng.choice([0.05, 10.0])),
        ToyBackend(repeat=REPEAT),
        Guesser(rng) if rng.random() < 0.7 else None,
    )
    requests: dict[str, EngineRequest] = {}
    alive: list[Sequence] = []
    for number in range(14):
        for one in siblings(rng, random_request(rng, number, block_count * 16)):
            requests[one.request_id] = one
            alive.append(under_test.add(one))
        for _ in range(rng.randint(0, 15)):
            if under_test.core.busy:
                assert under_test.step()
                check_blocks(under_test)
        here = [sequence for sequence in alive if sequence in under_test.scheduler]
        if here and rng.random() < 0.3:
            under_test.cancel(rng.choice(here))
            check_blocks(under_test)
    under_test.run()
    assert max(under_test.backend.row_counts) <= max(budget, under_test.limits.running_count_max)
    assert under_test.blocks.free_count == block_count
    assert under_test.ends.keys() == requests.keys()
    for name, one in requests.items():
        expected = alone(one, REPEAT)
        if under_test.ends[name].finish.reason is FinishReason.CANCELLED:
            expected = expected[: len(under_test.answers[name])]
        assert under_test.answers[name] == expected
    assert list(replay(under_test.lines)) == under_test.lines


def test_the_oracle_sees_a_block_that_is_given_away_too_early() -> None:
    """The toy's answers are no luck: a fault of the bookkeeping changes them."""
    one, other = request(1, range(30), 20), request(2, range(5, 35), 20)
    under_test = CoreUnderTest(ROOMY)
    first = under_test.add(one)
    under_test.step()
    under_test.blocks._references[first.blocks[0]] = 0
    under_test.blocks._plain.append(first.blocks[0])
    under_test.add(other)
    for _ in range(10):
        under_test.step()
    assert under_test.answers["1"] != alone(one)[:11]


def test_answers_of_a_turn_share_the_prompts_blocks_without_a_salt() -> None:
    under_test = CoreUnderTest(ROOMY)
    sequences = [
        under_test.add(request(n, range(40), 30, group="turn", sampling=Sampling(seed=n)))
        for n in range(4)
    ]
    under_test.step()
    assert [len(sequence.blocks) for sequence in sequences] == [3, 0, 0, 0]  # the others wait
    under_test.step()
    assert under_test.backend.row_counts == [40, 4]  # each computes the prompt's last token only
    tables = [list(sequence.blocks) for sequence in sequences]
    assert len({tuple(table[:2]) for table in tables}) == 1  # the full blocks are shared
    assert len({table[2] for table in tables}) == 4  # the one that is written is not
    assert under_test.blocks.free_count == 200 - 2 - 4
    assert [sequence.cached_count for sequence in sequences] == [0, 0, 0, 0]
    assert under_test.metrics.copies == 3
    under_test.run()
    assert under_test.blocks.free_count == 200
    assert len({tuple(answer) for answer in under_test.answers.values()}) == 4


def test_another_turn_or_another_prompt_shares_nothing() -> None:
    under_test = CoreUnderTest(ROOMY)
    for number, (group, start) in enumerate([("a", 0), ("b", 0), ("a", 1), ("", 0), ("", 0)]):
        under_test.add(request(number, range(start, start + 40), 5, group=group))
    under_test.run()
    assert under_test.metrics.copies == 0
    assert sum(under_test.backend.row_counts) >= 5 * 40


def test_when_the_first_answer_of_a_turn_goes_another_computes_the_prompt() -> None:
    under_test = CoreUnderTest(Limits(200, 16, 8))
    first, second = (under_test.add(request(n, range(40), 5, group="turn")) for n in range(2))
    under_test.step()
    assert not second.blocks
    under_test.cancel(first)
    under_test.run()
    assert under_test.answers["1"] == alone(second.request)


def test_drafts_come_true_and_are_counted() -> None:
    guesser = Guesser()
    under_test = CoreUnderTest(ROOMY, ToyBackend(repeat=4), guesser)
    one = request(1, range(10), 100)
    sequence = under_test.add(one)
    under_test.run()
    assert under_test.answers["1"] == alone(one, repeat=4)
    assert len(under_test.backend.row_counts) < 60  # of 100 without
    assert guesser.forgotten == [sequence]
    drafted, accepted = (sum(column) for column in zip(*guesser.reports, strict=True))
    steps = len(under_test.backend.row_counts)
    # The prompt's step gives one token; the last answer may stop within accepted drafts.
    assert steps + accepted >= 100
    assert drafted >= accepted > 0


def test_drafts_take_no_block_that_others_need_and_no_token_over_the_budget() -> None:
    eager = Guesser()
    eager.propose = lambda asks: [[1] * most for _, most in asks]
    under_test = CoreUnderTest(Limits(6, 16, 4), ToyBackend(), eager)
    for number in range(3):
        under_test.add(request(number, range(12), 10))
    while under_test.core.busy:
        under_test.step()
    assert under_test.scheduler.preempted_total == 0
    assert max(under_test.backend.row_counts) <= 16
    assert under_test.answers == {str(n): alone(request(n, range(12), 10)) for n in range(3)}


def test_nan_fails_one_request_and_its_blocks_spoil_nobody() -> None:
    under_test = CoreUnderTest(Limits(12, 64, 8), ToyBackend(poison=BAD))
    good = request("good", range(30), 20)
    under_test.add(request("bad", [1] * 20 + [BAD], 20))
    under_test.add(good)
    under_test.run()
    assert "NaN" in str(under_test.ends["bad"].error)
    assert under_test.answers["good"] == alone(good)
    assert under_test.blocks.free_count == 12
    assert list(replay(under_test.lines)) == under_test.lines


def test_what_a_failed_request_wrote_is_in_no_cache() -> None:
    under_test = CoreUnderTest(Limits(40, 64, 8), ToyBackend(poison=BAD))
    under_test.add(request("bad", [*range(32), *[BAD] * 16], 20, cache_salt="a"))
    under_test.run()
    assert under_test.core.load().cached_prefix_hashes == ()


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on() -> None:
    under_test = CoreUnderTest(ROOMY, ToyBackend(failing_token=BAD))
    good = request("good", range(30), 20)
    under_test.add(request("bad", [BAD], 20))
    under_test.step()
    assert "the toy fails" in str(under_test.ends["bad"].error)
    under_test.add(good)
    under_test.run()
    assert under_test.answers["good"] == alone(good)
    assert under_test.blocks.free_count == 200
    assert list(replay(under_test.lines)) == under_test.lines


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cancel_frees_the_blocks_at_once(steps) -> None:
    under_test = CoreUnderTest(Limits(40, 16, 4))
    sequence = under_test.add(request(1, range(40), 30))
    for _ in range(steps):
        under_test.step()
    under_test.cancel(sequence)
    assert under_test.blocks.free_count == 40
    assert not under_test.core.busy
    assert under_test.core.cancel(sequence) is None


def test_what_is_measured() -> None:
    under_test = CoreUnderTest(Limits(40, 16, 1))
    under_test.add(request(1, range(40), 10, cache_salt="a"))
    under_test.add(request(2, range(40), 10, cache_salt="a"))
    under_test.run()
    families = {family.name: family for family in under_test.metrics.collect()}

    def value(name: str, suffix: str = "") -> float:
        samples = families[name].samples
        return sum(s.value for s in samples if s.name == name + suffix)

    assert value("vllm:prompt_tokens", "_total") == 80
    assert value("vllm:generation_tokens", "_total") == 20
    assert value("vllm:prefix_cache_queries", "_total") == 80
    assert value("vllm:prefix_cache_hits", "_total") == 32
    assert value("vllm:request_success", "_total") == 2
    assert value("vllm:num_requests_running") == 0
    # 40 tokens in steps of 16 are 3 steps; 9 more tokens: 12 steps for the first, then 10.
    assert value("vllm:iteration_tokens_total", "_count") == 22
    assert value("vllm:iteration_tokens_total", "_sum") == 40 + 9 + 8 + 9
    assert value("vllm:inter_token_latency_seconds", "_count") == 18
    assert value("vllm:request_queue_time_seconds", "_sum") == pytest.approx(0.01 + 0.13)
    assert value("vllm:request_prefill_time_seconds", "_sum") == pytest.approx(0.02 + 0.0)
    assert value("vllm:time_to_first_token_seconds", "_count") == 2
