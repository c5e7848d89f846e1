"""Figures of a detector from scores, decisions and labels, with 95% intervals.

Proportions have Wilson intervals (Wilson 1927); average precision, AUROC and F1 have percentile
intervals of the bootstrap over rows (Efron and Tibshirani 1993) with a fixed seed. Calibration
error is the expected one over equal bins (Guo et al. 2017). A figure without rows to compute it
from is None.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Interval = tuple[float, float]

BIN_COUNT = 15
BOOTSTRAP_COUNT = 200
_Z = 1.959963984540054  # 97.5th percentile of the standard normal


def wilson(successes: int, count: int) -> Interval | None:
    """95% interval of a proportion; None without trials."""
    if count == 0:
        return None
    share = successes / count
    middle = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def average_precision(scores: Floats, labels: Bools) -> float | None:
    """Area under the steps of precision over recall; None without positives.

    Equal scores form one step, as in scikit-learn.
    """
    positives = int(labels.sum())
    if positives == 0:
        return None
    precision, recall, _ = precision_recall(scores, labels)
    return float(np.sum(np.diff(np.concatenate([[0.0], recall])) * precision))


def precision_recall(scores: Floats, labels: Bools) -> tuple[Floats, Floats, Floats]:
    """Precision and recall at every threshold, from the highest down: (precision, recall, t)."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(labels[order])
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    taken = last + 1
    return hits[last] / taken, hits[last] / max(1, int(labels.sum())), ranked[last]


def auroc(scores: Floats, labels: Bools) -> float | None:
    """Chance that a positive scores higher than a negative, ties half; None with one class."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if positives == 0 or negatives == 0:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = float(ranks[labels].sum()) - positives * (positives + 1) / 2
    return total / (positives * negatives)


def f1(predicted: Bools, labels: Bools) -> float | None:
    """Harmonic mean of precision and recall; None without positives."""
    if not labels.any():
        return None
    hits = int((predicted & labels).sum())
    return 2 * hits / (int(predicted.sum()) + int(labels.sum()))


def calibration(scores: Floats, labels: Bools) -> tuple[float | None, list[dict[str, float]]]:
    """Expected calibration error, and for each bin in use its count, mean score and share."""
    if not len(scores):
        return None, []
    places = np.minimum((scores * BIN_COUNT).astype(int), BIN_COUNT - 1)
    bins, error = [], 0.0
    for place in np.unique(places):
        inside = places == place
        score, share = float(scores[inside].mean()), float(labels[inside].mean())
        bins.append({"count": int(inside.sum()), "score": score, "share": share})
        error += abs(score - share) * int(inside.sum()) / len(scores)
    return error, bins


def bootstrap(
    figure: Callable[[NDArray[Any], Bools], float | None], values: NDArray[Any], labels: Bools
) -> Interval | None:
    """95% interval of `figure(values, labels)` by resampling rows; None where it has no value."""
    if figure(values, labels) is None:
        return None
    random = np.random.default_rng(0)
    found = []
    for _ in range(BOOTSTRAP_COUNT):
        taken = random.integers(0, len(labels), len(labels))
        one = figure(values[taken], labels[taken])
        if one is not None:
            found.append(one)
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def decisions(predicted: Bools, labels: Bools) -> dict[str, Any]:
    """Precision, recall, F1 and false-positive rate of decisions, with intervals."""
    hits = int((predicted & labels).sum())
    wrong = int((predicted & ~labels).sum())
    positives, negatives = int(labels.sum()), int((~labels).sum())
    return {
        "precision": _share(hits, hits + wrong),
        "precision_interval": wilson(hits, hits + wrong),
        "recall": _share(hits, positives),
        "recall_interval": wilson(hits, positives),
        "f1": f1(predicted, labels),
        "f1_interval": bootstrap(f1, predicted, labels),
        "false_positive_rate": _share(wrong, negatives),
        "false_positive_rate_interval": wilson(wrong, negatives),
    }


def ranking(scores: Floats, labels: Bools) -> dict[str, Any]:
    """Average precision and AUROC with intervals, and the calibration error."""
    return {
        "average_precision": average_precision(scores, labels),
        "average_precision_interval": bootstrap(average_precision, scores, labels),
        "auroc": auroc(scores, labels),
        "auroc_interval": bootstrap(auroc, scores, labels),
        "calibration_error": calibration(scores, labels)[0],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
