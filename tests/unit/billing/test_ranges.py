"""Sets of positions against Python's own sets."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from billing_svc import ranges

spans = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1]))


def covered_by(parts: list[tuple[int, int]]) -> ranges.Ranges:
    covered: ranges.Ranges = ()
    for first, end in parts:
        covered = ranges.add(covered, first, end)
    return covered


def positions(covered: ranges.Ranges) -> list[int]:
    return [position for first, end in covered for position in range(first, end)]


@given(st.lists(spans, max_size=8))
def test_add_is_union_sorted_and_untouching(parts: list[tuple[int, int]]) -> None:
    covered = covered_by(parts)
    assert positions(covered) == sorted({p for first, end in parts for p in range(first, end)})
    assert all(left[1] < right[0] for left, right in itertools.pairwise(covered))
    assert ranges.size(covered) == len(positions(covered))


@given(st.lists(spans, max_size=8), spans)
def test_missing_is_difference(parts: list[tuple[int, int]], span: tuple[int, int]) -> None:
    covered = covered_by(parts)
    gaps = ranges.missing(covered, *span)
    assert positions(gaps) == [p for p in range(*span) if p not in positions(covered)]


@given(st.lists(spans, max_size=8), st.integers(0, 60))
def test_take_and_skip_are_the_two_parts(parts: list[tuple[int, int]], count: int) -> None:
    covered = covered_by(parts)
    assert positions(ranges.take(covered, count)) == positions(covered)[:count]
    assert positions(ranges.skip(covered, count)) == positions(covered)[count:]


def test_an_empty_span_misses_nothing() -> None:
    assert ranges.missing(((0, 3),), 2, 2) == ()
    assert ranges.missing((), 0, 0) == ()
