"""The C interface of the library, as in cpp/fast.cpp, and one class for each of its parts.

Calls take 2 to 8 microseconds and keep Python's global lock: they are made where the text is, in
the loop, and need no thread. The classes are made by their `open`, which returns None where the
library is missing.
"""

import ctypes
import functools
import sys
import weakref
from collections.abc import Iterable, Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safety_svc.fast.build import FAST

BUILD_COMMAND = "python -m safety_svc.fast.build"
_COUNT_LIMIT = 1 << 20  # as in cm_linear_sum
_UTF32 = f"utf-32-{'le' if sys.byteorder == 'little' else 'be'}"
_SIGNATURES = {
    "cm_linear_open": (c_void_p, [c_void_p]),
    "cm_linear_sum": (c_int64, [c_void_p, c_char_p, c_size_t]),
    "cm_linear_close": (None, [c_void_p]),
    "cm_plain_open": (c_void_p, [c_char_p, c_char_p]),
    "cm_plain_is_all": (c_int, [c_void_p, c_char_p, c_size_t]),
    "cm_plain_close": (None, [c_void_p]),
    "cm_vocabulary_open": (c_void_p, [c_int32]),
    "cm_vocabulary_add": (None, [c_void_p, c_char_p, c_int32]),
    "cm_vocabulary_pieces": (c_int, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "cm_vocabulary_close": (None, [c_void_p]),
}


@functools.cache
def load() -> ctypes.PyDLL | None:
    """The library; None when it is not built, or was built for another machine."""
    try:
        library = ctypes.PyDLL(str(FAST.path()))
    except OSError:
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Handle:
    """Something that the library made, given back to it when nobody holds it any more."""

    def __init__(self, library: ctypes.PyDLL, part: str, *arguments: object) -> None:
        self.handle = getattr(library, f"cm_{part}_open")(*arguments)
        if not self.handle:
            raise MemoryError(f"no memory for the {part} of {FAST.path().name}")
        weakref.finalize(self, getattr(library, f"cm_{part}_close"), self.handle)


class FastLinear(_Handle):
    """The weights of a linear model over `features.features`."""

    @classmethod
    def open(cls, weights: NDArray[np.int8]) -> "FastLinear | None":
        """A copy of `weights`, shape [BUCKETS]."""
        library = load()
        return cls(library, weights) if library else None

    def __init__(self, library: ctypes.PyDLL, weights: NDArray[np.int8]) -> None:
        data = np.ascontiguousarray(weights, np.int8)
        super().__init__(library, "linear", data.ctypes.data)
        self._sum = library.cm_linear_sum

    def sum(self, text: str) -> tuple[int, int]:
        """(sum of the weights of the distinct features of `text`, how many they are)."""
        data = text.lower().encode()
        steps, count = divmod(self._sum(self.handle, data, len(data)), _COUNT_LIMIT)
        return steps, count


class FastPlain(_Handle):
    """Tells most texts that are plain and have no other readings."""

    @classmethod
    def open(cls, kinds: bytes, common: Iterable[str]) -> "FastPlain | None":
        """See PlainText in plain.h: `kinds` of the characters below 65,536, the common words."""
        library = load()
        return cls(library, kinds, common) if library else None

    def __init__(self, library: ctypes.PyDLL, kinds: bytes, common: Iterable[str]) -> None:
        words = "".join(f"{word}\0" for word in common).encode() + b"\0"
        super().__init__(library, "plain", kinds, words)
        self._is_all = library.cm_plain_is_all

    def is_all(self, text: str) -> bool:
        """True only when `plain(text)` is `text.strip()` and has no readings."""
        return bool(self._is_all(self.handle, text.encode(_UTF32, "surrogatepass"), len(text)))


class Pieces(NamedTuple):
    """Tokens of a text: their ids, and the characters [start, end) of each."""

    ids: list[int]
    starts: list[int]
    ends: list[int]


class FastVocabulary(_Handle):
    """The vocabulary of a BERT tokenizer that lowers its text."""

    @classmethod
    def open(
        cls, vocabulary: Mapping[str, int], unknown: int, special: Iterable[str]
    ) -> "FastVocabulary | None":
        """See Vocabulary in wordpiece.h; texts with one of `special` are left to others."""
        library = load()
        return cls(library, vocabulary, unknown, special) if library else None

    def __init__(
        self,
        library: ctypes.PyDLL,
        vocabulary: Mapping[str, int],
        unknown: int,
        special: Iterable[str],
    ) -> None:
        super().__init__(library, "vocabulary", unknown)
        self._special = tuple(special)
        self._pieces = library.cm_vocabulary_pieces
        for piece, number in vocabulary.items():
            if piece.isascii():
                library.cm_vocabulary_add(self.handle, piece.encode(), number)

    def pieces(self, text: str) -> Pieces | None:
        """The tokens of `text`; None when it is not printable ASCII, or holds a special one."""
        if not text.isascii() or any(one in text for one in self._special):
            return None
        size = len(text)
        places = (c_int32 * (3 * size))()
        count = self._pieces(self.handle, text.encode(), size, places)
        if count < 0:
            return None
        ids, starts, ends = (places[at : at + count] for at in (0, size, 2 * size))
        return Pieces(ids, starts, ends)
