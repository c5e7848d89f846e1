"""The statistics of the benchmarks: pure functions of measured values."""

import math
from collections.abc import Iterable, Sequence


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of them do not exceed; nan for none.

    The nearest-rank definition: always one of the values, never a mean of two.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns as wide as their widest cell; the first one to the left."""
    cells = [head, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )


def shown(value: float, digits: int = 1) -> str:
    """A figure for people; "–" where there is none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def without_nan(value: object) -> object:
    """The same with None in place of nan, which JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
