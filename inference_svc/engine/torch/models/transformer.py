"""The decoder of the Llama, Mistral, Qwen2 and Qwen3 families: one definition.

What differs is read off the weights: biases on q, k, v (Qwen2), norms on q and k (Qwen3), an
output matrix of its own or the embedding. Float32 throughout.
"""

from dataclasses import dataclass

import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.models.attention import TileGroup, attend
from inference_svc.engine.torch.models.config import ModelConfig
from inference_svc.engine.torch.models.invariant import (
    Linear,
    padded,
    rms_norm,
    row_count_for,
    swiglu,
)
from inference_svc.engine.torch.models.weights import Weights


@dataclass(frozen=True, slots=True)
class StepInput:
    """The tokens of one step, all sequences in one list.

    Attributes:
        token_ids, positions, slots: [tokens]; slots are block * 16 + offset in the KV cache.
        groups: the tiles of attention.
        sampled_rows: rows whose logits are wanted, [samples].
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: list[TileGroup]
    sampled_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int


class Transformer:
    """Weights and the forward pass; the KV cache belongs to the caller."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """Loads. Raises EngineError when tensors are missing or have other shapes."""
        self.config = config
        hidden, vocabulary = config.hidden_size, config.vocabulary_size
        self._embedding = weights.get("model.embed_tokens.weight", vocabulary, hidden)
        tied = config.tied or "lm_head.weight" not in weights
        head = self._embedding if tied else weights.get("lm_head.weight", vocabulary, hidden)
        raw = [_RawLayer(config, weights, index) for index in range(config.layer_count)]
        self.row_count = row_count_for([head, *(w for layer in raw for w in layer.matrices)])
        self._layers = [layer.build(self.row_count) for layer in raw]
        self._norm = weights.get("model.norm.weight", hidden)
        self._head = Linear(head, None, self.row_count)
        self._cos, self._sin = _rotations(config)

    def cache_layer(self, block_count: int) -> torch.Tensor:
        """Room for the keys, or the values, of one layer: [blocks, KV heads, 16, head_dim]."""
        config = self.config
        return torch.zeros(block_count, config.kv_head_count, BLOCK_TOKEN_COUNT, config.head_dim)

    def forward(
        self, step: StepInput, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the tokens of `step` into `cache`.

        Returns:
            Logits [samples, vocabulary], and which rows are finite [tokens]: a NaN anywhere in a
            row's keys or values is also in its last hidden state.
        """
        count = step.token_ids.shape[0]
        rows = torch.zeros(padded(count, self.row_count), self.config.hidden_size)
        rows[:count] = self._embedding[step.token_ids]
        for layer, layer_cache in zip(self._layers, cache, strict=True):
            normed = rms_norm(rows, layer.attention_norm, self.config.norm_eps)
            mixed = self._attention(layer, normed, step, layer_cache)
            rows = rows + layer.out(mixed)
            normed = rms_norm(rows, layer.mlp_norm, self.config.norm_eps)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            rows = rows + layer.down(swiglu(gate, up))
        samples = step.sampled_rows.shape[0]
        last = torch.zeros(padded(samples, self.row_count), self.config.hidden_size)
        last[:samples] = rows[step.sampled_rows]
        logits = self._head(rms_norm(last, self._norm, self.config.norm_eps))[:samples]
        return logits, rows[:count].isfinite().all(-1)

    def _attention(
        self,
        layer: _Layer,
        normed: torch.Tensor,
        step: StepInput,
        cache: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config, count, (keys, values) = self.config, step.token_ids.shape[0], cache
        rotation = self._cos[step.positions][:, None], self._sin[step.positions][:, None]
        heads, kv_heads = config.head_count, config.kv_head_count
        qkv = layer.qkv(normed).view(-1, heads + 2 * kv_heads, config.head_dim)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm, config.norm_eps)
            key = rms_norm(key, layer.key_norm, config.norm_eps)
        query = _rotate(query[:count], *rotation) * config.head_dim**-0.5
        blocks, offsets = step.slots // BLOCK_TOKEN_COUNT, step.slots % BLOCK_TOKEN_COUNT
        keys[blocks, :, offsets] = _rotate(key[:count], *rotation)
        values[blocks, :, offsets] = value[:count]
        mixed = torch.zeros(normed.shape[0], heads * config.head_dim)
        for group in step.groups:
            out = attend(query, keys, values, group, layer.window)
            mixed[group.rows[group.real]] = out[group.real]
        return mixed


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding (Su et al., 2021) in the half-split layout of the Llama checkpoints."""
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin


def _rotations(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = torch.tensor(config.rope.inverse_frequencies(config.head_dim))
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)  # [context, head_dim]
    return angles.cos(), angles.sin()


class _RawLayer:
    """The tensors of a layer, before the block of rows is known."""

    def __init__(self, config: ModelConfig, weights: Weights, index: int) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_size, kv_size = config.head_count * dim, config.kv_head_count * dim
        name = f"model.layers.{index}."
        attention, mlp = name + "self_attn.", name + "mlp."
        self._window = config.windows[index]
        self._attention_norm = weights.get(name + "input_layernorm.weight", hidden)
        self._mlp_norm = weights.get(name + "post_attention_layernorm.weight", hidden)
        self._query_norm = weights.get_optional(attention + "q_norm.weight", dim)
        self._key_norm = weights.get_optional(attention + "k_norm.weight", dim)
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self._qkv = _joined(weights, attention, sizes, hidden)
        self._out = _joined(weights, attention, {"o_proj": hidden}, q_size)
        self._gate_up = _joined(weights, mlp, {"gate_proj": inner, "up_proj": inner}, hidden)
        self._down = _joined(weights, mlp, {"down_proj": hidden}, inner)

    @property
    def matrices(self) -> list[torch.Tensor]:
        return [pair[0] for pair in (self._qkv, self._out, self._gate_up, self._down)]

    def build(self, row_count: int) -> _Layer:
        return _Layer(
            attention_norm=self._attention_norm,
            qkv=Linear(*self._qkv, row_count),
            query_norm=self._query_norm,
            key_norm=self._key_norm,
            out=Linear(*self._out, row_count),
            mlp_norm=self._mlp_norm,
            gate_up=Linear(*self._gate_up, row_count),
            down=Linear(*self._down, row_count),
            window=self._window,
        )


def _joined(
    weights: Weights, prefix: str, sizes: dict[str, int], inputs: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Projections with the same input as one matrix, and their biases where they have any."""
    matrices = [weights.get(f"{prefix}{n}.weight", size, inputs) for n, size in sizes.items()]
    biases = [weights.get_optional(f"{prefix}{n}.bias", size) for n, size in sizes.items()]
    if all(bias is None for bias in biases):
        return torch.cat(matrices), None
    filled = [
        torch.zeros(size) if bias is None else bias
        for bias, size in zip(biases, sizes.values(), strict=True)
    ]
    return torch.cat(matrices), torch.cat(filled)
