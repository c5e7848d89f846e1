"""The first stage: a linear model over hashed n-grams. It knows clearly harmless texts.

Most prompts are ordinary; this stage tells so in about 0.2 ms, in C++ 8 µs, and spares the encoder.
It decides nothing else: whatever it is not sure of goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier.features import features, features_of
from safety_svc.fast.library import FastLinear


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear model with int8 weights: one score, of any harm.

    Attributes:
        weights: shape [BUCKETS].
        scale: what one step of a weight stands for.
        bias: logit of a text without words.
        fast: the same weights in C++; None where the library is missing.
    """

    weights: NDArray[np.int8]
    scale: float
    bias: float
    fast: FastLinear | None = None

    def score(self, text: str) -> float:
        """How likely `text` is harmful, range [0, 1]."""
        if self.fast:
            return self._probability(*self.fast.sum(text))
        return self._score(features(text))

    def scores_of(self, text: str, spans: Sequence[tuple[int, int]]) -> list[float]:
        """Scores of parts of `text`, see `features_of`."""
        return [self._score(found) for found in features_of(text, spans)]

    def _score(self, found: NDArray[np.int64]) -> float:
        return self._probability(int(self.weights.take(found).sum(dtype=np.int32)), len(found))

    def _probability(self, steps: int, count: int) -> float:
        """The score of `count` features whose weights add up to `steps`."""
        return probability(steps * self.scale / math.sqrt(max(1, count)) + self.bias)


def probability(logit: float) -> float:
    """The logistic function of `logit`, written so that it cannot overflow."""
    return 0.5 + 0.5 * math.tanh(logit / 2)
