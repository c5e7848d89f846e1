"""Page tokens open the page they were made for, and no other."""

import base64
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.chassis.errors import MeshError
from mesh.chassis.pages import TOKEN_CHARACTER_COUNT_MAX, cut, page_size, page_token, place_of

names = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3)
parts = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1f"), max_size=20),
    min_size=1,
    max_size=3,
)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(MeshError) as caught:
        yield
    assert caught.value.reason == "BAD_PAGE_TOKEN"
    assert caught.value.metadata == {"field": "page_token"}


@settings(deadline=None)
@given(names, parts)
def test_a_token_gives_its_place_back(name: list[str], place: list[str]) -> None:
    token = page_token(name, place)
    assert token.isascii()
    if len(token) <= TOKEN_CHARACTER_COUNT_MAX:
        assert place_of(name, token, [str] * len(place)) == tuple(place)


@settings(deadline=None)
@given(names, names, parts)
def test_a_token_of_another_list_is_refused(
    name: list[str], other: list[str], place: list[str]
) -> None:
    if name != other:
        with refused():
            place_of(other, page_token(name, place), [str] * len(place))


@settings(deadline=None)
@given(
    st.text(min_size=1, max_size=80)
    | st.binary(min_size=1, max_size=60).map(lambda b: base64.b64encode(b).decode())
)
def test_noise_is_refused(token: str) -> None:
    with refused():
        place_of(["threads", "a"], token, [str])


def test_places_that_cannot_be_are_refused() -> None:
    name = ["messages", "a", "t"]
    for place, parsers in [(["x"], [int]), (["1", "2"], [int]), (["1"], [int, int])]:
        with refused():
            place_of(name, page_token(name, place), parsers)
    with refused():
        place_of(name, "A" * (TOKEN_CHARACTER_COUNT_MAX + 1), [int])


def test_no_token_is_the_first_page() -> None:
    assert place_of(["threads", "a"], "", [str]) is None


def test_page_sizes() -> None:
    assert page_size(0, 20, 100) == 20
    assert page_size(100, 20, 100) == 100
    for size in (-1, 101):
        with pytest.raises(MeshError, match="from 0 to 100") as caught:
            page_size(size, 20, 100)
        assert caught.value.reason == "BAD_REQUEST"
    assert cut([1, 2, 3], 2) == ([1, 2], True)
    assert cut([1, 2], 2) == ([1, 2], False)
