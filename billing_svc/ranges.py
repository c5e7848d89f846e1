"""Sets of token positions as sorted, disjoint, non-touching half-open ranges."""

from collections.abc import Iterable

# ((0, 3), (7, 9)) is the positions 0, 1, 2, 7, 8.
Ranges = tuple[tuple[int, int], ...]


def add(covered: Ranges, first: int, end: int) -> Ranges:
    """`covered` with the positions of [first, end)."""
    before = [r for r in covered if r[1] < first]
    after = [r for r in covered if r[0] > end]
    touching = covered[len(before) : len(covered) - len(after)]
    if touching:
        first, end = min(first, touching[0][0]), max(end, touching[-1][1])
    return (*before, (first, end), *after)


def missing(covered: Ranges, first: int, end: int) -> Ranges:
    """The positions of [first, end) that `covered` does not have."""
    gaps: list[tuple[int, int]] = []
    for begin, stop in covered:
        if begin > first:
            gaps.append((first, min(begin, end)))
        first = max(first, stop)
        if first >= end:
            break
    else:
        gaps.append((first, end))
    return tuple(gap for gap in gaps if gap[0] < gap[1])


def size(covered: Iterable[tuple[int, int]]) -> int:
    """How many positions."""
    return sum(end - first for first, end in covered)


def skip(covered: Ranges, count: int) -> Ranges:
    """Without the first `count` positions."""
    left: list[tuple[int, int]] = []
    for first, end in covered:
        passed = min(count, end - first)
        count -= passed
        if first + passed < end:
            left.append((first + passed, end))
    return tuple(left)


def take(covered: Ranges, count: int) -> Ranges:
    """The first `count` positions."""
    taken: list[tuple[int, int]] = []
    for first, end in covered:
        if count <= 0:
            break
        taken.append((first, min(end, first + count)))
        count -= end - first
    return tuple(taken)
