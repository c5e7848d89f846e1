"""config.json of the Llama, Mistral, Qwen2 and Qwen3 families, old and new spelling; no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_svc.engine.protocol import EngineError

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base and, for "linear" and "llama3", how it is stretched."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """One for each pair of dimensions, [head_dim / 2], in radians a position."""
        plain = [self.theta ** (-i / head_dim) for i in range(0, head_dim, 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        return [self._llama3(f) for f in plain] if self.kind == "llama3" else plain

    def _llama3(self, frequency: float) -> float:
        """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
        wavelength = 2 * math.pi / frequency
        if wavelength < self.original_context / self.high_freq_factor:
            return frequency
        if wavelength > self.original_context / self.low_freq_factor:
            return frequency / self.factor
        smooth = (self.original_context / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the transformer needs to know.

    Attributes:
        windows: for each layer, how many newest positions a token sees; 0: all.
    """

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
    rope: RopeConfig
    windows: tuple[int, ...]


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """The checked form of a config.json.

    Raises:
        EngineError: the architecture, or a feature that it uses, is not supported.
    """
    family = FAMILIES.get((config.get("architectures") or ["?"])[0])
    if family is None:
        names = ", ".join(config.get("architectures") or ["none"])
        raise EngineError(
            f"The architecture {names} is not supported; use one of {', '.join(FAMILIES)}."
        )
    _refuse("hidden_act", config.get("hidden_act", "silu"), "silu")
    _refuse("partial_rotary_factor", config.get("partial_rotary_factor", 1.0), 1.0)
    _refuse("quantization_config", config.get("quantization_config"), None)
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return ModelConfig(
        vocabulary_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        layer_count=int(config["num_hidden_layers"]),
        head_count=heads,
        kv_head_count=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        context=int(config["max_position_embeddings"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        rope=_rope(config),
        windows=_windows(config, family),
    )


def _refuse(field: str, value: object, supported: object) -> None:
    if value != supported:
        raise EngineError(f"{field}={value!r} in config.json is not supported, only {supported!r}.")


def _rope(config: Mapping[str, Any]) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` before it."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise EngineError(f"rope scaling {kind!r} is not supported; use default, linear or llama3.")
    _refuse("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0), 1.0)
    if kind == "default":
        return RopeConfig(theta)
    return RopeConfig(
        theta,
        kind,
        float(scaling["factor"]),
        float(scaling.get("low_freq_factor", 1.0)),
        float(scaling.get("high_freq_factor", 4.0)),
        int(scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]),
    )


def _windows(config: Mapping[str, Any], family: str) -> tuple[int, ...]:
    count, window = int(config["num_hidden_layers"]), config.get("sliding_window") or 0
    if kinds := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family.startswith("qwen"):
        if not config.get("use_sliding_window", False):
            window = 0
        first = int(config.get("max_window_layers", count))
        return tuple(window if layer >= first else 0 for layer in range(count))
    return (window if family == "mistral" else 0,) * count
