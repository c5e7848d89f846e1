"""Cleaning, copies, decontamination, and how replies are judged."""

import random
from pathlib import Path

import pytest

from training.data import clean, dedup, documents, evaluation
from training.data.decontaminate import Decontaminator, resembles
from training.data.prepare import SAMPLE

NOTHING = clean.Insults(frozenset({"blockhead"}), ("silly goose",))
PLAIN = "The cat sat on the mat. It was a warm day."


def test_one_typography() -> None:
    assert clean.plain("“It’s _very_ good”—he  said …") == '"It\'s very good" - he said...'
    assert clean.plain("snake_case stays, *this* not") == "snake_case stays, this not"
    assert clean.plain("12 *5 = 60 and 3 * 4") == "12 *5 = 60 and 3 * 4"
    assert clean.unwrapped("a broken\nline.\n\nNext") == "a broken line.\nNext"


@pytest.mark.parametrize(
    ("paragraph", "reason"),
    [
        (PLAIN, None),
        ("You blockheads!", "slur or dated word"),
        ("You silly goose, said the fox to him.", "slur or dated word"),
        ("They met a savage in the wood.", "slur or dated word"),
        ("Whither goest thou, my friend?", "archaic or dialect"),
        ("12 3456 78 90 11 22 - 33", "few letters"),
        ("THE END OF THE STORY", "capitals"),
        ("See https://example.com for more.", "reference"),
        ("Ein schöner Käse für Jürgen.", "foreign letters"),
        ("word " * 40 + ".", "long sentences"),
        ("A sentence of words. " * 100, "too long"),
    ],
)
def test_a_paragraph_is_kept_or_dropped_for_a_reason(paragraph: str, reason: str | None) -> None:
    assert clean.defect(paragraph, NOTHING) == reason


def test_passages_end_at_gaps_and_drop_scraps() -> None:
    long = "x" * 60
    assert clean.passages([long, long, None, "x", None, long], 100) == [f"{long}\n{long}", long]


def test_the_sample_gives_every_kind_of_document() -> None:
    from collections import Counter

    found = [d for read in documents.ALL for d in read(SAMPLE, NOTHING, Counter())]
    kinds = {"story", "fairy tale", "book", "country", "recipe", "command", "dialogue"}
    assert kinds | {"worded sum", "reading"} == {document.kind for document in found}
    assert documents.books(Path("absent"), NOTHING, Counter())
    assert not list(documents.stories(Path("absent"), NOTHING, Counter()))


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefgh", k=4)) for _ in range(count))


def test_copies_are_found_also_when_a_few_words_differ() -> None:
    copies = dedup.Deduplicator()
    first = words(200, 1)
    assert not copies.is_copy(first)
    assert copies.is_copy(first.upper() + "!")
    changed = first.split()
    changed[100] = "different"
    assert copies.is_copy(" ".join(changed))
    assert not copies.is_copy(words(200, 2))
    assert not copies.is_copy(" ".join(first.split()[:60] + words(140, 3).split()))


def test_the_estimate_is_near_the_jaccard_similarity() -> None:
    shared, first, second = (set(words(150, seed).split()) for seed in (4, 5, 6))

    def hashed(text: set[str]) -> set[int]:
        return {int(value) for word in text for value in dedup.shingles(word)}

    one, two = hashed(shared | first), hashed(shared | second)
    exact = len(one & two) / len(one | two)
    import numpy as np

    signed = [dedup.signature(np.array(sorted(values), np.uint64)) for values in (one, two)]
    assert dedup.similarity(*signed) == pytest.approx(exact, abs=0.15)


def test_prompts_are_found_by_their_words_in_a_row() -> None:
    guard = Decontaminator(
        ["Hello!", "What is the capital of Peru?", "Please tell me how I can grow tomatoes at home"]
    )
    assert guard.hit("hello")
    assert not guard.hit("hello my friend")
    assert guard.hit("So: what is the capital of PERU, again?")
    assert not guard.hit("What is the capital of Chile?")
    assert not guard.hit("Well, tell me how I can grow beans at home")
    assert guard.hit("Well, tell me how I can grow tomatoes at home")
    assert not resembles("How do I steal a bike?", ["Explain how to steal a car"])
    assert resembles("How do I steal a red car?", ["How can I steal that red car"])


def test_replies_are_judged() -> None:
    assert evaluation.is_refusal("I'm sorry, but I can't help with that. It could hurt someone.")
    assert evaluation.is_refusal("I cannot assist you with this request.")
    assert not evaluation.is_refusal("I don't know that. I am only a small demo model.")
    assert not evaluation.is_refusal("You can't boil an egg without water.")
    assert evaluation.matches("It is Paris.", ["paris"])
    assert not evaluation.matches("Parisian food", ["Paris"])
    assert evaluation.matches("Use `ls -a`. It lists", ["ls -a"])
    assert evaluation.matches("7 + 8 = 15", ["= 15"])
    assert evaluation.repetition("a b c d a b c d a b c d") > 0.4
    assert evaluation.repetition("every word of this is new here") == 0


def test_the_sets_are_whole() -> None:
    assert len(evaluation.load("prompts60")) == 60
    assert len(evaluation.load("qa")) >= 300
    assert len(evaluation.load("harmful")) == len(evaluation.load("harmless")) == 100
    asked = evaluation.prompts()
    assert len({evaluation.normalised(text) for text in asked}) > len(asked) - 5
    ids = [row["id"] for name in evaluation.SETS for row in evaluation.load(name)]
    assert len(ids) == len(set(ids))
