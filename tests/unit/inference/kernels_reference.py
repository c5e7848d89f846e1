"""What the kernels' tests compare with: random models, and the decoder in float64 numpy."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.torch.backend import Step
from inference_svc.engine.torch.kernels.build import LEVELS
from inference_svc.engine.torch.kernels.library import machine_level, unavailable_reason
from inference_svc.engine.torch.models.config import ModelConfig, read_config
from inference_svc.engine.torch.models.numbers import Kind, to_bf16, to_f32, to_int8
from inference_svc.engine.torch.models.weights import LayerWeights, Matrix
from mesh.chassis.native_build import find_compiler

BLOCK = 16
AVAILABLE = () if unavailable_reason() else LEVELS[: LEVELS.index(machine_level()) + 1]

# Where there is a compiler, a library that is missing is a failure.
needs_kernels = pytest.mark.skipif(
    bool(unavailable_reason()) and find_compiler() is None, reason="there is no C++ compiler"
)


def config_of(**changes: Any) -> ModelConfig:
    """A tiny Qwen3: the family with the most parts."""
    document = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 117,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    windows = changes.pop("windows", None)
    config = read_config(document | changes)
    return replace(config, windows=windows) if windows else config


@dataclass
class RandomWeights:
    """`ModelWeights` with every optional part: biases everywhere, head norms as the config says."""

    config: ModelConfig
    kind: Kind = "f32"
    seed: int = 0
    made: list[LayerWeights] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, rng = self.config, np.random.default_rng(self.seed)
        self._rng = rng
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_size, kv_size = config.head_count * dim, config.kv_head_count * dim
        self._table = rng.normal(0, 1, (config.vocabulary_size, hidden)).astype(np.float32)
        self.embedding = self._table if self.kind == "f32" else to_bf16(self._table)
        self.norm = self._gain(hidden)
        self.head = self._matrix(config.vocabulary_size, hidden, bias=False)
        for window in config.windows:
            norms = config.head_norms
            self.made.append(
                LayerWeights(
                    attention_norm=self._gain(hidden),
                    qkv=self._matrix(q_size + 2 * kv_size, hidden),
                    query_norm=self._gain(dim) if norms else None,
                    key_norm=self._gain(dim) if norms else None,
                    out=self._matrix(hidden, q_size),
                    mlp_norm=self._gain(hidden),
                    gate_up=self._matrix(2 * inner, hidden),
                    down=self._matrix(hidden, inner),
                    window=window,
                )
            )

    def _gain(self, size: int) -> np.ndarray:
        return self._rng.normal(1, 0.2, size).astype(np.float32)

    def _matrix(self, outputs: int, inputs: int, *, bias: bool = True) -> Matrix:
        values = self._rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
        added = self._rng.normal(0, 0.1, outputs).astype(np.float32) if bias else None
        if self.kind == "int8":
            return Matrix(*to_int8(values), added)
        return Matrix(values if self.kind == "f32" else to_bf16(values), None, added)

    def layers(self) -> Iterator[LayerWeights]:
        yield from self.made


def dense(matrix: Matrix) -> np.ndarray:
    """A projection's weights as float64."""
    values = to_f32(matrix.values).astype(np.float64)
    return values if matrix.scales is None else values * matrix.scales[:, None]


class Reference:
    """The decoder over one whole sequence, float64, no cache. `int8`: activations and KV rounded
    as the kernels round them."""

    def __init__(self, weights: RandomWeights, kv_kind: Kind) -> None:
        self.weights, self.kv_kind = weights, kv_kind

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """[tokens, vocabulary]."""
        weights, config = self.weights, self.weights.config
        x = to_f32(weights.embedding).astype(np.float64)[token_ids]
        for layer in weights.layers():
            x = x + self._attention(layer, self._norm(x, layer.attention_norm))
            gate_up = self._project(layer.gate_up, self._norm(x, layer.mlp_norm))
            gate, up = np.split(gate_up, 2, axis=1)
            x = x + self._project(layer.down, gate / (1 + np.exp(-gate)) * up)
        assert x.shape == (len(token_ids), config.hidden_size)
        return self._project(weights.head, self._norm(x, weights.norm))

    def _norm(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.weights.config.norm_eps) * gain

    def _project(self, matrix: Matrix, x: np.ndarray) -> np.ndarray:
        if matrix.scales is not None:
            x = _rounded(x)
        y = x @ dense(matrix).T
        return y if matrix.bias is None else y + matrix.bias

    def _attention(self, layer: LayerWeights, x: np.ndarray) -> np.ndarray:
        config, count = self.weights.config, len(x)
        dim, heads, kv_heads = config.head_dim, config.head_count, config.kv_head_count
        qkv = self._project(layer.qkv, x).reshape(count, heads + 2 * kv_heads, dim)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
        if layer.query_norm is not None:
            q, k = self._norm(q, layer.query_norm), self._norm(k, layer.key_norm)
        cosines, sines = (table[:, None, :] for table in config.rotations(count))
        q, k = _rotated(q, cosines, sines), _rotated(k, cosines, sines)
        if self.kv_kind == "int8":
            k, v = _rounded(k), _rounded(v)
        elif self.kv_kind == "bf16":
            k, v = (to_f32(to_bf16(t.astype(np.float32))).astype(np.float64) for t in (k, v))
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        ages = np.arange(count)[:, None] - np.arange(count)[None]
        hidden = (ages < 0) | ((ages >= layer.window) if layer.window else False)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(count, heads * dim)
        return self._project(layer.out, mixed)


def _rotated(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate(
        [first * cosines - second * sines, second * cosines + first * sines], axis=-1
    )


def _rounded(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(-1, keepdims=True) / 127
    return np.rint(x / np.where(scale > 0, scale, 1)) * scale


@dataclass
class Sequence:
    """A sequence that is computed chunk by chunk."""

    token_ids: list[int]
    blocks: list[int]
    done: int = 0


def step_of(chunks: list[tuple[Sequence, int]], *, all_logits: bool = True) -> Step:
    """The next `count` tokens of each sequence, as one step; logits of all rows, or of the last."""
    ids: list[int] = []
    starts, begins, rows = [0], [], []
    for sequence, count in chunks:
        ids += sequence.token_ids[sequence.done : sequence.done + count]
        rows += range(starts[-1], len(ids)) if all_logits else [len(ids) - 1]
        starts.append(len(ids))
        begins.append(sequence.done)
        sequence.done += count
    width = max(-(-sequence.done // BLOCK) for sequence, _ in chunks)
    tables = np.zeros((len(chunks), width), np.int32)
    for index, (sequence, _) in enumerate(chunks):
        used = sequence.blocks[: -(-sequence.done // BLOCK)]
        tables[index, : len(used)] = used
    arrays = (np.array(a, np.int32) for a in (ids, starts, begins))
    return Step(*arrays, tables, np.array(rows, np.int32))
