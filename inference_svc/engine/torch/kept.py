"""Which tokens top-k, top-p and min-p leave. Sorts no more of a row than it must."""

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import Sampling

Weights = npt.NDArray[np.float32]

# The likeliest weighs 1. Each floor lets more tokens be sorted; the last lets all of them.
_FLOORS = (2.0**-5, 2.0**-9, 2.0**-14, 2.0**-20, 0.0)


def narrows(sampling: Sampling) -> bool:
    """Whether some tokens may be left out."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def kept(weights: Weights, sampling: Sampling) -> npt.NDArray[np.int64]:
    """Columns that may be drawn: min-p first, then top-k, then top-p of what is left, as in vLLM.

    Of equally likely tokens the one with the smaller column is the likelier. Top-p keeps the
    smallest set of the likeliest whose probabilities reach top_p.

    Args:
        weights: one row, [tokens], not negative, the largest 1.
    """
    if sampling.min_p > 0:
        weights = np.where(weights >= np.float32(sampling.min_p), weights, np.float32(0))
    count = sampling.top_k if 0 < sampling.top_k < weights.size else 0
    if not count and sampling.top_p >= 1:
        return np.flatnonzero(weights)
    total = float(weights.sum(dtype=np.float64))
    for floor in _FLOORS:
        columns = np.flatnonzero(weights > np.float32(floor))
        found = weights[columns]
        if (
            columns.size >= count
            if count
            else found.sum(dtype=np.float64) >= sampling.top_p * total
        ):
            break
    order = np.argsort(-found, kind="stable")[: count or None]
    if sampling.top_p < 1:
        mass = np.cumsum(found[order], dtype=np.float64)
        likelier = np.concatenate([[0.0], mass[:-1]])
        order = order[likelier < sampling.top_p * (mass[-1] if count else total)]
    return columns[order]


def narrow(weights: Weights, sampling: Sampling) -> None:
    """Zeroes what may not be drawn of a row, [tokens]."""
    columns = kept(weights, sampling)
    left = weights[columns]
    weights[:] = 0
    weights[columns] = left
