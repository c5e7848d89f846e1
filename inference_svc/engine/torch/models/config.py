"""config.json of the Llama, Mistral, Qwen2 and Qwen3 families, old and new spelling; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.models.rope import RopeConfig, read_rope

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder for all families: what differs between them is read off here.

    Attributes:
        tied: the output matrix is the embedding.
        qkv_bias, out_bias, mlp_bias: which projections have biases.
        head_norms: queries and keys are normed, head by head, before they are rotated.
        windows: for each layer, how many newest positions a token sees, itself included; 0: all.
    """

    architecture: str
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_dim: int
    norm_eps: float
    context: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    rope: RopeConfig
    windows: tuple[int, ...]

    def rotations(
        self, position_count: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosine and sine of the rotary embedding, each [positions, head_dim / 2]."""
        return self.rope.rotations(self.head_dim, position_count)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """The checked form of a config.json.

    Raises:
        EngineError: the architecture, or a feature that it uses, is not supported, or the file
            lacks what is needed.
    """
    try:
        return _read(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EngineError(
            f"config.json is incomplete or wrong ({type(error).__name__}: {error})."
        ) from error


def _read(config: Mapping[str, Any]) -> ModelConfig:
    architecture = (config.get("architectures") or ["none"])[0]
    family = FAMILIES.get(architecture)
    if family is None:
        raise EngineError(
            f"The architecture {architecture} is not supported; use one of {', '.join(FAMILIES)}."
        )
    _refuse("hidden_act", config.get("hidden_act", "silu"), "silu")
    _refuse("quantization_config", config.get("quantization_config"), None)
    for place in (config, config.get("rope_parameters") or {}):
        _refuse("partial_rotary_factor", place.get("partial_rotary_factor") or 1.0, 1.0)
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ValueError(f"{heads} heads do not divide into {kv_heads} groups")
    attention_bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelConfig(
        architecture=architecture,
        vocabulary_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        layer_count=int(config["num_hidden_layers"]),
        head_count=heads,
        kv_head_count=kv_heads,
        head_dim=int(config.get("head_dim") or hidden // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        context=int(config["max_position_embeddings"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        out_bias=attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        head_norms=family == "qwen3",
        rope=read_rope(config),
        windows=_windows(config, family),
    )


def _refuse(field: str, value: object, supported: object) -> None:
    if value != supported:
        raise EngineError(f"{field}={value!r} in config.json is not supported, only {supported!r}.")


def _windows(config: Mapping[str, Any], family: str) -> tuple[int, ...]:
    count, window = int(config["num_hidden_layers"]), config.get("sliding_window") or 0
    if kinds := config.get("layer_types"):
        if len(kinds) != count:
            raise ValueError(f"{len(kinds)} layer_types for {count} layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family.startswith("qwen"):
        if not config.get("use_sliding_window", False):
            window = 0
        first = int(config.get("max_window_layers", count))
        return tuple(window if layer >= first else 0 for layer in range(count))
    return (window if family == "mistral" else 0,) * count
