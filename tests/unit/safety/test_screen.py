"""Streamed answers: same verdict for every cut, and never more than the window leaves."""

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safety_svc import policy_file
from safety_svc.detectors.base import Audience, Category, Finding
from safety_svc.detectors.rulebook import Detectors, house_rules
from safety_svc.detectors.windowed import (
    FRESH_OVERLAP_LENGTH,
    LOOKBACK_LENGTH,
    REREAD_LENGTH,
    SPACE_REACH,
    STRIDE_LENGTH_MIN,
    TextWindow,
)
from safety_svc.detectors.words import FREE_LENGTH
from safety_svc.masking import Mask, masked, merged
from safety_svc.policy import Action, Direction, Policy
from safety_svc.screen import Halted, Outcome, Passed, Released, ReplyScreener
from tests.unit.safety.samples import HARMLESS
from tests.unit.safety.scanning import DETECTORS, cut, default_policy, edited
from tests.unit.safety.test_detectors import PLACES, TEXTS

HALTING = {"card_number": "redact>block", "secret_format": "redact>block"}
POLICY = default_policy(**HALTING, private_key="redact>block", secret_entropy="redact>block")
NARROW = default_policy(
    **HALTING, private_key="redact>block", secret_entropy="redact>block", window_token_count="16>2"
)
# Detectors whose findings begin with ordinary words; of all others nothing leaves.
WEAK = {pattern.name for pattern in DETECTORS._lexicons[Audience.REPLY].patterns}


class Screened(NamedTuple):
    """How a screening ended, and what had left after each delta."""

    last: Halted | Passed
    findings: list[Finding]
    left: list[int]  # bytes that had left before each delta, and at the end


def screen(cuts: list[str], policy: Policy = POLICY, released_text: str = "") -> Screened:
    regime = policy.regime("free")
    acted_on = regime.acted_on(Direction.REPLY)
    screener = ReplyScreener(regime, DETECTORS.scanners(Audience.REPLY, acted_on))
    if released_text:
        screener.resume(released_text)
    left = [0]
    for piece in cuts:
        outcome = screener.delta(piece, 1)
        assert not isinstance(outcome, Passed)
        if isinstance(outcome, Halted):
            return Screened(outcome, screener.findings, left)
        if outcome:
            assert outcome.offset > left[-1]
        left.append(outcome.offset if outcome else left[-1])
    last = screener.end()
    assert isinstance(last, Halted | Passed)
    return Screened(last, screener.findings, left)


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


# An account whose answers are masked wherever a type has a place of its own.
REDACTING = policy_file.read(
    edited() + "accounts: {masked: {reply: {email_address: redact, phone_number: redact, "
    "ip_address: redact, street_address: redact}}}\n",
    "p.yaml",
)
PERSONAL = st.sampled_from(
    [
        "jo.smith+x@example.co.uk",
        "4111 1111 1111 1111",
        "GB82 WEST 1234 5698 7654 32",
        "8.8.8.8",
        "+44 20 8366 1177",
        "(415) 555-2671",
        "536-22-1234",
        "2001:4860:4860::8888",
        "12 Main Street, Springfield, IL 62704",
        "PO Box 8144",
        "Hauptstraße 12a",
        "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl",
        "call me on 0490 75 40 81",
        "x@y",
        "é",
        "😀",
        " ",
        ". ",
        ", ",
        "\n",
        "at ",
        "a@",
        "@b.de",
        "1",
        "12",
        "GB",
        "my password: x7Kp2Lq9Zr4Tv8Wm",
        "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAo\n",
    ]
)
PERSONAL_TEXTS = st.lists(PERSONAL | st.text(max_size=4), max_size=9).map("".join)


def redacted_stream(cuts: list[str], policy: Policy = REDACTING) -> str:
    """What a caller that masks shows of an answer."""
    regime = policy.regime("free", account_id="masked")
    acted_on, redacted = regime.acted_on(Direction.REPLY), regime.redacted(Direction.REPLY)
    scanners = DETECTORS.scanners(Audience.REPLY, acted_on, redacted)
    screener = ReplyScreener(regime, scanners)
    data, at, shown = "".join(cuts).encode(), 0, ""
    for outcome in [*(screener.delta(piece, 1) for piece in cuts), screener.end()]:
        if outcome is None:
            continue
        assert isinstance(outcome, Released | Passed)
        end = outcome.offset if isinstance(outcome, Released) else len(data)
        assert all(at <= start < stop <= end for start, stop, _ in outcome.masks)
        masks = [Mask(start - at, stop - at, kind) for start, stop, kind in outcome.masks]
        shown += masked(data[at:end].decode(), masks, policy)
        at = end
    return shown


def redacted_whole(text: str, policy: Policy = REDACTING) -> str:
    """Every span that the policy masks, masked in the whole text."""
    regime = policy.regime("free", account_id="masked")
    found = (f for one in DETECTORS.scanners(Audience.REPLY) for f in one.feed(text, final=True))
    spans = [
        Mask(f.start, f.end, f.detector)
        for f in found
        if regime.action(Direction.REPLY, f) is Action.REDACT
    ]
    return masked(text, merged(spans), policy)


@given(PERSONAL_TEXTS, PLACES)
@settings(deadline=None, max_examples=300)
@example("mail jo@example.com now, or 4111 1111 1111 1111.", [7, 30])
def test_what_is_released_is_the_whole_text_masked(text: str, places: list[int]) -> None:
    expected = redacted_whole(text)
    for cuts in ([text], cut(text, places), list(text)):
        assert redacted_stream([piece for piece in cuts if piece]) == expected


def test_spans_are_masked_with_their_type() -> None:
    words = ["Mail ", "jo.", "smith@", "example", ".com", ", card ", "4111 1111", " 1111 1111", "."]
    assert redacted_stream(words) == "Mail [email_address], card [card_number]."


def test_terms_of_the_operator_are_masked_whole() -> None:
    more = "accounts: {masked: {reply: {privacy: redact, email_address: flag}}}\n"
    policy = policy_file.read(edited() + more, "p.yaml")
    detectors = Detectors(house_rules(), {Category.PRIVACY: ["project nightjar"]}, ["a@b.de"])
    regime = policy.regime("free", account_id="masked")
    redacted = regime.redacted(Direction.REPLY)
    scanners = detectors.scanners(Audience.REPLY, regime.acted_on(Direction.REPLY), redacted)
    screener = ReplyScreener(regime, scanners)
    outcomes = [screener.delta(piece, 1) for piece in "Ask a@b.de of Project Nightjar now. "]
    masks = [mask for one in outcomes if isinstance(one, Released) for mask in one.masks]
    assert masks == [Mask(14, 30, "policy_terms")]


def test_a_caller_that_cannot_mask_gets_the_rest_at_the_end() -> None:
    regime = REDACTING.regime("free")
    screener = ReplyScreener(regime, DETECTORS.scanners(Audience.REPLY), masking=False)
    outcomes = [screener.delta(one, 1) for one in ("Card ", "4111111111111111", " is it. ", "Bye.")]
    assert [one.offset for one in outcomes if isinstance(one, Released)] == [len("Card ")]
    last = screener.end()
    assert isinstance(last, Passed)
    assert last.judgement.action is Action.REDACT
    assert last.masks == (Mask(5, 21, "card_number"),)


def spots_bad(look: TextWindow) -> list[Finding]:
    """A small trained-like judge: finds the word BAD, somewhere in what it reads."""
    if "BAD" not in look.text:
        return []
    return [Finding(0, 0, len(look.text.encode()), Category.VIOLENCE, "spots_bad", 0.9)]


def clears_some(text: str) -> bool:
    """A first stage of `spots_bad`: it settles half of the texts that are fine."""
    return "BAD" not in text and len(text) % 2 == 0


def classified(cuts: list[str], policy: Policy, order: list[int]) -> tuple[Outcome, int, str]:
    """The outcome, the bytes that left before it, and what had come; looks return out of order.

    With an `order` of even length some looks are settled where they arise.
    """
    screener = ReplyScreener(
        policy.regime("free"),
        DETECTORS.scanners(Audience.REPLY),
        stride_min=STRIDE_LENGTH_MIN,
        clears=clears_some if order and len(order) % 2 == 0 else lambda text: False,
    )
    left, waiting, turns = 0, [], iter(order * 1000 or [0] * 100_000)
    last: Outcome | None = None

    def note(outcome: Outcome | None) -> bool:
        nonlocal left, last
        if isinstance(outcome, Released):
            assert outcome.offset > left
            left = outcome.offset
        elif outcome:
            last = outcome
        return last is not None

    come = ""
    for piece in [*cuts, ""]:
        come += piece
        done = note(screener.delta(piece, 1) if piece else screener.end())
        waiting += screener.looks()
        # Some looks come back now, in any order; at the end all do.
        while not done and waiting and (not piece or next(turns) % 3):
            look = waiting.pop(next(turns) % len(waiting))
            done = note(screener.judged(look, spots_bad(look)))
        if done:
            break
    assert last
    return last, left, come


@given(
    st.text("abc .", max_size=300),
    PLACES,
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.sampled_from(["BAD news", "4111 1111 1111 1111 is", "how to make a pipe bomb "]),
)
@settings(deadline=None, max_examples=200)
def test_a_classifier_judges_on_the_way(
    text: str, places: list[int], order: list[int], bad: str
) -> None:
    text += f" {bad} BAD and more of it. " + "x " * 40
    whole, _, _ = classified([text], NARROW, [])
    assert isinstance(whole, Halted)
    for cuts in (cut(text, places), list(text)):
        pieces = [piece for piece in cuts if piece]
        last, left, _ = classified(pieces, NARROW, order)
        assert last == whole
        if len(pieces) == len(text):  # one token a character
            # W unjudged tokens past what the classifier had read.
            assert left <= last.offset + 2 + len("how to make a pipe bomb ")
    tokens, left, _ = classified(list(text), NARROW, order)
    assert tokens == whole
    if bad.startswith("BAD"):
        assert left <= text.index("BAD") + STRIDE_LENGTH_MIN + SPACE_REACH


def test_at_most_the_window_leaves_before_the_classifier_has_read_it() -> None:
    regime = POLICY.regime("free")
    screener = ReplyScreener(regime, [], stride_min=STRIDE_LENGTH_MIN)
    words = ["word "] * 60
    offsets = [0]
    looks: list[TextWindow] = []
    for word in words:
        outcome = screener.delta(word, 1)
        looks += screener.looks()
        offsets.append(outcome.offset if isinstance(outcome, Released) else offsets[-1])
    assert offsets[-1] == regime.window_token_count * len("word ")  # nothing came back
    first = looks[0]
    outcome = screener.judged(first, [])
    assert isinstance(outcome, Released)
    assert outcome.offset == first.end + regime.window_token_count * len("word ")
    later = [screener.judged(look, []) for look in looks[1:]]
    ends = [one.offset for one in later if isinstance(one, Released)]
    assert ends[-1] == len("".join(words))


def test_a_doubt_that_was_read_is_not_read_at_every_look() -> None:
    regime = POLICY.regime("free")
    text = "word " * 4 + "DOUBT " + "word " * 200
    counts = []
    for clears in (lambda text: False, lambda text: "DOUBT" not in text):
        screener = ReplyScreener(regime, [], stride_min=STRIDE_LENGTH_MIN, clears=clears)
        screener.delta(text, 1)
        counts.append(len(screener.looks()))
        assert screener.pending_count == counts[-1]
    every, some = counts
    stride = 3 * regime.window_token_count
    assert every >= len(text) // (stride + SPACE_REACH)
    # Those whose new text it is in or just before, and then one for each REREAD_LENGTH of the rest
    # of the lookback.
    assert some <= 1 + FRESH_OVERLAP_LENGTH // stride + 1 + LOOKBACK_LENGTH // REREAD_LENGTH


def test_looks_that_are_cleared_are_never_due() -> None:
    screener = ReplyScreener(
        POLICY.regime("free"), [], stride_min=STRIDE_LENGTH_MIN, clears=lambda text: True
    )
    offsets = []
    for _ in range(60):
        outcome = screener.delta("word ", 1)
        assert isinstance(outcome, Released)
        offsets.append(outcome.offset)
    assert offsets == [(number + 1) * len("word ") for number in range(60)]  # all leaves at once
    assert isinstance(screener.end(), Passed)
    assert not screener.looks()
    assert not screener.pending_count
