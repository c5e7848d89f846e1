"""Page tokens open the page they were made for, and no other."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversation_svc.page_token import DIGEST_BYTE_COUNT, BadPageTokenError, page_token, place_of

names = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3)
parts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1f"), max_size=20),
    min_size=1,
    max_size=3,
)


@settings(deadline=None)
@given(names, parts)
def test_a_token_gives_its_place_back(name: list[str], place: list[str]) -> None:
    token = page_token(name, place)
    assert token.isascii()
    if len(token) <= 256:
        assert place_of(name, token, [str] * len(place)) == tuple(place)


@settings(deadline=None)
@given(names, names, parts)
def test_a_token_of_another_list_is_refused(
    name: list[str], other: list[str], place: list[str]
) -> None:
    if name != other:
        with pytest.raises(BadPageTokenError):
            place_of(other, page_token(name, place), [str] * len(place))


@settings(deadline=None)
@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda b: base64.b64encode(b).decode()))
def test_noise_is_refused(token: str) -> None:
    with pytest.raises(BadPageTokenError):
        place_of(["threads", "a"], token, [str])


def test_places_that_cannot_be_are_refused() -> None:
    name = ["messages", "a", "t"]
    for place, parsers in [(["x"], [int]), (["1", "2"], [int]), (["1"], [int, int])]:
        with pytest.raises(BadPageTokenError):
            place_of(name, page_token(name, place), parsers)
    with pytest.raises(BadPageTokenError):
        place_of(name, "A" * 257, [int])
    assert DIGEST_BYTE_COUNT >= 12
