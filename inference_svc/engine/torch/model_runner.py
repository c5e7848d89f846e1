"""Turns the scheduler's chunks into the arrays of a step, and finds each chunk's logits again.

This runs between any two steps of the model, so it costs microseconds: the arrays are made once and
filled in place, and token ids and block tables of a sequence are copied as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.backend import Backend, Int32s, Logits, Step, StepResult


class Tokens(Protocol):
    """A sequence as the runner sees it. Both attributes are fastest as `array("i")`."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt and answer so far."""

    @property
    def blocks(self) -> Sequence[int]:
        """Its KV blocks in order."""


class Work(Protocol):
    """What to compute of a sequence: positions [begin, end), and drafted tokens behind them."""

    @property
    def sequence(self) -> Tokens:
        """Whose tokens."""

    @property
    def begin(self) -> int:
        """First position."""

    @property
    def end(self) -> int:
        """Behind the last position that is no draft."""

    @property
    def samples(self) -> bool:
        """Whether the logits of the last position, and of each draft, are wanted."""

    @property
    def draft_token_ids(self) -> Sequence[int]:
        """Guesses of what follows `end`; the sequence's blocks have room for them."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step gave; valid until the next step.

    Attributes:
        greedy_token_ids: [samples]; the likeliest token, of equals the smallest id.
        sound: [chunks]; whether all hidden states of the chunk are finite numbers.
        logit_starts: [chunks + 1]; the logits of chunk c are rows [starts[c], starts[c + 1]): none
            if it does not sample, else those of its last position and of each draft.
        result: of the back end.
    """

    greedy_token_ids: Int32s
    sound: npt.NDArray[np.bool_]
    logit_starts: list[int]
    result: StepResult

    @property
    def logits(self) -> Logits:
        """[samples, vocabulary], float32; on a GPU they are fetched when they are asked for."""
        return self.result.logits


class ModelRunner:
    """A back end and the arrays of its steps.

    Attributes:
        backend: whose block numbers are those of the block manager.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._token_ids = np.empty(512, np.int32)
        self._logit_rows = np.empty(512, np.int32)
        self._chunks = np.empty((2, 129), np.int32)
        self._tables = np.empty(1 << 14, np.int32)

    def step(self, chunks: Sequence[Work]) -> Computed:
        """Computes at least one chunk into the cache."""
        step, logit_starts = self.arrays(chunks)
        result = self.backend.step(step)
        return Computed(result.greedy_token_ids, result.sound, logit_starts, result)

    def arrays(self, chunks: Sequence[Work]) -> tuple[Step, list[int]]:
        """The arrays of a step, valid until the next call, and where each chunk's logits begin."""
        count, width = self._make_room(chunks)
        starts, begins = self._chunks[0, : count + 1], self._chunks[1, :count]
        tables = self._tables[: count * width].reshape(count, width)
        token_ids, logit_rows = self._token_ids, self._logit_rows
        logit_starts = [0] * (count + 1)
        row = logits = 0
        for index, chunk in enumerate(chunks):
            begin, end, sequence = chunk.begin, chunk.end, chunk.sequence
            starts[index], begins[index] = row, begin
            last = row + end - begin
            if last - row == 1:
                token_ids[row] = sequence.token_ids[begin]
            else:
                token_ids[row:last] = sequence.token_ids[begin:end]
            row, drafts = last, chunk.draft_token_ids
            if drafts:
                row += len(drafts)
                token_ids[last:row] = drafts
            used = -(-(end + len(drafts)) // BLOCK_TOKEN_COUNT)
            blocks = sequence.blocks
            tables[index, :used] = blocks if len(blocks) == used else blocks[:used]
            tables[index, used:] = 0
            if chunk.samples:
                for sampled in range(last - 1, row):
                    logit_rows[logits] = sampled
                    logits += 1
            logit_starts[index + 1] = logits
        starts[count] = row
        step = Step(token_ids[:row], starts, begins, tables, logit_rows[:logits])
        return step, logit_starts

    def _make_room(self, chunks: Sequence[Work]) -> tuple[int, int]:
        """Number of chunks and blocks of the longest sequence; the arrays are large enough."""
        rows, longest = 0, 0
        for chunk in chunks:
            end = chunk.end + len(chunk.draft_token_ids)
            rows += end - chunk.begin
            longest = max(longest, end)
        count, width = len(chunks), -(-longest // BLOCK_TOKEN_COUNT)
        if rows > self._token_ids.size:
            self._token_ids, self._logit_rows = (np.empty(2 * rows, np.int32) for _ in range(2))
        if count >= self._chunks.shape[1]:
            self._chunks = np.empty((2, 2 * count + 1), np.int32)
        if count * width > self._tables.size:
            self._tables = np.empty(2 * count * width, np.int32)
        return count, width
