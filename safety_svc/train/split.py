"""Splits without leaks: near duplicates stay together.

Texts are compared by MinHash (Broder 1997) over runs of three words, with locality-sensitive
hashing in bands (Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3). Texts
whose signatures agree in at least half of their places, so about half of the shingles, form one
group; a group falls into one split by its hash.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

SIGNATURE_SIZE, BAND_SIZE = 24, 3
ALIKE_MIN = 0.5
# Of a hundred groups: the rest trains.
DEV_PERCENT, TEST_PERCENT = 8, 12
# Texts compared with each member of a bucket at most.
BUCKET_MAX = 200

_WORD = re.compile(r"[^\W_]+")


class Split(StrEnum):
    """What a row serves for."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"
    HELD = "held"  # of sources that nothing is trained on


def split_of(group: str) -> Split:
    """The split of a group; the same in every run."""
    place = int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") % 100
    if place < TEST_PERCENT:
        return Split.TEST
    return Split.DEV if place < TEST_PERCENT + DEV_PERCENT else Split.TRAIN


def groups(texts: Sequence[str]) -> list[str]:
    """A group name for each text; alike texts have the same one."""
    signatures = np.stack([signature(text) for text in texts])
    parent = list(range(len(texts)))
    for start in range(0, SIGNATURE_SIZE, BAND_SIZE):
        buckets: dict[bytes, list[int]] = defaultdict(list)
        for index, band in enumerate(signatures[:, start : start + BAND_SIZE]):
            bucket = buckets[band.tobytes()]
            for other in bucket[:BUCKET_MAX]:
                if _root(parent, index) == _root(parent, other):
                    continue
                if np.mean(signatures[index] == signatures[other]) >= ALIKE_MIN:
                    parent[_root(parent, index)] = _root(parent, other)
            bucket.append(index)
    names = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    return [names[_root(parent, index)] for index in range(len(texts))]


def signature(text: str) -> NDArray[np.uint64]:
    """MinHash signature of `text`, shape [SIGNATURE_SIZE]."""
    words = _WORD.findall(text.lower())
    shingles = {" ".join(words[i : i + 3]) for i in range(max(1, len(words) - 2))}
    hashed = [hashlib.blake2b(one.encode(), digest_size=8).digest() for one in sorted(shingles)]
    values = np.frombuffer(b"".join(hashed), dtype=np.uint64)
    # Multiply-shift hashing: wrap-around of the product is meant.
    least: NDArray[np.uint64] = (values[:, None] * _FACTORS + _SHIFTS).min(axis=0)
    return least


_random = np.random.default_rng(7)
_FACTORS = _random.integers(1, 1 << 63, SIGNATURE_SIZE, dtype=np.uint64) | np.uint64(1)
_SHIFTS = _random.integers(0, 1 << 63, SIGNATURE_SIZE, dtype=np.uint64)


def _root(parent: list[int], index: int) -> int:
    while parent[index] != index:
        parent[index] = parent[parent[index]]
        index = parent[index]
    return index
