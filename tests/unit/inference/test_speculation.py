"""Speculation: guesses are checked, never believed; who guesses badly stops."""

import itertools
import random
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.protocol import EngineError, FormatKind, ResponseFormat, Sampling
from inference_svc.engine.torch.constrained import GrammarCompiler
from inference_svc.engine.torch.draft_model import PREFILL_TOKEN_COUNT_MAX, DraftModel, _Shadow
from inference_svc.engine.torch.lookup import GRAM_SIZES, PromptLookup, SuffixIndex
from inference_svc.engine.torch.sampler import SamplingRequest, sample_batch
from inference_svc.engine.torch.speculation import (
    REST_TOKEN_COUNT_MAX,
    REST_TOKEN_COUNT_MIN,
    Pace,
    Speculator,
    open_drafter,
)
from inference_svc.engine.torch.transcript import Limits
from tests.support.engine_core import CoreUnderTest, request
from tests.support.toy_backend import ToyBackend
from tests.unit.inference.sampling import sequence
from tests.unit.inference.test_sampler import chi_square

ROOMY = Limits(400, 200, 16)


class Scripted:
    """A source that says what its script has."""

    def __init__(self, *tokens: int, fails: bool = False) -> None:
        self.tokens, self.fails = tokens, fails
        self.asked: list[list[int]] = []

    def guess(self, asks):
        self.asked.append([count for _, count in asks])
        if self.fails:
            raise RuntimeError("no guess")
        return [list(self.tokens[:count]) for _, count in asks]

    def forget(self, sequence) -> None:
        pass

    def close(self) -> None:
        pass


class OtherMind(ToyBackend):
    """A model that mostly thinks as the toy does: every third context it does not."""

    def _logits(self, visible):
        logits = super()._logits(visible)
        return logits if visible.sum() % 3 else np.roll(logits, 5)


# ---- prompt lookup


def searched(token_ids: list[int], count: int) -> list[int]:
    """By the definition: the last earlier place where the run at the end stood."""
    for size in GRAM_SIZES:
        run = token_ids[len(token_ids) - size :]
        for end in range(len(token_ids) - 1, size - 1, -1):
            if token_ids[end - size : end] == run:
                period = len(token_ids) - end
                return [token_ids[end + index % period] for index in range(count)]
    return []


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    count=st.integers(1, 8),
)
def test_the_index_finds_what_a_search_finds(tokens, steps, count) -> None:
    index, length = SuffixIndex(0), 0
    for step in steps:
        length = min(length + step, len(tokens))
        index.extend(array("i", tokens[:length]))
        assert index.follow(array("i", tokens[:length]), count) == searched(tokens[:length], count)


def test_of_a_long_prompt_the_end_is_indexed() -> None:
    prompt = list(range(20_000))
    index = SuffixIndex(len(prompt))
    index.extend(prompt)
    assert sum(map(len, index._after)) < 20_000
    assert index.follow([*prompt, 15_000, 15_001], 2) == [15_002, 15_003]
    assert index.follow([*prompt, 5, 6], 2) == []


# ---- pace


def test_the_length_follows_what_stands() -> None:
    pace = Pace(8)
    lengths = []
    for accepted in (3, 6, 8, 8, 2, 0, 1):
        drafted = pace.room(0)
        pace.report(0, drafted, min(accepted, drafted))
        lengths.append(pace.length)
    assert lengths == [6, 8, 8, 8, 3, 1, 2]


def test_bad_guesses_stop_for_longer_and_longer_and_are_tried_again() -> None:
    pace, position, rests, tried = Pace(4), 0, [], 0
    for _ in range(400):
        while not pace.room(position):
            position += 1
            rests.append(position)
        pace.report(position, pace.room(position), 0)
        position, tried = position + 1, tried + 1
    runs = [len(list(run)) for _, run in itertools.groupby(enumerate(rests), lambda p: p[1] - p[0])]
    assert runs[0] >= REST_TOKEN_COUNT_MIN - 1
    assert runs == sorted(runs)
    assert max(runs) <= REST_TOKEN_COUNT_MAX
    assert tried < position / 20  # almost nothing is wasted
    for _ in range(10):  # the text turns into one that can be guessed
        position = max(position, pace._rests_until)
        pace.report(position, pace.room(position), pace.room(position))
    assert pace.length == 4
    assert pace._rest == REST_TOKEN_COUNT_MIN


# ---- the drafter


def test_nobody_drafts_in_a_large_batch() -> None:
    source = Scripted(1, 2, 3)
    speculator = Speculator(source, length_max=4, batch_max=2)
    asks = [(sequence(), 9) for _ in range(3)]
    assert speculator.propose(asks) == [[], [], []]
    assert source.asked == []
    assert speculator.propose([*asks[:1], (sequence(), 0)]) == [[1, 2, 3], []]
    assert source.asked == [[3]]


def test_a_source_that_fails_is_left_alone() -> None:
    source = Scripted(1, fails=True)
    speculator = Speculator(source, length_max=4, batch_max=2)
    of = sequence()
    for _ in range(3):
        assert speculator.propose([(of, 4)]) == [[]]
    assert len(source.asked) == 1


def test_a_sequence_rests_alone() -> None:
    speculator = Speculator(Scripted(1, 2, 3, 4), length_max=4, batch_max=2)
    bad, good = sequence(), sequence()
    for _ in range(12):
        for of, accepted in ((bad, 0), (good, 1)):
            draft = speculator.propose([(of, 9)])[0]
            if draft:
                speculator.report(of, len(draft), min(accepted, len(draft)))
            of.token_ids.append(1)
    assert speculator.propose([(bad, 9), (good, 9)])[0] == []
    assert speculator.propose([(bad, 9), (good, 9)])[1] != []
    speculator.forget(bad)
    assert bad.speculation is None


def test_a_grammar_drafts_what_it_forces_and_cuts_what_it_forbids(model) -> None:
    compiler = GrammarCompiler(model)
    of = sequence((5,))
    wanted = ResponseFormat(FormatKind.CHOICE, choices=("xyz river", "xyz mill"))
    of.constraint = compiler.compile(wanted).constraint()
    speculator = Speculator(Scripted(5, 6), length_max=2, batch_max=2)
    forced = speculator.propose([(of, 99)])[0]
    assert b"xyz ".startswith(model.vocabulary.join(forced))
    assert len(forced) >= 2
    speculator.report(of, len(forced), 0)
    assert speculator.propose([(of, 1)])[0] == forced[:1]  # what is forced never rests
    for token_id in forced:
        of.constraint.accept(token_id)
    assert speculator.propose([(of, 9)])[0] == []  # 5 and 6 fit neither "river" nor "mill"


# ---- in the engine


def finished(under_test: CoreUnderTest, requests) -> dict[str, list[int]]:
    for one in requests:
        under_test.add(one)
    under_test.run()
    if under_test.guesser:
        under_test.guesser.close()
    return under_test.answers


def requests_of(seed: int, greedy: bool):
    rng = random.Random(seed)
    for name in range(5):
        prompt = [rng.randrange(40) for _ in range(rng.randint(1, 50))]
        sampling = Sampling(
            temperature=0.0 if greedy else 0.6,
            seed=rng.randrange(9),
            top_k=rng.choice([0, 3]),
            presence_penalty=rng.choice([0.0, 0.5]),
        )
        yield request(name, prompt, rng.randint(1, 70), sampling=sampling)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), greedy=st.booleans(), kind=st.sampled_from(["lookup", "draft"]))
def test_answers_are_the_same_with_speculation(seed, greedy, kind) -> None:
    plain = finished(CoreUnderTest(ROOMY, ToyBackend(repeat=40)), requests_of(seed, greedy))
    source = PromptLookup()
    if kind == "draft":
        small = OtherMind(repeat=40)
        small.allocate(30)
        source = DraftModel(small, 500)
    drafter = Speculator(source, length_max=6, batch_max=8)
    under_test = CoreUnderTest(ROOMY, ToyBackend(repeat=40), drafter)
    assert finished(under_test, requests_of(seed, greedy)) == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_of_the_same_mind_saves_steps(temperature) -> None:
    """Sampled drafts are drawn with the same noise: all of them stand."""
    small = ToyBackend()
    small.allocate(20)
    drafter = Speculator(DraftModel(small, 500), length_max=4, batch_max=8)
    one = request(1, range(30), 60, sampling=Sampling(temperature=temperature, seed=4))
    under_test = CoreUnderTest(ROOMY, ToyBackend(), drafter)
    answers = finished(under_test, [one])
    assert len(answers["1"]) == 60
    assert len(under_test.backend.row_counts) <= 1 + 60 / 4
    assert max(small.row_counts[1:]) <= 2  # it computes only what it had not guessed itself
    plain = CoreUnderTest(ROOMY, ToyBackend())
    assert finished(plain, [one]) == answers
    assert len(plain.backend.row_counts) == 60


def test_a_draft_model_reads_a_long_prompt_in_pieces_and_gives_its_blocks_back() -> None:
    small = ToyBackend()
    small.allocate(64)
    drafts = DraftModel(small, 900)
    of = sequence([at % 40 for at in range(700)])
    assert [drafts.guess([(of, 2)]) for _ in range(2)] == [[[]], [[]]]
    assert len(drafts.guess([(of, 2)])[0]) == 2
    assert max(small.row_counts) == PREFILL_TOKEN_COUNT_MAX
    # Another one of this size has no room beside it: the one that is not asked for makes way.
    other = sequence([at % 39 for at in range(700)])
    while not drafts.guess([(other, 2)])[0]:
        pass
    assert drafts._blocks.free_count == 64 - 44
    assert drafts.guess([(other, 300)]) == [[]]  # beyond its context
    drafts.forget(other)
    drafts.forget(of)
    assert drafts._blocks.free_count == 64


def test_a_draft_model_with_nan_guesses_nothing_and_forgets() -> None:
    small = ToyBackend(poison=39)
    small.allocate(8)
    drafts = DraftModel(small, 100)
    sick, well = sequence([39] * 20), sequence([5] * 20)
    guesses = drafts.guess([(sick, 2), (well, 2)])
    assert guesses[0] == []
    assert len(guesses[1]) == 2
    assert drafts._blocks.free_count == 8 - 2


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_shadow_keeps_only_what_agrees(data) -> None:
    """After any mix of guesses, accepted or not, and steps in which it was not asked."""
    shadow, tokens, computed = _Shadow(), [7], []
    for _ in range(8):
        shadow.follow(tokens)
        agreed = shadow.computed_count
        assert list(shadow.token_ids) == tokens
        assert agreed < len(tokens)
        assert computed[:agreed] == tokens[:agreed]
        shadow.token_ids.extend(data.draw(st.lists(st.integers(0, 1), max_size=4)))
        computed = list(shadow.token_ids)
        shadow.computed_count = len(computed) - 1  # the last guess is not read
        tokens = tokens + data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))


# ---- exactness of the distribution


def test_the_distribution_is_the_models_own() -> None:
    """Three tokens of a small vocabulary, drafted by another model, over many seeds."""
    size, total = 5, 6_000
    generator = np.random.default_rng(6)
    target = generator.normal(0, 1.2, (size, size)).astype(np.float32)  # by the token before
    other = target + generator.normal(0, 1.5, target.shape).astype(np.float32)
    first = 2
    sequences = [sequence((first,), seed=seed) for seed in range(total)]
    accepted = drafted = 0
    going = sequences
    while going:
        drafts = drafts_of(other, going, 3)
        rows, asks = [], []
        for of, draft in zip(going, drafts, strict=True):
            asks.append(SamplingRequest(of, len(rows), draft))
            rows += [target[token] for token in (of.token_ids[-1], *draft)]
        logits = np.array(rows)
        outcomes = sample_batch(logits, logits.argmax(1).astype(np.int32), asks)
        for of, draft, outcome in zip(going, drafts, outcomes, strict=True):
            drafted += len(draft)
            accepted += len(outcome.token_ids) - 1
            of.token_ids.extend(outcome.token_ids)
        going = [of for of in going if of.position < 3]
    assert 0.3 < accepted / drafted < 0.9  # both acceptance and rejection are at work
    p = np.exp(target.astype(float))
    p /= p.sum(1, keepdims=True)
    triples = list(itertools.product(range(size), repeat=3))
    exact = np.array([p[first, a] * p[a, b] * p[b, c] for a, b, c in triples])
    place = {triple: index for index, triple in enumerate(triples)}
    counts = Counter(place[tuple(of.token_ids[1:4])] for of in sequences)
    statistic, limit = chi_square(counts, exact, total)
    assert statistic < limit


def drafts_of(model: np.ndarray, sequences, count: int) -> list[list[int]]:
    """What a model drafts that draws with the same seeds."""
    drafts: list[list[int]] = [[] for _ in sequences]
    shadows = [sequence((2,), of.token_ids[1:], seed=of.request.sampling.seed) for of in sequences]
    for _ in range(count):
        logits = np.array([model[shadow.token_ids[-1]] for shadow in shadows])
        asks = [SamplingRequest(shadow, row) for row, shadow in enumerate(shadows)]
        outcomes = sample_batch(logits, logits.argmax(1).astype(np.int32), asks)
        for draft, shadow, outcome in zip(drafts, shadows, outcomes, strict=True):
            draft += outcome.token_ids
            shadow.token_ids.extend(outcome.token_ids)
    return drafts


# ---- opening


def test_drafters_open_by_name(model) -> None:
    assert open_drafter("off", model) is None
    assert isinstance(open_drafter("ngram", model), Speculator)
    with pytest.raises(EngineError, match="INFERENCE_SPECULATION_MODEL"):
        open_drafter("draft", model)
    with pytest.raises(EngineError, match="unknown"):
        open_drafter("magic", model)


def test_a_draft_model_must_share_the_tokenizer(model) -> None:
    from inference_svc.settings import MODEL_DEFAULT

    with pytest.raises(EngineError, match=r"tokenizer\.json is another"):
        open_drafter("draft", model, draft_model=str(MODEL_DEFAULT))
