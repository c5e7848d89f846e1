"""The back end `kernels`: a `Backend` whose step is one call into C++.

Precision: float32 everywhere between projections. Weights of kind f32 and bf16 are multiplied in
float32; int8 weights by activations that are quantised row by row, exactly summed as integers. On
CPUs with AMX, bf16 weights meet activations split into two bfloat16 parts (16 bits of mantissa).
"""

import os
from collections.abc import Sequence
from ctypes import byref

import numpy as np

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.backend import Step, StepResult
from inference_svc.engine.torch.kernels import library
from inference_svc.engine.torch.kernels.build import KERNELS, LEVELS
from inference_svc.engine.torch.kernels.library import unavailable_reason
from inference_svc.engine.torch.machine import MAKER, cpu_facts
from inference_svc.engine.torch.models.numbers import Array, Kind
from inference_svc.engine.torch.models.weights import LayerWeights, Matrix, ModelWeights

__all__ = ["KernelsBackend", "unavailable_reason"]

# For tests: a lower level than the CPU has ("avx2", "avx512", …).
LEVEL_VARIABLE = "INFERENCE_KERNEL_LEVEL"
HEAD_DIM_MULTIPLE, HEAD_DIM_MAX = 16, 256
FIRST_ROTATION_COUNT = 4096  # positions; doubled when a sequence is longer
_PANEL = 32  # the pitch of logits is a multiple of it
_INT32_MAX = 2**31 - 1
_OUTSIDE = -1  # instead of a layer: the weights outside the layers


class KernelsBackend:
    """A model in C++ memory; see `Backend` for what the methods promise.

    Attributes:
        level: instruction set that is used: generic, avx2, avx512 or amx.
    """

    name = "kernels"
    is_batch_invariant = True

    def __init__(
        self, weights: ModelWeights, kv_kind: Kind, thread_count: int, *, level: str = ""
    ) -> None:
        """Copies the weights, layer by layer, into the kernels' layout.

        Args:
            thread_count: of the steps, the caller's included.
            level: an instruction set lower than the CPU's; empty: $INFERENCE_KERNEL_LEVEL, or the
                highest.

        Raises:
            EngineError: the model's head size is not supported, or memory does not suffice.
        """
        config = weights.config
        if config.head_dim % HEAD_DIM_MULTIPLE or config.head_dim > HEAD_DIM_MAX:
            raise EngineError(
                f"The kernels want a head_dim that is a multiple of {HEAD_DIM_MULTIPLE} up to "
                f"{HEAD_DIM_MAX}, not {config.head_dim}; use the torch back end."
            )
        self._lib = library.load()
        self.level = level or os.environ.get(LEVEL_VARIABLE, "") or library.machine_level()
        if self.level not in LEVELS[: LEVELS.index(library.machine_level()) + 1]:
            raise EngineError(f"This CPU or build has no kernels of the level {self.level!r}.")
        self.kinds = weights.kind, kv_kind
        self.arithmetic = f"kernels-{self.level}"
        # Not the threads, nor the compiler: every sum has one order, the source's own. But the
        # CPU's maker: AVX-512's estimate of a reciprocal is specified by its error, not its bits.
        self.arithmetic_facts: tuple[str, ...] = (KERNELS.source_digest(), cpu_facts(MAKER))
        embedding = np.ascontiguousarray(weights.embedding)
        struct = library.ConfigStruct(
            vocabulary=config.vocabulary_size,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.layer_count,
            heads=config.head_count,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            embedding_kind=library.KINDS["f32" if embedding.dtype == np.float32 else "bf16"],
            kv_kind=library.KINDS[kv_kind],
            threads=max(1, thread_count),
            level=LEVELS.index(self.level),
            norm_eps=config.norm_eps,
        )
        self._config = config
        self._model: int | None = self._lib.cm_open(byref(struct))
        self._check(library.NO_MEMORY if self._model is None else 0)
        self.block_bytes = int(self._lib.cm_block_bytes(self._model))
        self.block_count = 0
        self._check(self._lib.cm_load_embedding(self._model, embedding.ctypes.data))
        del embedding
        self._load(weights)
        self._logits = np.empty((0, 0), np.float32)
        self._step = library.StepStruct()
        self._rotations: tuple[Array, Array] = (np.empty(0), np.empty(0))
        self._rotate_to(min(config.context, FIRST_ROTATION_COUNT))

    def _load(self, weights: ModelWeights) -> None:
        for index, layer in enumerate(weights.layers()):
            self._load_layer(index, layer)
        self._load_norm(_OUTSIDE, 0, weights.norm)
        self._load_matrix(_OUTSIDE, 0, weights.head)

    def _load_layer(self, index: int, layer: LayerWeights) -> None:
        for part, matrix in enumerate((layer.qkv, layer.out, layer.gate_up, layer.down)):
            self._load_matrix(index, part, matrix)
        norms = (layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
        for part, norm in enumerate(norms):
            if norm is not None:
                self._load_norm(index, part, norm)
        self._lib.cm_set_window(self._model, index, layer.window)

    def _load_matrix(self, layer: int, part: int, matrix: Matrix) -> None:
        values = np.ascontiguousarray(matrix.values)
        scales, bias = _floats(matrix.scales), _floats(matrix.bias)
        pointers = [None if a is None else a.ctypes.data for a in (values, scales, bias)]
        self._check(
            self._lib.cm_load_matrix(
                self._model, layer, part, library.KINDS[matrix.kind], *values.shape, *pointers
            )
        )

    def _load_norm(self, layer: int, part: int, values: Array) -> None:
        floats = np.ascontiguousarray(values, np.float32)
        self._check(
            self._lib.cm_load_norm(self._model, layer, part, floats.size, floats.ctypes.data)
        )

    def _rotate_to(self, position_count: int) -> None:
        cosines, sines = self._config.rotations(position_count)
        self._rotations = (
            np.ascontiguousarray(cosines, np.float32),
            np.ascontiguousarray(sines, np.float32),
        )
        addresses = [table.ctypes.data for table in self._rotations]
        self._lib.cm_set_rotations(self._model, *addresses, position_count)

    def _check(self, code: int) -> None:
        if code == library.NO_MEMORY:
            raise EngineError("There is not enough memory for the model, its cache or its step.")
        if code == library.BAD_TOKEN:
            raise EngineError("A token id is outside the model's vocabulary.")
        if code == library.BAD_BLOCK:
            raise EngineError("A step names a KV block that does not exist.")
        if code == library.BAD_ROWS:
            raise EngineError("A step's chunks or logit rows do not fit its rows.")

    def allocate(self, block_count: int) -> None:
        """As in `Backend`. Pages are taken from the system when they are first written."""
        fits = 0 < block_count <= _INT32_MAX
        if not fits or self._lib.cm_allocate(self._model, block_count) != 0:
            raise EngineError(
                f"There is no memory for {block_count} KV blocks of {self.block_bytes} bytes; "
                "lower INFERENCE_KV_CACHE_BYTES."
            )
        self.block_count = block_count

    def step(self, step: Step) -> StepResult:
        """As in `Backend`; the arrays must be C-contiguous int32."""
        chunks, width = step.block_tables.shape
        samples = len(step.logit_rows)
        struct = self._step
        struct.rows, struct.chunks = len(step.token_ids), chunks
        struct.table_width, struct.samples = width, samples
        struct.token_ids = step.token_ids.ctypes.data
        struct.chunk_starts = step.chunk_starts.ctypes.data
        struct.chunk_begins = step.chunk_begins.ctypes.data
        struct.block_tables = step.block_tables.ctypes.data
        struct.logit_rows = step.logit_rows.ctypes.data
        if samples > len(self._logits):
            pitch = -(-self._config.vocabulary_size // _PANEL) * _PANEL
            self._logits = np.empty((samples, pitch), np.float32)
        greedy, sound = np.zeros(samples, np.int32), np.zeros(chunks, np.bool_)
        struct.logits = self._logits.ctypes.data
        struct.greedy, struct.sound = greedy.ctypes.data, sound.ctypes.data
        code = self._lib.cm_step(self._model, byref(struct))
        if code == library.NEED_ROTATIONS:
            ends = step.chunk_begins + np.diff(step.chunk_starts)
            self._rotate_to(max(2 * len(self._rotations[0]), int(ends.max())))
            code = self._lib.cm_step(self._model, byref(struct))
        self._check(code)
        logits = self._logits[:samples, : self._config.vocabulary_size]
        return StepResult(logits, greedy, sound)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """As in `Backend`."""
        for source, target in zip(sources, targets, strict=True):
            self._check_block(source)
            self._check_block(target)
            self._lib.cm_copy_block(self._model, source, target)

    def wipe(self, blocks: Sequence[int]) -> None:
        """As in `Backend`."""
        for block in blocks:
            self._check_block(block)
            self._lib.cm_wipe_block(self._model, block)

    def read_memory(self, memory: Array) -> None:
        """Reads an array with all threads, as fast as the level can; for `limits`."""
        self._lib.cm_read_memory(self._model, memory.ctypes.data, memory.nbytes)

    def multiply(self, rounds: int) -> int:
        """Integer products in registers on all threads; returns the operations done."""
        return int(self._lib.cm_multiply(self._model, rounds))

    def _check_block(self, block: int) -> None:
        self._check(0 if 0 <= block < self.block_count else library.BAD_BLOCK)

    def close(self) -> None:
        """As in `Backend`; a second call does nothing."""
        model, self._model = self._model, None
        if model is not None:
            self._lib.cm_close(model)

    def __del__(self) -> None:
        if hasattr(self, "_model"):
            self.close()


def _floats(values: Array | None) -> Array | None:
    return None if values is None else np.ascontiguousarray(values, np.float32)
