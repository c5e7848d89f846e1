"""Scanners behind the prefilter find, hold and release what they do without it."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from safety_svc.detectors.base import Audience, Category, Finding, Open, Scanner
from safety_svc.detectors.prefilter import Prefiltered
from safety_svc.detectors.rulebook import Detectors, house_rules
from tests.unit.safety.scanning import cut
from tests.unit.safety.test_detectors import PLACES, TEXTS
from tests.unit.safety.test_screen import PERSONAL_TEXTS
from tests.unit.safety.texts import texts

TEXT_COUNT, LENGTH_MAX = 2_000, 400
# What somebody acts on: nothing; what the shipped policy does; everything.
HELD = (frozenset[str](), frozenset({"card_number", "secret_format", "street_address"}), None)
# A word that is a finding by itself.
TERM = "nightjar"
DETECTORS = Detectors(house_rules(), {Category.PRIVACY: [TERM]})
Seen = list[tuple[list[Finding], Open]]


def scan(scanners: tuple[Scanner, ...], pieces: list[str]) -> Seen:
    """After each piece: what was found, and what is open."""
    seen: Seen = []
    for number, piece in enumerate(pieces):
        final = number == len(pieces) - 1
        found = [finding for one in scanners for finding in one.feed(piece, final=final)]
        opened = [one.open() for one in scanners]
        strong, weak = (min(each) for each in zip(*opened, strict=True))
        seen.append((sorted(found), Open() if final else Open(strong, weak)))
    return seen


def check(pieces: list[str], held: frozenset[str] | None) -> None:
    (behind,) = DETECTORS.scanners(Audience.REPLY, held)
    (other,) = DETECTORS.scanners(Audience.REPLY, held)
    assert isinstance(other, Prefiltered)
    assert scan((behind,), pieces) == scan(other._scanners, pieces), pieces


def test_thousands_of_texts_in_pieces_of_any_size() -> None:
    chance = random.Random(5)
    for text in texts(TEXT_COUNT, seed=11):
        text, size = text[:LENGTH_MAX], chance.choice([1, 2, 3, 4, 5, 8, 16, 64, 200])
        pieces = [*(text[at : at + size] for at in range(0, len(text), size)), ""]
        check(pieces, chance.choice(HELD))


@given(st.one_of(TEXTS, PERSONAL_TEXTS), PLACES)
@settings(deadline=None, max_examples=200)
@example("We live at Hauptstraße 12a, or 12 Main Street, Springfield, IL 62704 now.", [3, 15, 40])
@example("the best way to kill someone. It is the card 4111 1111 1111 1111 of ours", [9, 30, 50])
@example("my api key for staging is x7Kp2Lq9Zr4Tv8Wm and s", [12, 27])
@example("see ::1 and 2001:4860:4860::8888 or call me on 0490 75 40 81", [8, 12, 30])
@example("x" * 70 + " bomb " + "y" * 49 + "@b.de a@b.de", [20, 72, 130])
def test_any_text_in_any_pieces(text: str, places: list[int]) -> None:
    for held in HELD:
        check([*cut(text, places), ""], held)
        check([*text, ""], held)
    check([text], None)


LONG = st.lists(
    st.sampled_from(["k" * 60, "x" * 43, "x" * 20, TERM, ".", "-", "/", " ", "a@b.de", "4111"]),
    max_size=8,
).map("".join)


@given(LONG, PLACES)
@settings(deadline=None, max_examples=200)
@example("k" * 60 + TERM + "." + "x" * 43 + "yes and", [108, 109])
def test_long_words(text: str, places: list[int]) -> None:
    check([*cut(text, places), ""], None)
    check([*text, ""], None)


def test_scanners_sleep_over_ordinary_text() -> None:
    (scanners,) = DETECTORS.scanners(Audience.REPLY, frozenset())
    assert isinstance(scanners, Prefiltered)
    for piece in ("so ", "we went", " home and", " sat down, quite", " happy "):
        assert scanners.feed(piece) == []
        assert not scanners._awake
    scanners.feed("with 4")
    assert scanners._awake
    scanners.feed(" of them and ")
    scanners.feed("more ")
    assert not scanners._awake
