"""Documents packed into a memory-mapped stream of tokens, read in blocks of a fixed length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def pack(documents: Iterable[list[int]], path: Path) -> dict[str, int | str]:
    """Writes all documents as one stream of uint16; a `.json` beside it says how many there are.

    Returns:
        documents, tokens, and the sha256 of the stream.

    Raises:
        ValueError: a token id does not fit into 16 bits.
    """
    count = tokens = 0
    digest = hashlib.sha256()
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as out:
        for ids in documents:
            if ids and max(ids) > np.iinfo(np.uint16).max:
                raise ValueError("packed files hold 16-bit token ids; use a smaller vocabulary")
            piece = np.asarray(ids, dtype=np.uint16).tobytes()
            out.write(piece)
            digest.update(piece)
            count, tokens = count + 1, tokens + len(ids)
    temporary.replace(path)
    said: dict[str, int | str] = {
        "documents": count,
        "tokens": tokens,
        "sha256": digest.hexdigest(),
    }
    path.with_suffix(".json").write_text(json.dumps(said) + "\n", encoding="utf-8")
    return said


class Blocks:
    """Blocks of `length` tokens of a packed file, in an order that a seed shuffles anew each epoch.

    The position in the data is a single number: how many blocks were taken since the beginning.
    """

    def __init__(self, path: Path, length: int, seed: int) -> None:
        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self._length, self._seed = length, seed
        self.count = len(self._tokens) // length
        self.sha256 = str(json.loads(path.with_suffix(".json").read_text())["sha256"])
        if not self.count:
            raise ValueError(f"{path} has {len(self._tokens)} tokens, fewer than one block")
        self._epoch, self._order = -1, np.arange(self.count)

    def take(self, position: int) -> NDArray[np.int64]:
        """The block at `position` >= 0, `[length]`."""
        epoch, index = divmod(position, self.count)
        if epoch != self._epoch:
            self._order = np.random.default_rng((self._seed, epoch)).permutation(self.count)
            self._epoch = epoch
        start = int(self._order[index]) * self._length
        return self._tokens[start : start + self._length].astype(np.int64)

    def in_order(self, index: int) -> NDArray[np.int64]:
        """The block `index` of the file, `[length]`."""
        start = index * self._length
        return self._tokens[start : start + self._length].astype(np.int64)
