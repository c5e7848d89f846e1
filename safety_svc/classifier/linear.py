"""The first stage: a linear model over hashed n-grams. It knows clearly harmless texts.

Most prompts are ordinary; this stage tells so in about 0.3 ms and spares the encoder. It decides
nothing else: whatever it is not sure of goes on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier.features import features


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear model with int8 weights.

    Attributes:
        weights: shape [BUCKETS, outputs]; one output for each category, the last for the verdict.
        scales: what one step of a weight stands for, shape [outputs].
        biases: shape [outputs].
    """

    weights: NDArray[np.int8]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]

    def logits(self, text: str) -> NDArray[np.float32]:
        """Logits of `text`, shape [outputs]."""
        found = features(text)
        sums = self.weights[found].sum(axis=0, dtype=np.int32)
        size = np.float32(max(1, len(found))) ** np.float32(-0.5)
        logits: NDArray[np.float32] = sums * self.scales * size + self.biases
        return logits
