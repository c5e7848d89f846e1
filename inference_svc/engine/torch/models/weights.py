"""A model's weights as numpy arrays, in the kind of numbers that a back end computes with.

    checkpoint (Hugging Face names) ──Checkpoint──> ModelWeights ──> kernels, torch, cuda
                                         int8 │         ▲
                                              └─ cache ─┘

Projections with the same input are one matrix. Layers are read one at a time: a back end converts
or copies what it keeps, so that the peak of memory is its own weights and one layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.models.config import ModelConfig
from inference_svc.engine.torch.models.numbers import Array, Kind, to_bf16, to_f32, to_int8
from inference_svc.engine.torch.models.tensor_files import TensorFiles

Floats = npt.NDArray[np.float32]
_UNUSED = ("rotary_emb.inv_freq",)  # buffers that old checkpoints saved with the weights


@dataclass(frozen=True, slots=True)
class Matrix:
    """A projection, y = x @ weight.T + bias.

    Attributes:
        values: [outputs, inputs], C-contiguous; float32, uint16 (bfloat16 bits) or int8.
        scales: [outputs], float32, of int8 values: weight = values * scales[:, None]; else None.
        bias: [outputs], float32, or None.
    """

    values: Array
    scales: Floats | None = None
    bias: Floats | None = None

    @property
    def kind(self) -> Kind:
        """The kind of its numbers."""
        kinds: dict[np.dtype[np.generic], Kind] = {
            np.dtype(np.float32): "f32",
            np.dtype(np.uint16): "bf16",
            np.dtype(np.int8): "int8",
        }
        return kinds[self.values.dtype]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        attention_norm, mlp_norm: [hidden].
        qkv: [(heads + 2 KV heads) * head_dim, hidden]: query heads, key heads, value heads.
        query_norm, key_norm: [head_dim], or None where the family has none.
        out: [hidden, heads * head_dim].
        gate_up: [2 * intermediate, hidden]: all of gate, then all of up.
        down: [hidden, intermediate].
        window: newest positions that a token sees, itself included; 0: all.
    """

    attention_norm: Floats
    qkv: Matrix
    query_norm: Floats | None
    key_norm: Floats | None
    out: Matrix
    mlp_norm: Floats
    gate_up: Matrix
    down: Matrix
    window: int


class ModelWeights(Protocol):
    """What a back end loads.

    Attributes:
        kind: of the numbers of the matrices.
        embedding: [vocabulary, hidden]; float32 for kind f32, else bfloat16 bits.
        norm: [hidden].
        head: [vocabulary, hidden].
    """

    config: ModelConfig
    kind: Kind

    @property
    def embedding(self) -> Array:
        """[vocabulary, hidden]."""

    @property
    def norm(self) -> Floats:
        """[hidden]."""

    @property
    def head(self) -> Matrix:
        """[vocabulary, hidden]."""

    def layers(self) -> Iterator[LayerWeights]:
        """The layers in order, each read when it is asked for. Raises EngineError."""


class Checkpoint:
    """`ModelWeights` of a folder with the names that transformers gives the tensors."""

    def __init__(self, config: ModelConfig, files: TensorFiles, kind: Kind) -> None:
        """Raises EngineError when the folder has tensors that the architecture does not know."""
        self.config, self.kind, self._files = config, kind, files
        unknown = sorted(
            name
            for name in files.names() - set(_names(config))
            if not name.endswith(_UNUSED) and not (config.tied and name == "lm_head.weight")
        )
        if unknown:
            raise EngineError(
                f"The weights have tensors that {config.architecture} has not "
                f"({', '.join(unknown[:3])}); weights and config.json do not belong together."
            )

    @property
    def embedding(self) -> Array:
        """[vocabulary, hidden]."""
        values = self._embedding()
        return to_f32(values) if self.kind == "f32" else to_bf16(values)

    @property
    def norm(self) -> Floats:
        """[hidden]."""
        return self._vector("model.norm.weight", self.config.hidden_size)

    @property
    def head(self) -> Matrix:
        """[vocabulary, hidden]."""
        config = self.config
        if config.tied:
            return self._converted(self._embedding(), None)
        shape = (config.vocabulary_size, config.hidden_size)
        return self._converted(self._files.get("lm_head.weight", *shape), None)

    def layers(self) -> Iterator[LayerWeights]:
        """The layers, one at a time."""
        for index in range(self.config.layer_count):
            yield self._layer(index)

    def _layer(self, index: int) -> LayerWeights:
        config, name = self.config, f"model.layers.{index}."
        attention, mlp = name + "self_attn.", name + "mlp."
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_size, kv_size = config.head_count * dim, config.kv_head_count * dim
        qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        norms = config.head_norms
        return LayerWeights(
            attention_norm=self._vector(name + "input_layernorm.weight", hidden),
            qkv=self._joined(attention, qkv, hidden, config.qkv_bias),
            query_norm=self._vector(attention + "q_norm.weight", dim) if norms else None,
            key_norm=self._vector(attention + "k_norm.weight", dim) if norms else None,
            out=self._joined(attention, {"o_proj": hidden}, q_size, config.out_bias),
            mlp_norm=self._vector(name + "post_attention_layernorm.weight", hidden),
            gate_up=self._joined(
                mlp, {"gate_proj": inner, "up_proj": inner}, hidden, config.mlp_bias
            ),
            down=self._joined(mlp, {"down_proj": hidden}, inner, config.mlp_bias),
            window=config.windows[index],
        )

    def _embedding(self) -> Array:
        config = self.config
        shape = (config.vocabulary_size, config.hidden_size)
        return self._files.get("model.embed_tokens.weight", *shape)

    def _vector(self, name: str, size: int) -> Floats:
        return to_f32(self._files.get(name, size))

    def _joined(self, prefix: str, sizes: Mapping[str, int], inputs: int, bias: bool) -> Matrix:
        """Projections with the same input as one matrix."""
        parts = [self._files.get(f"{prefix}{n}.weight", size, inputs) for n, size in sizes.items()]
        biases = [self._vector(f"{prefix}{n}.bias", size) for n, size in sizes.items() if bias]
        if len({part.dtype for part in parts}) > 1:  # bfloat16 bits must not be read as numbers
            parts = [to_f32(part) for part in parts]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._converted(whole, np.concatenate(biases) if bias else None)

    def _converted(self, values: Array, bias: Floats | None) -> Matrix:
        if values.dtype == np.int8:
            raise EngineError("The weights are int8 without scales; use float32, bf16 or float16.")
        if self.kind == "int8":
            return Matrix(*to_int8(values), bias)
        return Matrix(to_f32(values) if self.kind == "f32" else to_bf16(values), None, bias)


def _names(config: ModelConfig) -> Iterator[str]:
    """Every tensor that the architecture has."""
    yield from ("model.embed_tokens.weight", "model.norm.weight")
    if not config.tied:
        yield "lm_head.weight"
    biased = {"q_proj": config.qkv_bias, "k_proj": config.qkv_bias, "v_proj": config.qkv_bias}
    biased |= {"o_proj": config.out_bias}
    for index in range(config.layer_count):
        layer = f"model.layers.{index}."
        yield from (layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight")
        if config.head_norms:
            yield from (layer + "self_attn.q_norm.weight", layer + "self_attn.k_norm.weight")
        for name, bias in biased.items():
            yield from (f"{layer}self_attn.{name}.{end}" for end in _ends(bias))
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield from (f"{layer}mlp.{name}.{end}" for end in _ends(config.mlp_bias))


def _ends(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)
