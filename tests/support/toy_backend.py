"""A back end whose "keys and values" are the token ids themselves.

The logits of a row are a hash of all tokens that it sees through its block table. A wrong table, a
block that was given away too early, a copy that was not made or a draft that was not overwritten
changes the answer, so an answer that equals the one computed alone proves the bookkeeping.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.backend import Step, StepResult

EMPTY = -1


class ToyBackend:
    """Implements `Backend`.

    Args:
        repeat: positions after which a token depends on these and on the newest one only, so that
            answers run in circles and drafts can be right; 0: never.
        poison: a token that makes the rows that see it unsound.
        failing_token: a token whose computation raises.
    """

    name = "toy"
    block_bytes = 64

    def __init__(
        self,
        vocabulary_size: int = 40,
        *,
        repeat: int = 0,
        poison: int | None = None,
        failing_token: int | None = None,
    ) -> None:
        self._size, self._repeat = vocabulary_size, repeat
        self.poison, self.failing_token = poison, failing_token
        self.block_count = 0
        self.row_counts: list[int] = []

    def allocate(self, block_count: int) -> None:
        self.block_count = block_count
        self._cache = np.full((block_count, BLOCK_TOKEN_COUNT), EMPTY, np.int32)

    def step(self, step: Step) -> StepResult:
        rows = len(step.token_ids)
        self.row_counts.append(rows)
        if self.failing_token in step.token_ids:
            raise RuntimeError("the toy fails at this token")
        written: set[int] = set()
        for chunk in range(len(step.chunk_begins)):
            written |= self._write(step, chunk, written)
        logits = np.zeros((len(step.logit_rows), self._size), np.float32)
        sound = np.ones(len(step.chunk_begins), np.bool_)
        for chunk in range(len(step.chunk_begins)):
            begin, end = step.chunk_starts[chunk], step.chunk_starts[chunk + 1]
            last = int(step.chunk_begins[chunk]) + int(end - begin)
            seen = self._read(step.block_tables[chunk], last)
            sound[chunk] = self.poison not in seen
            for index, row in enumerate(step.logit_rows):
                if begin <= row < end:
                    visible = seen[: int(step.chunk_begins[chunk]) + int(row - begin) + 1]
                    logits[index] = self._logits(visible)
        return StepResult(logits, logits.argmax(1).astype(np.int32), sound)

    def _write(self, step: Step, chunk: int, written: set[int]) -> set[int]:
        begin, end = step.chunk_starts[chunk], step.chunk_starts[chunk + 1]
        blocks = set()
        for row in range(begin, end):
            position = int(step.chunk_begins[chunk]) + row - begin
            block = int(step.block_tables[chunk, position // BLOCK_TOKEN_COUNT])
            assert block not in written, f"two sequences write block {block} in one step"
            blocks.add(block)
            self._cache[block, position % BLOCK_TOKEN_COUNT] = step.token_ids[row]
        return blocks

    def _read(self, table: np.ndarray, count: int) -> np.ndarray:
        used = table[: -(-count // BLOCK_TOKEN_COUNT)]
        seen = self._cache[used].reshape(-1)[:count]
        assert (seen != EMPTY).all(), "a row sees a position that nobody computed"
        return seen

    def _logits(self, visible: np.ndarray) -> np.ndarray:
        data = visible.tobytes()
        if self._repeat and len(visible) > self._repeat:
            data = visible[: self._repeat].tobytes() + visible[-1:].tobytes()
        digest = hashlib.blake2b(data, digest_size=8).digest()
        start = int.from_bytes(digest[:4], "little")
        return np.float32(((start + np.arange(self._size) * 2654435761) % 10007) / 1000)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert not set(sources) & set(targets)
        assert len(set(targets)) == len(targets)
        self._cache[list(targets)] = self._cache[list(sources)]

    def wipe(self, blocks: Sequence[int]) -> None:
        self._cache[list(blocks)] = EMPTY

    def close(self) -> None:
        pass
