"""Hashed n-grams of a text, for the first stage (Weinberger et al. 2009, "Feature hashing").

Features are words, pairs of words and runs of 3 to 5 characters within padded words, in lower
case. Hashes are polynomials over bytes modulo 2^64, so that all n-grams of a text come out of a
few array operations: about 0.1 ms for 600 characters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKET_BITS = 17
BUCKETS = 1 << BUCKET_BITS
CHARACTERS = (3, 4, 5)
# Bytes of a text that are looked at.
LENGTH_MAX = 4_096

_BASE = 0x9E3779B97F4A7C15 | 1
_MASK = (1 << 64) - 1
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_TOP = np.uint64(64 - BUCKET_BITS)
# Separates kinds of features: the same letters as word and as n-gram are two features.
_KINDS = np.array([0x51, 0x72, 0x93, 0xB4, 0xD5, 0xF6], np.uint64) * np.uint64(_BASE)


def _powers(count: int) -> NDArray[np.uint64]:
    values = [1]
    for _ in range(count - 1):
        values.append(values[-1] * _BASE & _MASK)
    return np.array(values, np.uint64)


_POWERS = _powers(LENGTH_MAX + 8)
_SPACE = np.uint8(32)
# The first characters that take two, three and four bytes in UTF-8.
_LONGER_FROM = np.array([0x80, 0x800, 0x10000], np.uint32)
# Letters and digits and every byte of a character beyond ASCII belong to words.
_IN_WORD = np.zeros(256, bool)
_IN_WORD[[*range(48, 58), *range(97, 123), *range(128, 256)]] = True


def features(text: str) -> NDArray[np.int64]:
    """Distinct buckets of `text`, sorted, each in [0, BUCKETS); empty for a text without words."""
    return np.unique(_found(text.lower().encode()).buckets)


def features_of(text: str, spans: Sequence[tuple[int, int]]) -> list[NDArray[np.int64]]:
    """The buckets of `features(text[start:end])`, unsorted, for each span in order of their starts.

    Spans should begin and end between words: of a word that is cut, only the n-grams inside the
    span count. What several spans share is hashed once.
    """
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals become two letters
        return [features(text[start:end]) for start, end in spans]
    data, places = lower.encode(), _byte_places(lower)
    several: list[NDArray[np.int64]] = []
    reach = 0
    for start, end in spans:
        first, last = int(places[start]), int(places[end])
        if not several or last > reach:
            base, reach = first, first + LENGTH_MAX - 2
            found = _found(data[base:reach])
            order = np.argsort(found.starts, kind="stable")
            starts, ends, buckets = (part[order] for part in found)
            earlier = _earlier(buckets)
        low, high = np.searchsorted(starts, (first - base, last - base + 1))
        here = (ends[low:high] <= last - base + 2) & (earlier[low:high] < low)
        several.append(buckets[low:high][here])
    return several


def _earlier(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place the last one before it with the same value, or -1."""
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    found = np.full(len(values), -1)
    found[order[1:][same]] = order[:-1][same]
    return found


def _byte_places(text: str) -> NDArray[np.int64]:
    """Where each character of `text` begins in UTF-8, and where the last one ends."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + np.searchsorted(_LONGER_FROM, codes, side="right")
    return np.concatenate([[0], np.cumsum(sizes)])


class _Found(NamedTuple):
    """Features of a text: the bytes [start, end) of each, the spaces around it included where it
    has them, in the text with a space before it; and its bucket.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    buckets: NDArray[np.int64]


def _found(text: bytes) -> _Found:
    data = np.frombuffer(b" " + text[: LENGTH_MAX - 2] + b" ", np.uint8)
    inside = _IN_WORD[data]
    letters = np.where(inside, data, _SPACE).astype(np.uint64)
    size = len(letters)
    # Weighted prefix sums: the hash of a run is a difference, moved to the same power.
    sums = np.zeros(size + 1, np.uint64)
    np.cumsum(letters * _POWERS[:size], out=sums[1:])
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return _Found(*(np.zeros(0, np.int64) for _ in _Found._fields))
    words = _hashes(sums, starts, ends)
    # With the space at either end, as the n-grams have it.
    before, after = starts - 1, ends + 1
    found = [(before, after, words + _KINDS[0])]
    if len(words) > 1:
        pairs = words[:-1] * np.uint64(3) + words[1:] * np.uint64(7) + _KINDS[1]
        found.append((before[:-1], after[1:], pairs))
    for kind, length in enumerate(CHARACTERS, start=2):
        if size >= length:
            begin = np.arange(size - length + 1)
            # An n-gram may hold the space at either end, but lies in one word.
            middle = inside[1 : size - length + 2].copy()
            for offset in range(2, length - 1):
                middle &= inside[offset : offset + size - length + 1]
            begin = begin[middle]
            hashes = _hashes(sums, begin, begin + length) + _KINDS[kind]
            found.append((begin, begin + length, hashes))
    begins, stops, hashes = (np.concatenate(part) for part in zip(*found, strict=True))
    return _Found(begins, stops, _buckets(hashes))


def _hashes(
    sums: NDArray[np.uint64], starts: NDArray[np.intp], ends: NDArray[np.intp]
) -> NDArray[np.uint64]:
    """Hashes of the runs [start, end), wherever they stand."""
    return (sums[ends] - sums[starts]) * _POWERS[LENGTH_MAX - starts]


def _buckets(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    mixed = (hashes ^ (hashes >> _SHIFT)) * _MIX
    return (mixed >> _TOP).astype(np.int64)
