"""Streamed answers: same verdict for every cut, and never more than the window leaves."""

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safety_svc.detectors.base import Audience, Category, Context, Finding
from safety_svc.detectors.windowed import WindowedScanner
from safety_svc.detectors.words import FREE_LENGTH
from safety_svc.policy import Action, Direction, Policy
from safety_svc.screen import Halted, Passed, Released, ReplyScreener
from tests.unit.safety.samples import HARMLESS
from tests.unit.safety.scanning import DETECTORS, cut, default_policy
from tests.unit.safety.test_detectors import PLACES, TEXTS

POLICY = default_policy()
NARROW = default_policy(window_token_count="16>2")
# Detectors whose findings begin with ordinary words; of all others nothing leaves.
WEAK = {pattern.name for pattern in DETECTORS._lexicons[Audience.REPLY].patterns}


class Outcome(NamedTuple):
    """How a screening ended, and what had left after each delta."""

    last: Halted | Passed
    findings: list[Finding]
    left: list[int]  # bytes that had left before each delta, and at the end


def screen(cuts: list[str], policy: Policy = POLICY, released_text: str = "") -> Outcome:
    screener = ReplyScreener(policy.regime("free"), DETECTORS.scanners(Audience.REPLY))
    if released_text:
        screener.resume(released_text)
    left = [0]
    for piece in cuts:
        outcome = screener.delta(piece, 1)
        if isinstance(outcome, Halted):
            return Outcome(outcome, screener.findings, left)
        if outcome:
            assert outcome.offset > left[-1]
        left.append(outcome.offset if outcome else left[-1])
    return Outcome(screener.end(), screener.findings, left)


@given(TEXTS, PLACES)
@settings(deadline=None, max_examples=300)
@example("how to make a bomb squad badge, how to make a pipe bomb now", [10, 20])
def test_the_verdict_does_not_depend_on_the_cuts(text: str, places: list[int]) -> None:
    whole = screen([text] if text else [])
    for cuts in (cut(text, places), list(text)):
        other = screen([piece for piece in cuts if piece])
        assert other.last == whole.last
        assert other.findings == whole.findings


@given(TEXTS, PLACES, st.sampled_from([POLICY, NARROW]))
@settings(deadline=None, max_examples=300)
def test_at_most_the_window_leaves(text: str, places: list[int], policy: Policy) -> None:
    window = policy.regime("free").window_token_count
    for cuts in (cut(text, places), list(text)):
        pieces = [piece for piece in cuts if piece]
        outcome = screen(pieces, policy)
        if isinstance(outcome.last, Passed):
            continue
        start, left = outcome.last.offset, outcome.left[-1]
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece.encode()))
        first = max(index for index, end in enumerate(ends) if end <= start)
        tokens_left = sum(end <= left for end in ends[first + 1 :])
        assert tokens_left <= window
        assert left <= max(start, ends[min(first + window, len(ends) - 1)])
        halting = [f for f in outcome.findings if f.start == start]
        if not any(finding.detector in WEAK for finding in halting):
            free = FREE_LENGTH if any(f.detector == "lexicon" for f in halting) else 0
            assert len(text.encode()[start:left].decode()) <= free


@pytest.mark.parametrize("line", HARMLESS)
def test_clean_text_leaves_at_once(line: str) -> None:
    words = [word + " " for word in line.split(" ")]
    outcome = screen(words)
    assert outcome.last == Passed(POLICY.regime("free").judge(Direction.REPLY, []))
    arrived = 0
    behind = []
    for word, left in zip(words, outcome.left[1:], strict=True):
        arrived += len(word.encode())
        behind.append(arrived - left)
    # A few words wait for the next ones; the median does not wait at all.
    assert sorted(behind)[len(behind) // 2] == 0


def test_nothing_of_a_card_number_leaves() -> None:
    text = "Sure: 4111 1111 1111 1111 is it"
    outcome = screen(list(text))
    assert isinstance(outcome.last, Halted)
    assert outcome.last.offset == 6
    assert outcome.last.judgement.category is Category.PRIVACY
    assert outcome.left[-1] == 6


def test_the_opener_of_a_pattern_leaves_within_the_window() -> None:
    words = ["Here ", "is ", "how ", "to ", "make ", "a ", "big ", "pipe ", "bomb", ":"]
    outcome = screen(words)
    assert isinstance(outcome.last, Halted)
    assert outcome.last.offset == len("Here is ")
    assert outcome.left[-1] == len("Here is how to make a big ")
    narrow = screen(words, NARROW)
    assert narrow.last == outcome.last
    assert narrow.left[-1] == len("Here is how to ")


def test_a_continuation_is_judged_with_what_left_before() -> None:
    outcome = screen(["e bomb", ", you"], released_text="Hi. This is how to make a pip")
    assert isinstance(outcome.last, Halted)
    assert outcome.last.offset == 0
    assert outcome.left[-1] == 0


def test_what_left_before_is_never_cut() -> None:
    outcome = screen(["and more."], released_text="4111 1111 1111 1111 ")
    assert isinstance(outcome.last, Passed)
    assert outcome.last.judgement.action is Action.ALLOW
    assert outcome.left[-1] == len("and more.")


def test_redaction_holds_the_text_back_to_the_end() -> None:
    policy = default_policy(privacy="{flag: 0.4, block: 0.9}>redact")
    outcome = screen(["Card ", "4111111111111111", " is it. ", "Bye."], policy)
    assert isinstance(outcome.last, Passed)
    assert outcome.last.judgement.action is Action.REDACT
    assert outcome.left[-1] == len("Card ")
    assert [(f.start, f.end) for f in outcome.findings] == [(5, 21)]


class SpotsBad:
    """A small trained-like detector: finds the word BAD with a score of its own."""

    name = "spots_bad"

    def inspect(self, text: str, context: Context) -> list[Finding]:
        assert context.audience is Audience.REPLY
        at = text.find("BAD")
        return [Finding(0, at, at + 3, Category.VIOLENCE, self.name, 0.9)] if at >= 0 else []


@given(st.text("abc ", max_size=200), PLACES)
@settings(deadline=None)
def test_a_whole_text_detector_can_be_plugged_in(text: str, places: list[int]) -> None:
    text += "BAD news and more of it"
    outcomes = []
    for cuts in ([text], cut(text, places), list(text)):
        scanner = WindowedScanner(SpotsBad(), Context(Audience.REPLY), stride=8, lookback=32)
        screener = ReplyScreener(NARROW.regime("free"), [scanner])
        left, last = 0, None
        for piece in filter(None, cuts):
            last = screener.delta(piece, 1)
            if isinstance(last, Halted):
                break
            left = last.offset if isinstance(last, Released) else left
        last = last if isinstance(last, Halted) else screener.end()
        assert isinstance(last, Halted)
        outcomes.append(last)
        if cuts == list(text):
            decided_at = -(-(last.offset + len("BAD")) // 8) * 8
            assert left <= decided_at - 8 + 2
    assert outcomes[0] == outcomes[1] == outcomes[2]
