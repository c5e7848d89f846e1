"""The back end in plain torch: serves where the kernels were not built or the CPU lacks what they
need, with the same results within tolerance, and is what the others are tested against.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineError
from inference_svc.engine.torch.backend import Step, StepResult
from inference_svc.engine.torch.eager.attention import TileGroup, attend, large_tile, tile_groups
from inference_svc.engine.torch.eager.invariant import (
    FloatLinear,
    Int8Linear,
    Linear,
    padded,
    rms_norm,
    row_count_for,
    swiglu,
)
from inference_svc.engine.torch.eager.kv_cache import Half, block_bytes
from inference_svc.engine.torch.machine import MAKER, MODEL, cpu_facts
from inference_svc.engine.torch.models.config import ModelConfig
from inference_svc.engine.torch.models.numbers import Kind, to_f32
from inference_svc.engine.torch.models.weights import LayerWeights, Matrix, ModelWeights


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the rows of a step are, the same for all layers.

    Attributes:
        count: tokens; further rows are padding.
        rotation: cosines and sines, [tokens, 1, head_dim].
        slots: blocks and offsets in the KV cache, [tokens].
        groups: tiles of attention.
    """

    count: int
    rotation: tuple[torch.Tensor, torch.Tensor]
    slots: tuple[torch.Tensor, torch.Tensor]
    groups: list[TileGroup]


class TorchBackend:
    """A `Backend` of torch operations on the CPU. bf16 weights are widened to float32 at load."""

    name = "torch"
    is_batch_invariant = True

    def __init__(self, weights: ModelWeights, kv_kind: Kind, thread_count: int) -> None:
        """Loads. Raises EngineError when tensors are missing or have other shapes."""
        torch.set_num_threads(thread_count)
        self.config, self._kv_kind = weights.config, kv_kind
        self.kinds = weights.kind, kv_kind
        self.arithmetic = f"torch-{torch.__version__}"
        # Its libraries choose their code by the CPU and share sums out among the threads.
        self.arithmetic_facts: tuple[str, ...] = (
            f"{thread_count} threads",
            torch.__config__.show(),
            torch.backends.cpu.get_cpu_capability(),
            cpu_facts(MAKER, MODEL),
        )
        self.block_count = 0
        self.block_bytes = self.config.layer_count * block_bytes(
            self.config.kv_head_count, self.config.head_dim, kv_kind
        )
        self._row_count = 1 if weights.kind == "int8" else row_count_for(_shapes(self.config))
        shared = self.config.head_count // self.config.kv_head_count
        self._large_tile = large_tile(self.config.head_dim, shared)
        self._embedding = torch.from_numpy(to_f32(weights.embedding))
        tied = self.config.tied and weights.kind != "int8"
        head = Matrix(self._embedding.numpy()) if tied else weights.head
        self._head = _linear(head, self._row_count)
        self._norm = torch.from_numpy(weights.norm)
        self._layers = [_Layer(layer, self.config, self._row_count) for layer in weights.layers()]
        self._cache: list[tuple[Half, Half]] = []
        self._cos, self._sin = torch.empty(0), torch.empty(0)

    def allocate(self, block_count: int) -> None:
        """Makes the KV cache. Raises EngineError when the memory is not there."""
        config = self.config
        shape = (block_count, config.kv_head_count, config.head_dim, self._kv_kind)
        try:
            self._cache = [(Half(*shape), Half(*shape)) for _ in range(config.layer_count)]
        except RuntimeError as error:  # torch's out of memory on a CPU
            raise EngineError(
                f"There is no memory for {block_count} KV blocks of {self.block_bytes} bytes; "
                "lower INFERENCE_KV_CACHE_BYTES."
            ) from error
        self.block_count = block_count
        positions = min(config.context, block_count * BLOCK_TOKEN_COUNT)
        tables = config.rotations(positions)
        self._cos, self._sin = (torch.from_numpy(np.concatenate([t, t], 1)) for t in tables)

    @torch.inference_mode()
    def step(self, step: Step) -> StepResult:
        """Computes the rows into the cache."""
        at, rows = self._rows(step), self._embed(step)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            rows = layer(rows, at, cache)
        logits = self._logits(rows, step.logit_rows).numpy()
        finite = rows[: at.count].isfinite().all(-1).numpy()
        return StepResult(
            logits,
            logits.argmax(1).astype(np.int32),
            np.logical_and.reduceat(finite, step.chunk_starts[:-1]),
        )

    def _rows(self, step: Step) -> _Rows:
        lengths = np.diff(step.chunk_starts)
        first = np.repeat(step.chunk_begins - step.chunk_starts[:-1], lengths)
        positions = np.arange(step.token_ids.size) + first
        chunk = np.repeat(np.arange(lengths.size), lengths)
        blocks = step.block_tables[chunk, positions // BLOCK_TOKEN_COUNT].astype(np.int64)
        offsets = positions % BLOCK_TOKEN_COUNT
        at = torch.from_numpy(positions)
        return _Rows(
            step.token_ids.size,
            (self._cos[at][:, None], self._sin[at][:, None]),
            (torch.from_numpy(blocks), torch.from_numpy(offsets)),
            tile_groups(step, self._large_tile),
        )

    def _embed(self, step: Step) -> torch.Tensor:
        count = step.token_ids.size
        rows = torch.zeros(padded(count, self._row_count), self.config.hidden_size)
        rows[:count] = self._embedding[torch.from_numpy(step.token_ids)]
        return rows

    def _logits(self, rows: torch.Tensor, wanted: np.ndarray) -> torch.Tensor:
        last = torch.zeros(padded(wanted.size, self._row_count), self.config.hidden_size)
        last[: wanted.size] = rows[torch.from_numpy(wanted)]
        return self._head(rms_norm(last, self._norm, self.config.norm_eps))[: wanted.size]

    @torch.inference_mode()
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks, in all layers."""
        for half in (half for pair in self._cache for half in pair):
            half.copy(sources, targets)

    @torch.inference_mode()
    def wipe(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks."""
        for half in (half for pair in self._cache for half in pair):
            half.wipe(blocks)

    def close(self) -> None:
        """Gives the memory back."""
        self._layers, self._cache = [], []


class _Layer:
    def __init__(self, layer: LayerWeights, config: ModelConfig, row_count: int) -> None:
        self._config, self._window = config, layer.window
        self._attention_norm = torch.from_numpy(layer.attention_norm)
        self._mlp_norm = torch.from_numpy(layer.mlp_norm)
        self._head_norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            self._head_norms = torch.from_numpy(layer.query_norm), torch.from_numpy(layer.key_norm)
        self._qkv, self._out = _linear(layer.qkv, row_count), _linear(layer.out, row_count)
        self._gate_up, self._down = (
            _linear(layer.gate_up, row_count),
            _linear(layer.down, row_count),
        )

    def __call__(self, rows: torch.Tensor, at: _Rows, cache: tuple[Half, Half]) -> torch.Tensor:
        """Hidden states behind the layer, [padded rows, hidden]."""
        eps = self._config.norm_eps
        query, key, value = self._heads(rms_norm(rows, self._attention_norm, eps), at)
        cache[0].write(*at.slots, key)
        cache[1].write(*at.slots, value)
        mixed = torch.zeros(rows.shape[0], query.shape[1] * query.shape[2])
        for group in at.groups:
            out = attend(query, *cache, group, self._window)
            mixed[group.rows[group.real]] = out[group.real]
        rows = rows + self._out(mixed)
        gate, up = self._gate_up(rms_norm(rows, self._mlp_norm, eps)).chunk(2, -1)
        return rows + self._down(swiglu(gate, up))

    def _heads(
        self, normed: torch.Tensor, at: _Rows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query (scaled), key and value, each [tokens, its heads, head_dim]."""
        config = self._config
        sizes = [config.head_count, config.kv_head_count, config.kv_head_count]
        qkv = self._qkv(normed)[: at.count].view(at.count, sum(sizes), config.head_dim)
        query, key, value = torch.split(qkv, sizes, 1)
        if self._head_norms is not None:
            query = rms_norm(query, self._head_norms[0], config.norm_eps)
            key = rms_norm(key, self._head_norms[1], config.norm_eps)
        query = _rotate(query, *at.rotation) * config.head_dim**-0.5
        return query, _rotate(key, *at.rotation), value


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the half-split layout of the Llama checkpoints."""
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin


def _linear(matrix: Matrix, row_count: int) -> Linear:
    return Int8Linear(matrix) if matrix.kind == "int8" else FloatLinear(matrix, row_count)


def _shapes(config: ModelConfig) -> set[tuple[int, ...]]:
    """(outputs, inputs) of every matrix."""
    hidden, q_size = config.hidden_size, config.head_count * config.head_dim
    return {
        (config.vocabulary_size, hidden),
        (q_size + 2 * config.kv_head_count * config.head_dim, hidden),
        (hidden, q_size),
        (2 * config.intermediate_size, hidden),
        (hidden, config.intermediate_size),
    }
