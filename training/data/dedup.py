"""Removes copies: exact ones by hash, near ones by MinHash over five-word shingles.

MinHash and banding after Broder, "On the resemblance and containment of documents" (1997), and
Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from training.data.evaluation import normalised

SHINGLE_LENGTH = 5
BAND_COUNT, ROWS_PER_BAND = 16, 4  # two texts of similarity 0.8 meet in a band 99.98 % of the time
SIMILARITY_MIN = 0.7
# Multiply-shift hashing (Dietzfelbinger and others, 1997): odd 64-bit factors, overflow intended.
_rng = np.random.default_rng(20_240_229)
_FACTORS = _rng.integers(0, 1 << 63, BAND_COUNT * ROWS_PER_BAND, dtype=np.uint64) * 2 + 1
_OFFSETS = _rng.integers(0, 1 << 63, BAND_COUNT * ROWS_PER_BAND, dtype=np.uint64)


def shingles(text: str) -> NDArray[np.uint64]:
    """Distinct 32-bit hashes of all five-word sequences; of the whole text if it is shorter."""
    words = normalised(text).encode().split()
    count = max(1, len(words) - SHINGLE_LENGTH + 1)
    hashes = {zlib.crc32(b" ".join(words[i : i + SHINGLE_LENGTH])) for i in range(count)}
    return np.fromiter(hashes, np.uint64, len(hashes))


def signature(hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The smallest value of each of 64 hash functions, `[64]`."""
    mixed = hashed[None, :] * _FACTORS[:, None] + _OFFSETS[:, None]
    smallest: NDArray[np.uint64] = mixed.min(axis=1)
    return smallest


def similarity(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """Share of the hash functions that agree: an estimate of the Jaccard similarity."""
    return float(np.mean(first == second))


class Deduplicator:
    """Remembers every text that was kept; a text is a copy if it resembles one of them."""

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._bands: dict[tuple[int, bytes], list[int]] = {}
        self._signatures: list[NDArray[np.uint64]] = []

    def is_copy(self, text: str) -> bool:
        """True for a copy; any other text is remembered."""
        plain = normalised(text)
        if plain in self._exact:
            return True
        signed = signature(shingles(text))
        keys = list(self._keys(signed))
        near = {index for key in keys for index in self._bands.get(key, ())}
        if any(similarity(signed, self._signatures[i]) >= SIMILARITY_MIN for i in near):
            return True
        self._exact.add(plain)
        for key in keys:
            self._bands.setdefault(key, []).append(len(self._signatures))
        self._signatures.append(signed)
        return False

    @staticmethod
    def _keys(signed: NDArray[np.uint64]) -> Iterator[tuple[int, bytes]]:
        for band in range(BAND_COUNT):
            start = band * ROWS_PER_BAND
            yield band, signed[start : start + ROWS_PER_BAND].tobytes()
