"""Masks in answers that are JSON: they leave JSON, with the same keys, or the answer is halted."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safety_svc import policy_file
from safety_svc.detectors.base import Audience, Category
from safety_svc.detectors.rulebook import Detectors, house_rules
from safety_svc.json_text import JsonText
from safety_svc.policy import Action, Direction
from safety_svc.screen import Halted, Passed, Released, ReplyScreener
from safety_svc.wire import masks_of
from tests.unit.safety.scanning import cut, edited
from tests.unit.safety.test_detectors import PLACES

# Quotes and a backslash in what stands there instead; a term that may reach over a border.
POLICY = policy_file.read(
    edited() + 'replacement: "<\\"{type}\\" \\\\ gone>"\n'
    "accounts: {masked: {reply: {email_address: redact, phone_number: redact, privacy: redact,"
    " ip_address: redact, street_address: redact}}}\n",
    "p.yaml",
)
DETECTORS = Detectors(house_rules(), {Category.PRIVACY: ["project nightjar"]})
REGIME = POLICY.regime("free", account_id="masked")
WORDS = st.sampled_from(
    [
        *("jo@example.com", "4111 1111 1111 1111", "8.8.8.8", "+44 20 8366 1177", "Project"),
        *("Nightjar", "Project Nightjar", "12 Main Street", "call me on 0490 75 40 81", "\n"),
        *("\t", '"', "\\", "é", "😀", " ", ", ", ": ", "{", "}", "[", "]", "a", "1", "n", "u0041"),
        "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl",
    ]
)
STRINGS = st.lists(WORDS, max_size=5).map("".join)
NUMBERS = st.sampled_from([0, 1, -2.5, 4111111111111111, 447700900123])
DOCUMENTS = st.recursive(
    STRINGS | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)
WRITERS = st.sampled_from([(True, None), (False, None), (True, 1)])


def streamed(cuts: list[str]) -> str | Halted:
    """What a caller that masks shows of an answer; or how it was halted."""
    direction = Direction.REPLY
    acted_on, redacted = REGIME.acted_on(direction), REGIME.redacted(direction)
    scanners = DETECTORS.scanners(Audience.REPLY, acted_on, redacted)
    screener = ReplyScreener(REGIME, scanners, is_json=True)
    data, at, shown = "".join(cuts).encode(), 0, b""
    for outcome in [*(screener.delta(piece, 1) for piece in cuts), screener.end()]:
        if outcome is None:
            continue
        if isinstance(outcome, Halted):
            assert outcome.judgement.action is Action.BLOCK
            return outcome
        assert isinstance(outcome, Released | Passed)
        end = outcome.offset if isinstance(outcome, Released) else len(data)
        for mask in masks_of(outcome.masks, POLICY, is_json=True):
            assert at <= mask.start_offset < mask.end_offset <= end
            shown += data[at : mask.start_offset] + mask.replacement.encode()
            at = mask.end_offset
        shown, at = shown + data[at:end], end
    return shown.decode()


def shape(value: Any) -> Any:
    """A document without the text of its values."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return "" if isinstance(value, str) else value


@given(DOCUMENTS, WRITERS, PLACES)
@settings(deadline=None, max_examples=500)
@example({"mail": "\njo@example.com\n", "a": ["4111 1111 1111 1111"]}, (True, None), [3, 9])
@example(["Project", "Nightjar"], (True, None), [])
@example({"jo@example.com": 1}, (True, None), [])
@example({"card": 4111111111111111}, (True, None), [])
@example("\n8.8.8.8\\", (True, None), [2])
def test_a_masked_document_is_one_with_the_same_keys_or_halted(
    document: Any, writer: tuple[bool, int | None], places: list[int]
) -> None:
    text = json.dumps(document, ensure_ascii=writer[0], indent=writer[1])
    whole = streamed([text])
    for cuts in (cut(text, places), list(text)):
        assert streamed([piece for piece in cuts if piece]) == whole
    if not isinstance(whole, Halted):
        assert shape(json.loads(whole)) == shape(document)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"a": "x jo@example.com"}, '{"a": "x <\\"email_address\\" \\\\ gone>"}'),
        ({"a": "x\njo@example.com\n"}, '{"a": "x<\\"email_address\\" \\\\ gone>\\n"}'),
        ({"a": "Ask Project Nightjar."}, '{"a": "Ask <\\"policy_terms\\" \\\\ gone>."}'),
        ({"4111 1111 1111 1111": 1}, None),
        ({"a": 4111111111111111}, None),
        (["Project", "Nightjar"], None),
        ([["x"], {"a": {"b": "no"}}], '[["x"], {"a": {"b": "no"}}]'),
    ],
)
def test_what_is_masked_and_what_is_halted(document: Any, expected: str | None) -> None:
    shown = streamed([json.dumps(document)])
    assert isinstance(shown, Halted) if expected is None else shown == expected


def test_nothing_of_what_is_halted_has_left() -> None:
    text = json.dumps({"fine": "yes", "card": 4111111111111111})
    halted = streamed(list(text))
    assert isinstance(halted, Halted)
    assert halted.offset == text.index("4111")


def test_an_escape_is_replaced_whole() -> None:
    text = JsonText()
    for piece in ['{"a\\n": "b\\', "u00", '41c\\\\", ', '"d": ["\\n', 'x"]']:
        text.feed(piece)
    said = '{"a\\n": "b\\u0041c\\\\", "d": ["\\nx"]'
    escape, last = said.index("\\u"), said.index("\\nx")
    assert text.span(escape + 1, escape + 7) == (escape, escape + 7)
    assert text.span(escape - 1, escape + 2) == (escape - 1, escape + 6)
    assert text.span(last + 1, last + 3) == (last, last + 3)
    assert text.span(2, 3) is None  # a key
    assert text.span(escape, said.index('", ') + 1) is None  # its closing quote
    assert [text.whole(escape + more) for more in (0, 3, 6)] == [escape, escape, escape + 6]
    half = JsonText()
    half.feed('"a\\')
    assert half.whole(3) == 2
