"""What computes one engine step: rows of token ids in, logits out, keys and values kept in blocks.

    scheduler ──chunks──> model_runner ──Step──> Backend ──StepResult──> sampler

Three back ends implement this: the C++ kernels, plain torch, and CUDA. The scheduler, the block
manager and the sampler know none of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.engine.torch.models.numbers import Kind

Int32s = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of one step, as C-contiguous int32 arrays.

    Row r is one token. Chunk c is the rows [chunk_starts[c], chunk_starts[c + 1]) of one sequence,
    at the consecutive positions that begin at chunk_begins[c]; prefill, decode and drafted tokens
    differ in nothing but the number of rows.

    Attributes:
        token_ids: [rows].
        chunk_starts: [chunks + 1], ascending from 0 to rows.
        chunk_begins: [chunks]; position in its sequence of the chunk's first row.
        block_tables: [chunks, width]; the blocks of each sequence in order, beyond them 0. Position
            p of a sequence lives in block_tables[c, p // 16] at offset p % 16.
        logit_rows: [samples]; rows whose logits are wanted, ascending.
    """

    token_ids: Int32s
    chunk_starts: Int32s
    chunk_begins: Int32s
    block_tables: Int32s
    logit_rows: Int32s


class StepResult:
    """What a step gave; valid until the next step.

    Attributes:
        greedy_token_ids: [samples]; the likeliest token, of equals the smallest id.
        sound: [chunks]; whether all hidden states of the chunk are finite numbers.
    """

    __slots__ = ("_logits", "greedy_token_ids", "sound")

    def __init__(
        self,
        logits: Logits | Callable[[], Logits],
        greedy_token_ids: Int32s,
        sound: npt.NDArray[np.bool_],
    ) -> None:
        """`logits` may be a function: those of a GPU stay there unless someone wants them."""
        self._logits, self.greedy_token_ids, self.sound = logits, greedy_token_ids, sound

    @property
    def logits(self) -> Logits:
        """[samples, vocabulary], float32."""
        if callable(self._logits):
            self._logits = self._logits()
        return self._logits


class Backend(Protocol):
    """A model with its KV cache. One thread calls it.

    The result for a row depends on its sequence's tokens and positions only: not on the other rows
    of the step, nor on how the sequence was cut into chunks, nor on its block numbers. Where
    `is_batch_invariant` that holds bit for bit.

    Attributes:
        name: for logs and metrics: "kernels", "torch" or "cuda".
        is_batch_invariant: bit for bit; on a CPU, but not on a GPU.
        kinds: of the numbers of the weights and of the KV cache.
        arithmetic: which code of this back end computes here, such as "kernels-avx512".
        arithmetic_facts: what else its last bits depend on: versions, threads, the CPU.
        block_bytes: memory of one KV block over all layers.
        block_count: KV blocks there are, 0 before `allocate`.
    """

    name: str
    is_batch_invariant: bool
    kinds: tuple[Kind, Kind]
    arithmetic: str
    arithmetic_facts: tuple[str, ...]
    block_bytes: int
    block_count: int

    def allocate(self, block_count: int) -> None:
        """Makes the KV cache, zeroed. Raises EngineError when the memory is not there."""

    def step(self, step: Step) -> StepResult:
        """Computes the rows and keeps their keys and values. Releases the GIL while it computes."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks, in all layers: copy-on-write."""

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks that may hold NaN: even a masked NaN would spoil their next owner."""

    def close(self) -> None:
        """Gives memory and threads back; the object is of no use afterwards."""
