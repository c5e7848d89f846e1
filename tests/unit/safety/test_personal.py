"""Personal data: what is found, where, and what only looks like it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safety_svc.detectors import kinds
from safety_svc.detectors.base import Audience, Category
from safety_svc.detectors.rulebook import Detectors, house_rules
from tests.unit.safety.scanning import DETECTORS, cut, feed_all, found
from tests.unit.safety.test_detectors import PLACES

FOUND = [
    ("to jo.smith+news@mail.example.co.uk.", "email_address", "jo.smith+news@mail.example.co.uk"),
    ("<müller@büro.example>", "email_address", "müller@büro.example"),
    ("+44 20 8366 1177 is hers", "phone_number", "+44 20 8366 1177"),
    ("ring (415) 555-2671 today", "phone_number", "(415) 555-2671"),
    ("his mobile is 0490 75 40 81", "phone_number", "0490 75 40 81"),
    ("My number: 4155552671", "phone_number", "4155552671"),
    ("IBAN GB82 WEST 1234 5698 7654 32 at the bank", "iban_code", "82 WEST 1234 5698 7654 32"),
    ("DE89370400440532013000", "iban_code", "89370400440532013000"),
    ("ssn 536-22-1234", "us_ssn", "536-22-1234"),
    ("social security number 536 22 1234", "us_ssn", "536 22 1234"),
    ("from 8.8.8.8:53", "ip_address", "8.8.8.8"),
    ("host 2001:4860:4860::8888 answers", "ip_address", "2001:4860:4860::8888"),
    ("at 12 Main Street, Springfield, IL 62704 now", "street_address",
     "12 Main Street, Springfield, IL 62704"),
    ("221B Baker Street is his", "street_address", "221B Baker Street"),
    ("send it to PO Box 8144", "street_address", "PO Box 8144"),
    ("in der Hauptstraße 12a wohnt er", "street_address", "Hauptstraße 12a"),
    ("Calle Mayor 5, Madrid", "street_address", "Calle Mayor 5"),
    ("card 4111-1111-1111-1111!", "card_number", "4111-1111-1111-1111"),
]  # fmt: skip

NOT_FOUND = [
    "the decorator @property and user@localhost",
    "git@github.com:owner/repository.git",
    "a@b, foo@bar",
    "on 2024-05-12 10:30, 12/05/2024 and 1999-12-31",
    "version 1.2.3.4 and python 3.11.4",
    "127.0.0.1, 10.0.0.1, 192.168.1.20, 0.0.0.0 and 255.255.255.255",
    "std::vector, a::b::c and 12:30:45",
    "GB82 WEST 1234 5698 7654 33 has a wrong check digit",
    "666-22-1234, 000-12-3456 and 900-12-3456",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
    "3.14159265358979 and 299792458 and 6.62607015e-34",
    "In 1984 George Orwell was read; 12 Monkeys and 7 Samurai",
    "2 + 2 = 4; (1, 2); [3]; 100 %; $1,234.56",
    "4111111111111112",
    "embassy, switchboard [213] (0) 770-08-2000",
    "commit deadbeefcafe1234567890abcdef1234567890ab",
]


@pytest.mark.parametrize(("line", "kind", "text"), FOUND)
def test_personal_data_is_found_where_it_stands(line: str, kind: str, text: str) -> None:
    spans = {
        (finding.detector, line.encode()[finding.start : finding.end].decode())
        for finding in found(line)
        if finding.category is Category.PRIVACY
    }
    assert spans == {(kind, text)}


@pytest.mark.parametrize("line", NOT_FOUND)
def test_what_only_looks_like_it_is_left_alone(line: str) -> None:
    assert [one for one in found(line) if one.detector in kinds.PERSONAL] == []


def test_every_type_has_a_sample() -> None:
    assert {kind for _, kind, _ in FOUND} == kinds.PERSONAL


PIECES = st.sampled_from([line for line, _, _ in FOUND] + NOT_FOUND + ["GB", "8", ".", "@", "\n"])


@given(st.lists(PIECES | st.text(max_size=4), max_size=6).map("".join), PLACES)
@settings(deadline=None, max_examples=200)
def test_cuts_do_not_matter(text: str, places: list[int]) -> None:
    whole = feed_all(DETECTORS.scanners(Audience.REPLY), [text])
    assert feed_all(DETECTORS.scanners(Audience.REPLY), cut(text, places)) == whole
    assert feed_all(DETECTORS.scanners(Audience.REPLY), list(text)) == whole


def test_allowed_texts_are_no_findings() -> None:
    allowed = ("*@example.org", "4111 1111 1111 1111", "sk-test*", "pipe bomb")
    detectors = Detectors(house_rules(), {}, allowed)
    line = "Help@Example.org, a@example.com, 4111111111111111, 5555 5555 5555 4444, "
    line += "sk-testAb12Cd34Ef56Gh78Ij90Kl and how to make a pipe bomb."
    spans = [
        line.encode()[one.start : one.end].decode()
        for one in feed_all(detectors.scanners(Audience.USER), [line])
    ]
    assert spans == ["a@example.com", "5555 5555 5555 4444"]


def test_nothing_is_held_back_for_types_that_nobody_acts_on() -> None:
    acted_on = DETECTORS.scanners(Audience.REPLY, frozenset({"email_address"}))
    ignored = DETECTORS.scanners(Audience.REPLY, frozenset())
    assert feed_all(acted_on, ["mail jo"]) == feed_all(ignored, ["mail jo"]) == []
    strong = [
        min(scanner.open().strong for scanner in scanners if not scanner.feed("mail jo"))
        for scanners in (
            DETECTORS.scanners(Audience.REPLY, frozenset({"email_address"})),
            DETECTORS.scanners(Audience.REPLY, frozenset()),
        )
    ]
    assert strong[0] == len("mail ")
    assert strong[1] > len("mail jo")
