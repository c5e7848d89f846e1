"""Sampling: who may be drawn, how often, and that nobody's neighbours matter."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.protocol import Sampling
from inference_svc.engine.torch import sampler
from inference_svc.engine.torch.kept import kept
from inference_svc.engine.torch.penalties import History, adjust
from inference_svc.engine.torch.race import exponentials, keys_of, race
from inference_svc.engine.torch.sampler import SamplingRequest
from tests.unit.inference.sampling import ask, draw, sequence

WIDTH = 300  # more than two blocks of the tail


def chi_square_limit(freedom: int) -> float:
    """A value that chance passes once in about 30,000 (Wilson and Hilferty, 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.0 * math.sqrt(2 / (9 * freedom))) ** 3


def chi_square(counts: Counter, probabilities: np.ndarray, total: int) -> tuple[float, float]:
    """The statistic over cells of at least 5 expected draws, the rest together, and its limit."""
    large = np.flatnonzero(probabilities * total >= 5)
    observed = np.array([counts[int(i)] for i in large], float)
    expected = probabilities[large] * total
    rest = total - expected.sum()
    if rest >= 5:
        observed = np.append(observed, total - observed.sum())
        expected = np.append(expected, rest)
    else:
        assert sum(counts[i] for i in counts if i not in set(large.tolist())) <= 30
    return float(((observed - expected) ** 2 / expected).sum()), chi_square_limit(expected.size - 1)


def softmax(row: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    weights = np.exp((row.astype(float) - row.max()) / temperature)
    return weights / weights.sum()


def naive_kept(row: np.ndarray, sampling: Sampling) -> set[int]:
    """By the definition, on the whole row in double precision."""
    p = softmax(row, sampling.temperature)
    order = sorted(range(p.size), key=lambda i: (-p[i], i))
    order = [i for i in order if p[i] >= sampling.min_p * p[order[0]]]
    if sampling.top_k:
        order = order[: sampling.top_k]
    mass, total, left = 0.0, sum(p[i] for i in order), []
    for i in order:
        if sampling.top_p < 1 and mass >= sampling.top_p * total:
            break
        left.append(i)
        mass += p[i]
    return set(left)


@pytest.mark.parametrize("spread", [0.5, 3.0, 9.0])
@pytest.mark.parametrize(
    "limits",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": WIDTH},
        {"top_p": 0.01},
        {"top_p": 0.6},
        {"top_p": 0.95},
        {"top_p": 0.9999},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_kept_tokens_are_those_of_the_definition(spread, limits) -> None:
    generator = np.random.default_rng(5)
    for temperature in (0.3, 1.0, 1.9):
        sampling = Sampling(temperature=temperature, **limits)
        row = generator.normal(0, spread, WIDTH).astype(np.float32)
        weights = np.exp((row - row.max()) / np.float32(temperature))
        columns = kept(weights, sampling)
        drawable = set(np.flatnonzero(weights).tolist())  # the rest is below 1e-38
        assert set(columns.tolist()) == naive_kept(row, sampling) & drawable
        assert len(set(columns.tolist())) == columns.size


def test_ties_keep_the_smaller_ids() -> None:
    weights = np.ones(WIDTH, np.float32)
    assert kept(weights, Sampling(top_k=3)).tolist() == [0, 1, 2]
    assert kept(weights, Sampling(top_p=0.01)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_the_race_draws_by_weight(spread) -> None:
    """Head and tail together are the distribution: chi-square over many seeds."""
    row = np.random.default_rng(3).normal(0, spread, WIDTH).astype(np.float32)
    total = 40_000
    weights = np.exp(row - row.max())
    draws = [keys_of(seed, 9) for seed in range(total)]
    drawn = []
    for begin in range(0, total, 2000):
        drawn += race(np.tile(weights, (2000, 1)), draws[begin : begin + 2000])
    statistic, limit = chi_square(Counter(drawn), softmax(row), total)
    assert statistic < limit


def test_one_seed_draws_by_weight_along_an_answer() -> None:
    row = np.random.default_rng(4).normal(0, 2, 40).astype(np.float32)
    weights = np.exp(row - row.max())
    total = 20_000
    drawn = race(np.tile(weights, (total, 1)), [keys_of(1, position) for position in range(total)])
    statistic, limit = chi_square(Counter(drawn), softmax(row), total)
    assert statistic < limit
    pairs = Counter(itertools.pairwise(drawn))
    flat = {(a, b): i for i, (a, b) in enumerate((a, b) for a in range(40) for b in range(40))}
    joint = np.outer(softmax(row), softmax(row)).ravel()
    statistic, limit = chi_square(Counter({flat[k]: n for k, n in pairs.items()}), joint, total - 1)
    assert statistic < limit


def test_the_noise_is_exponential_and_fixed_for_ever() -> None:
    """Another node, another version: the same draws. These numbers must not change."""
    noise = exponentials(np.full(100_000, 77, np.uint64), np.arange(100_000, dtype=np.uint64))
    assert abs(noise.mean() - 1) < 0.02
    assert abs((noise > 1).mean() - math.exp(-1)) < 0.01
    assert keys_of(1, 0) == PINNED_KEYS[0]
    assert keys_of(2**64 - 1, 5) == PINNED_KEYS[1]
    assert noise[:3].tolist() == pytest.approx(PINNED_NOISE, rel=1e-14)


PINNED_KEYS = [
    (16893510014633587454, 0.6311030401531298),
    (15892354693002901215, 0.5352295596336243),
]
PINNED_NOISE = [1.7390065083336286, 0.9566768176473084, 0.7062748826894619]


def test_close_distributions_draw_the_same_token() -> None:
    """What makes another CPU's last bits harmless, and a sampled draft worth drawing."""
    generator = np.random.default_rng(8)
    row = generator.normal(0, 2.5, WIDTH)
    other = row + generator.normal(0, 0.1, WIDTH)
    p, q = softmax(row), softmax(other)
    draws = [keys_of(seed, 0) for seed in range(4000)]
    one, two = (
        race(np.tile(np.exp(r - r.max()).astype(np.float32), (4000, 1)), draws)
        for r in (row, other)
    )
    same = np.mean(np.array(one) == np.array(two))
    distance = abs(p - q).sum() / 2
    assert same > (1 - distance) / (1 + distance) - 0.03  # the bound of Daliri et al., 2024


KINDS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.2, 1.0, 1.7]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "top_k": st.sampled_from([1, 5, 50]),
        "min_p": st.sampled_from([0.02, 0.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.5, 1.2]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "logit_bias": st.just({4: 2.5, 7: -100.0}),
        "seed": st.integers(0, 5),
        "logprobs": st.just(True),
        "top_logprob_count": st.sampled_from([1, 20]),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(KINDS, st.lists(st.integers(0, WIDTH - 1), max_size=6), st.integers(0, 3)),
        min_size=1,
        max_size=9,
    ),
    shape=st.integers(0, 2**32 - 1),
    nan_row=st.integers(0, 30),
)
def test_a_row_is_drawn_alike_alone_and_in_any_mix(rows, shape, nan_row) -> None:
    generator = np.random.default_rng(shape)
    logits = generator.normal(0, 3, (sum(1 + drafts for *_, drafts in rows), WIDTH))
    logits = logits.astype(np.float32)
    if nan_row < len(logits):
        logits[nan_row, shape % WIDTH] = np.nan
    asks, first = [], 0
    for kind, output, drafts in rows:
        asks.append((kind, output, first, generator.integers(0, WIDTH, drafts).tolist()))
        first += 1 + drafts
    mixed = ask(logits, *(SamplingRequest(sequence((1, 2), o, **k), at, d) for k, o, at, d in asks))
    for outcome, (kind, output, at, draft) in zip(mixed, asks, strict=True):
        own = logits[at : at + 1 + len(draft)].copy()
        alone = ask(own, SamplingRequest(sequence((1, 2), output, **kind), 0, draft))[0]
        assert alone == outcome
        if not np.isnan(own).any():
            assert not outcome.error
            assert 1 <= len(outcome.token_ids) <= 1 + len(draft)
        elif np.isnan(own[0]).any():
            assert outcome.error
            assert not outcome.token_ids


def test_rows_are_drawn_alike_whatever_is_worked_on_at_once(monkeypatch) -> None:
    logits = np.random.default_rng(7).normal(0, 3, (11, 1000)).astype(np.float32)
    asks = [
        SamplingRequest(sequence(temperature=0.3 + row / 10, seed=row), row) for row in range(11)
    ]
    whole = ask(logits, *asks)
    for size in (1, 3000, 4500):
        monkeypatch.setattr(sampler, "SLAB_SIZE", size)
        assert ask(logits, *asks) == whole


@settings(max_examples=40, deadline=None)
@given(kind=KINDS, seed=st.integers(0, 2**32 - 1), wrong=st.integers(0, 4))
def test_drafts_change_nothing(kind, seed, wrong) -> None:
    """Tokens one at a time, and the same rows with a draft that is right up to `wrong`."""
    logits = np.random.default_rng(seed).normal(0, 3, (4, WIDTH)).astype(np.float32)
    slow = sequence((1, 2), (9,), **kind)
    expected, entries = [], []
    for row in range(4):
        outcome = ask(logits[row : row + 1], SamplingRequest(slow, 0))[0]
        expected += outcome.token_ids
        entries += outcome.logprobs
        slow.token_ids.append(outcome.token_ids[0])
    draft = expected[:3]
    if wrong < 3:
        draft[wrong] = (draft[wrong] + 1) % WIDTH
    quick = sequence((1, 2), (9,), **kind)
    outcome = ask(logits, SamplingRequest(quick, 0, draft))[0]
    right = min(wrong, 3) + 1
    assert outcome.token_ids == expected[:right]
    assert outcome.logprobs == entries[:right]
    # Behind the accepted ones both sequences stand at the same place.
    quick.token_ids.extend(outcome.token_ids)
    if right == 4:
        assert ask(logits[:1], SamplingRequest(quick, 0)) == ask(
            logits[:1], SamplingRequest(slow, 0)
        )


def test_penalties_are_counted_as_they_come() -> None:
    generator = np.random.default_rng(1)
    prompt = generator.integers(0, 200, 30).tolist()
    history, output = History(prompt), []
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5)
    for _ in range(200):
        output.append(int(generator.integers(0, 200)))
        history.add(output[-1:])
    row = generator.normal(0, 2, WIDTH).astype(np.float32)
    expected = row.astype(float)
    for token in {*prompt, *output}:
        expected[token] *= 1 / 1.5 if expected[token] > 0 else 1.5
    for token, times in Counter(output).items():
        expected[token] -= 0.25 * times + 0.5
    adjust(row, sampling, history)
    assert row == pytest.approx(expected, abs=1e-5)


def test_penalties_and_bias_change_who_wins() -> None:
    row = [1.0, 0.9, -1.0]
    greedy = {"prompt": [2], "temperature": 0.0}
    assert draw(row, sequence(**greedy)) == 0
    assert draw(row, sequence(**greedy, presence_penalty=0.2, output=[0])) == 1
    assert draw(row, sequence(**greedy, frequency_penalty=0.06, output=[0])) == 0
    assert draw(row, sequence(**greedy, frequency_penalty=0.06, output=[0, 0])) == 1
    assert draw(row, sequence(**greedy, repetition_penalty=1.2, output=[0])) == 1
    assert draw(row, sequence(prompt=[0], temperature=0.0, repetition_penalty=1.2)) == 1
    assert draw(row, sequence(**greedy, logit_bias={2: 3.0})) == 2


def test_a_tiny_temperature_is_greedy() -> None:
    assert draw([0.0, 1.0, 0.999], temperature=1e-6) == 1
    assert {draw([0.0, 40.0, 1.0], temperature=1e-4, seed=seed) for seed in range(20)} == {1}


def test_log_probabilities_are_of_the_plain_logits() -> None:
    row = np.random.default_rng(2).normal(0, 3, WIDTH).astype(np.float32)
    expected = np.log(softmax(row))
    one = sequence(logprobs=True, top_logprob_count=20, temperature=0.0, logit_bias={5: 50.0})
    outcome = ask(row[None], SamplingRequest(one, 0))[0]
    entry = outcome.logprobs[0]
    assert entry.chosen == (5, pytest.approx(expected[5], abs=1e-5))
    best = sorted(range(WIDTH), key=lambda i: (-row[i], i))[:20]
    assert [i for i, _ in entry.top] == best
    assert [value for _, value in entry.top] == pytest.approx(expected[best], abs=1e-5)
    only = sequence(logprobs=True)
    assert ask(row[None], SamplingRequest(only, 0))[0].logprobs[0].top == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [{}, {"temperature": 0.0, "logprobs": True}, {"top_k": 3}])
def test_no_number_fails_its_own_sequence_only(bad, kind) -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[1, 3] = bad
    outcomes = ask(rows, *(SamplingRequest(sequence(**kind), row) for row in range(3)))
    assert [bool(outcome.error) for outcome in outcomes] == [False, True, False]
    assert outcomes[1].token_ids == []
