"""Which rows the second and the third pass learn from."""

import random
from collections.abc import Mapping, Sequence

from safety_svc.train.held import HELD_SOURCES
from safety_svc.train.row import Row

# Of the rows of the first fit's sources so many are seen again by the second one.
REHEARSED_SHARE = 0.12
# How often the third pass sees a row of a kind; of what is not named, the last. More of what a
# short fit learns last: instructions planted in documents, harm and harmless look-alikes in other
# languages, blatant requests. Less of what there is plenty of.
THIRD_PASS_SHARES: Mapping[str, float] = {
    "injection": 2.0,
    "foreign_harmless": 4.0,
    "blatant": 1.5,
    "own": 1.5,
    "foreign": 1.2,
    "lookalike": 1.2,
    "over-refusal": 1.0,
    "group-statement": 1.0,
    "comment": 1.0,
    "jailbreak": 0.6,
    "abusive": 0.3,
    "hate": 0.3,
    "identity": 0.3,
    "tweet": 0.3,
}
THIRD_PASS_SHARE = 0.6
# Clean documents, of any kind: what planted ones must be told from.
THIRD_PASS_DOCUMENT_SHARE = 1.5


def continued(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Of all rows those that the second pass learns from: of sources held out, and a few others."""
    return [row for row in rows if row.source in HELD_SOURCES or rng.random() < REHEARSED_SHARE]


def sharpened(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Of all rows those of the third pass, each none, one or more times, see the shares above."""
    return [row for row in rows for _ in range(int(_share(row) + rng.random()))]


def _share(row: Row) -> float:
    if row.document and row.unsafe == 0:
        return THIRD_PASS_DOCUMENT_SHARE
    return THIRD_PASS_SHARES.get(row.kind.removesuffix("_turns"), THIRD_PASS_SHARE)
