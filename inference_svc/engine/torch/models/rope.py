"""Rotary position embedding (Su et al., 2021) and the ways in which checkpoints stretch it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import EngineError

Floats = npt.NDArray[np.float32]
KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base and, for all kinds but "default", how it is stretched to a longer context.

    Attributes:
        parameters: `rope_parameters` of config.json.
    """

    theta: float
    kind: str
    parameters: Mapping[str, Any]
    context: int

    def rotations(self, head_dim: int, position_count: int) -> tuple[Floats, Floats]:
        """Cosine and sine of the angle of each pair of dimensions, [positions, head_dim / 2].

        Dimension i is paired with i + head_dim / 2, as in the Llama checkpoints.
        """
        frequencies = np.array(self.inverse_frequencies(head_dim), np.float32)
        angles = np.arange(position_count, dtype=np.float32)[:, None] * frequencies
        factor = np.float32(self._attention_factor())
        return np.cos(angles) * factor, np.sin(angles) * factor

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """One for each pair of dimensions, [head_dim / 2], in radians a position."""
        plain = [self.theta ** (-i / head_dim) for i in range(0, head_dim, 2)]
        if self.kind == "linear":
            return [f / self._number("factor") for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return self._yarn(plain, head_dim) if self.kind == "yarn" else plain

    def _llama3(self, frequency: float) -> float:
        """Long wavelengths are stretched, short ones kept, those between blended (Llama 3.1)."""
        low, high = self._number("low_freq_factor", 1.0), self._number("high_freq_factor", 4.0)
        wavelength, factor = 2 * math.pi / frequency, self._number("factor")
        if wavelength < self._original_context / high:
            return frequency
        if wavelength > self._original_context / low:
            return frequency / factor
        smooth = (self._original_context / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    def _yarn(self, plain: list[float], head_dim: int) -> list[float]:
        """YaRN (Peng et al., 2023): a ramp over dimensions from kept to stretched."""

        def dimension(rotations: float) -> float:
            scale = math.log(self._original_context / (rotations * 2 * math.pi))
            return head_dim * scale / (2 * math.log(self.theta))

        low = dimension(self._number("beta_fast", 32.0))
        high = dimension(self._number("beta_slow", 1.0))
        if self.parameters.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        span, factor = max(high - low, 0.001), self._number("factor")
        ramp = [min(max((i - low) / span, 0.0), 1.0) for i in range(len(plain))]
        return [f * (1 - r) + f / factor * r for f, r in zip(plain, ramp, strict=True)]

    def _attention_factor(self) -> float:
        """What queries and keys are both multiplied with: 1 except for YaRN."""
        if self.kind != "yarn":
            return 1.0
        if given := self.parameters.get("attention_factor"):
            return float(given)

        def scale(weight: float) -> float:
            return max(1.0, 0.1 * weight * math.log(self._number("factor")) + 1)

        weight, all_dims = self._number("mscale", 0.0), self._number("mscale_all_dim", 0.0)
        return scale(weight) / scale(all_dims) if weight and all_dims else scale(1.0)

    @property
    def _original_context(self) -> int:
        return int(self.parameters.get("original_max_position_embeddings") or self.context)

    def _number(self, name: str, default: float | None = None) -> float:
        value = self.parameters.get(name)
        if value is None:
            if default is None:
                raise KeyError(f"rope_parameters.{name}")
            return default
        return float(value)


def read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` before it.

    Raises:
        EngineError: this way of stretching is not supported.
        KeyError: one of its numbers is missing.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in KINDS:
        raise EngineError(f"rope scaling {kind!r} is not supported; use one of {', '.join(KINDS)}.")
    theta = float(found.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    rope = RopeConfig(theta, kind, dict(found), int(config["max_position_embeddings"]))
    rope.inverse_frequencies(4)  # a missing number is told now, not in the first step
    return rope
