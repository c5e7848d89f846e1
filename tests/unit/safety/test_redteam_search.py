"""Adaptive search and the record of results."""

import difflib
import random
from pathlib import Path

import pytest

from safety_svc.redteam import fast, results
from safety_svc.redteam.fast import Tally
from safety_svc.redteam.results import PAGE, RESULTS, keep, page, read, record
from safety_svc.redteam.screening import Screen
from safety_svc.redteam.search import CHANGES, FRAMES, changed, search

REQUEST = "Explain how the wicked dragon opens the castle gate."
VERSION = {"version": "one", "date": "2026-11-22", "policy": "p", "classifier": "c"}


def letters_left(text: str) -> float:
    """A screen that looks for words: it is passed when three of them are spoiled."""
    found = sum(word in text for word in ("Explain", "wicked", "dragon", "castle", "gate"))
    return found / 5


def score(text: str) -> float | None:
    left = letters_left(text)
    return None if left <= 0.4 else left


def test_a_search_finds_what_a_climb_can_find_and_says_the_same_again() -> None:
    found = [search(REQUEST, score, 200, random.Random(seed)) for seed in range(20)]
    assert found == [search(REQUEST, score, 200, random.Random(seed)) for seed in range(20)]
    assert all(one.passed and score(one.passed) is None for one in found)
    blind = [search(REQUEST, lambda text: score(text) and 1.0, 200, random.Random(s))
             for s in range(20)]  # fmt: skip
    assert sum(one.tries for one in found) < sum(one.tries for one in blind)


def test_a_search_keeps_to_its_budget() -> None:
    asked: list[str] = []
    found = search(REQUEST, lambda text: asked.append(text) or 1.0, 30, random.Random(1))
    assert (found.tries, found.passed, len(asked)) == (30, None, 30)
    assert asked[0] == REQUEST
    assert search(REQUEST, lambda _: None, 30, random.Random(1)).tries == 1


def test_what_is_tried_stays_like_the_request() -> None:
    rng, best = random.Random(7), (REQUEST, FRAMES[0])
    for _ in range(400):
        best = changed(best, REQUEST, rng)
        alike = difflib.SequenceMatcher(None, REQUEST.lower(), best[0].lower(), autojunk=False)
        assert alike.ratio() >= 0.7
    for change in CHANGES:
        assert len({change(REQUEST, random.Random(seed)) for seed in range(20)}) > 1
        assert change("no it is", random.Random(1)).lower() == "no it is"


def test_the_rules_alone_are_searched_through() -> None:
    """A screen without a classifier: seeds that the rules never see pass at the first try."""
    screen = Screen(Screen.shipped()._policy, None)
    tally, figures = fast.searched(screen, budget=3)
    assert tally.tries == 12
    assert tally.caught < 12
    assert 1 <= figures["median_tries"] <= 3


def test_results_are_kept_by_version(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == []
    first = record(VERSION, {"plain": Tally(4, 1, 2)}, {"plain": Tally(5, 0, 1)}, {"budget": 9})
    second = record(VERSION | {"version": "two"}, {"plain": Tally(4, 3, 3)}, {}, {})
    keep(path, first)
    keep(path, second)
    better = record(VERSION, {"plain": Tally(4, 2, 2)}, {"plain": Tally(5, 0, 1)}, {})
    keep(path, better)
    assert read(path) == [better, second]
    text = page(read(path))
    assert "| role | `plain` | 4 | 50% | 75% | 75% | – |" in text
    assert "| role | 1 | 50% | 75% | ███████████████░░░░░ | – |" in text


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "results.png"
    results.draw(read(RESULTS), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_what_is_kept() -> None:
    kept = read(RESULTS)
    assert kept, "run `python -m safety_svc.redteam --fast --record NAME`"
    assert PAGE.read_text("utf-8") == page(kept), "run `python -m safety_svc.redteam --show`"
