"""Modified Kneser-Ney: against numbers by hand and a plain dictionary version."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from training.data.kneser_ney import KneserNey, discounts


def plain(stream: list[int], vocab: int, order: int, history: tuple[int, ...], word: int) -> float:
    """The textbook recursion with dictionaries, one probability at a time."""

    def grams(length: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(stream[i : i + length]) for i in range(len(stream) - length + 1))

    def probability(history: tuple[int, ...], word: int) -> float:
        length = len(history) + 1
        if length == order:
            counts = dict(grams(length))
        else:
            distinct = defaultdict(set)
            for gram in grams(length + 1):
                distinct[gram[1:]].add(gram[0])
            counts = {gram: len(before) for gram, before in distinct.items()}
        universe = [counts.get(gram, 0) for gram in grams(length)]
        taken = discounts(np.array(universe))
        after = {g[-1]: c for g, c in counts.items() if g[:-1] == history}
        lower = probability(history[1:], word) if history else 1 / vocab
        total = sum(after.values())
        if not total:
            return lower
        freed = sum(taken[min(c, 3)] for c in after.values())
        own = after.get(word, 0)
        return (own - taken[min(own, 3)]) / total + freed / total * lower

    return probability(history, word)


def test_discounts_follow_the_formulas_of_chen_and_goodman() -> None:
    counts = np.array([1] * 10 + [2] * 5 + [3] * 3 + [4] * 2 + [9])
    share = 10 / 20
    expected = [0, 1 - 2 * share * 5 / 10, 2 - 3 * share * 3 / 5, 3 - 4 * share * 2 / 3]
    assert discounts(counts) == pytest.approx(expected)


def test_a_bigram_by_hand() -> None:
    # a b a b a c with a=0, b=1, c=2: bigrams ab 2, ba 2, ac 1; no trigram of counts: one discount.
    model = KneserNey.fit(np.array([0, 1, 0, 1, 0, 2]), vocab=4, order=2)
    amount = 1 / (1 + 2 * 2)  # one bigram occurs once, two occur twice
    # Predecessors: a after b, b after a, c after a; each one: 3 in all, discount 0.75.
    uniform = 1 / 4
    lower_c = (1 - 0.75) / 3 + 3 * 0.75 / 3 * uniform
    expected = (1 - amount) / 3 + 2 * amount / 3 * lower_c
    assert model.probabilities(np.array([0, 2]))[1] == pytest.approx(expected)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_agrees_with_the_textbook_and_sums_to_one(order: int) -> None:
    rng = np.random.default_rng(order)
    stream = rng.choice(6, 400, p=[0.4, 0.25, 0.15, 0.1, 0.06, 0.04]).tolist()
    model = KneserNey.fit(np.array(stream), vocab=7, order=order)
    for history in ([], stream[50 : 50 + order - 1], stream[200 : 200 + max(order - 2, 0)]):
        found = [model.probabilities(np.array([*history, word]))[-1] for word in range(7)]
        expected = [plain(stream, 7, order, tuple(history), word) for word in range(7)]
        if len(history) == order - 1:
            assert found == pytest.approx(expected)
        assert sum(found) == pytest.approx(1)


def test_perplexity_is_low_on_what_was_seen_and_finite_on_what_was_not() -> None:
    text = np.array([1, 2, 3, 4] * 50)
    model = KneserNey.fit(text, vocab=10)
    assert model.perplexity(text) < 1.5
    assert math.isfinite(model.perplexity(np.array([9, 9, 9, 8])))
    with pytest.raises(ValueError, match="outside"):
        KneserNey.fit(text, vocab=4)
    with pytest.raises(ValueError, match="few"):
        KneserNey.fit(text[:3], vocab=10)
