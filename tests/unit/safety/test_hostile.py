"""Hostile texts: what decoders and recognisers may return, and how long they may take."""

import json
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safety_svc.classifier import encodings
from safety_svc.classifier.model import shipped
from safety_svc.classifier.normalise import is_plain, plain, readings
from safety_svc.detectors.base import Audience, Finding
from safety_svc.detectors.normalise import normalise, unleet
from safety_svc.detectors.phones import phones
from safety_svc.screen import pieces
from tests.unit.safety.hostile import FRAGMENTS, TEXTS, UNITS
from tests.unit.safety.scanning import DETECTORS

AUDIENCES = st.sampled_from(Audience)
HALF = json.dumps("😀")[1:7]  # \ud83d
MANY_DIGITS = "&#65;&#" + "1" * 5_000 + ";"


def valid(text: str) -> str:
    """`text`, if it can be encoded."""
    assert text.encode().decode() == text
    return text


@given(TEXTS)
@settings(deadline=None, max_examples=500)
@example(json.dumps("Look: 😀🏴"))
@example(HALF)
@example(HALF * 2 + "x")
@example(MANY_DIGITS)
def test_decoders_return_text_that_can_be_encoded(text: str) -> None:
    for other in encodings.decoded(text):
        valid(other)
    first = valid(plain(text))
    assert valid(plain(first)) == first
    for reading in readings(first):
        valid(reading)
    valid(normalise(text))
    valid(unleet(text))
    if is_plain(text):
        assert (first, readings(first)) == (text.strip(), [])


def test_escaped_pairs_are_joined_and_halves_are_no_text() -> None:
    said = "😀 how are you"
    assert said in encodings.decoded(json.dumps(said, ensure_ascii=True).strip('"'))
    assert next(encodings.decoded(f"a {HALF} b")) == "a \ufffd b"
    assert "<b>A" in next(encodings.decoded("&lt;b&gt;&#65;"))


@given(TEXTS, AUDIENCES)
@settings(deadline=None, max_examples=120)
@example(json.dumps("Look: 😀🏴"), Audience.USER)
@example(MANY_DIGITS, Audience.USER)
def test_the_classifier_judges_whatever_it_is_given(text: str, audience: Audience) -> None:
    scores = shipped().scores(text, audience)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    assert (scores <= 1).all()


@given(TEXTS, AUDIENCES)
@settings(deadline=None, max_examples=400)
def test_findings_lie_in_the_text_on_borders_of_characters(text: str, audience: Audience) -> None:
    data = text.encode()
    for finding in found(text, audience):
        assert 0 <= finding.start < finding.end <= len(data)
        assert finding.end <= finding.settled_at + 1 <= len(data) + 1
        data[finding.start : finding.end].decode()
        data[: finding.start].decode()


def found(text: str, audience: Audience = Audience.USER) -> list[Finding]:
    """As a prompt is read: piece by piece."""
    scanners = DETECTORS.scanners(audience)
    findings = [one for piece in pieces(text) for s in scanners for one in s.feed(piece)]
    return findings + [one for scanner in scanners for one in scanner.feed("", final=True)]


def at_once(text: str) -> list[Finding]:
    """As a short prompt is read."""
    return [one for s in DETECTORS.scanners(Audience.USER) for one in s.feed(text, final=True)]


def streamed(text: str) -> None:
    """As an answer is read: what is open is asked after each token."""
    scanners = DETECTORS.scanners(Audience.REPLY)
    for at in range(0, len(text), 4):
        for scanner in scanners:
            scanner.feed(text[at : at + 4])
            scanner.open()


READERS: dict[str, Callable[[str], object]] = {
    "plain": plain,
    "decoded": lambda text: list(encodings.decoded(text)),
    "is_plain": is_plain,
    "in pieces": found,
    "at once": at_once,
    "streamed": streamed,
}
# Characters of the shorter text, fewer where each token costs; how much longer the other one is;
# how much longer it may take: half way, in powers, between linear and quadratic. What takes less
# is not told from noise.
LENGTH, STREAMED_LENGTH, FACTOR, NOISE_S = 2_000, 240, 16, 0.004
TIMES_MAX = FACTOR**1.5


def seconds(read: Callable[[str], object], text: str) -> float:
    """CPU time of this thread."""
    best = float("inf")
    for _ in range(2):
        begun = time.thread_time()
        read(text)
        best = min(best, time.thread_time() - begun)
    return best


def assert_linear(name: str, unit: str) -> None:
    read, length = READERS[name], STREAMED_LENGTH if name == "streamed" else LENGTH
    short, long = (unit * (size // len(unit) + 1) for size in (length, length * FACTOR))
    for _ in range(3):  # a busy machine is forgiven twice
        few, many = seconds(read, short), seconds(read, long)
        if many <= max(few, NOISE_S) * TIMES_MAX:
            return
    raise AssertionError(f"{name} {unit!r}: {few * 1e3:.1f} ms become {many * 1e3:.1f} ms")


@pytest.mark.parametrize("name", READERS)
def test_time_is_linear_in_the_length_of_each_fragment(name: str) -> None:
    for unit in FRAGMENTS:
        assert_linear(name, unit)


@given(UNITS, st.sampled_from(sorted(READERS)))
@settings(deadline=None, max_examples=60, derandomize=True)
@example("\u0315\u0300", "plain")
@example("a\u0315\u0300", "at once")
def test_time_is_linear_in_the_length_of_what_repeats(unit: str, name: str) -> None:
    assert_linear(name, unit)


def test_the_library_of_telephone_plans_is_asked_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def counted(text: str, before: str, *, asked_now: bool) -> list[tuple[int, int]]:
        asked.append(asked_now)
        return list(phones(text, before, asked=asked_now))

    monkeypatch.setattr(
        "safety_svc.detectors.personal.phones",
        lambda text, before, *, asked: counted(text, before, asked_now=asked),
    )
    numbers = [f"(415) 555-{number:04d}" for number in range(1_000, 1_400)]
    findings = at_once(", ".join(numbers))
    assert len(asked) == len(numbers)
    assert sum(asked) == 32
    # The form alone finds the others: they are masked too.
    assert len(findings) == len(numbers)
