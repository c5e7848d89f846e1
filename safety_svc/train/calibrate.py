"""Calibration, gates and thresholds, fitted through the whole pipeline on sources that the fit of
the weights did not see.

Scores are calibrated category by category with a slope and an offset (Platt 1999). The thresholds
at which a prompt is refused are set for a share of harmless prompts that may be refused, not for a
share of harm that must be found: to refuse an ordinary request is the worst that the screen does to
a person.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from safety_svc.classifier.encoder import EXIT_COUNT
from safety_svc.classifier.labels import ATTACKS, CATEGORIES, COUNT, INDEX
from safety_svc.classifier.model import Classifier
from safety_svc.classifier.normalise import plain
from safety_svc.classifier.weights import Fitted, Gates, Weights
from safety_svc.detectors.base import Audience, Category
from safety_svc.train.row import Row

# Of the harmful rows that the whole encoder finds, so many may end at the first stage and at each
# early layer. In an answer, where every look is one more chance, more may.
GATE_MISSED_SHARE_MAX = {Audience.USER: 0.02, Audience.TOOL: 0.005, Audience.REPLY: 0.05}
EXIT_MISSED_SHARE_MAX = 0.006
GATE_MAX = 0.5
# From these scores on a row is found: the shipped policy refuses hardly anything below.
FOUND_MIN = {Audience.USER: 0.4, Audience.TOOL: 0.4, Audience.REPLY: 0.6}
# Of harmless prompts, each source counting the same, so many may be refused for one category, of
# clean documents for holding instructions, and within an attack.
REFUSED_SHARE_MAX, REFUSED_DOCUMENTS_MAX, REFUSED_WRAPPED_MAX = 0.0012, 0.008, 0.006
_POSITIVES_MIN = 30
_SLOPE_RANGE = (0.4, 2.5)
_LOGIT_MAX = 30.0
Scores = NDArray[np.float64]


def fitted(loaded: Weights, held: Sequence[Row], dev: Sequence[Row]) -> Fitted:
    """Calibration and gates for `loaded`.

    Args:
        loaded: the weights.
        held: rows of sources that they were not trained on.
        dev: other rows of the sources that they were; only for categories that `held` has too few
            of.
    """
    classifier = Classifier(replace(loaded, fitted=Fitted()))
    rare = [one for one in CATEGORIES if _count(held, one) < _POSITIVES_MIN]
    rows = [*held, *(row for row in dev if any(row.labels.get(one) for one in rare))]
    logits = raw_logits(classifier, rows)
    slopes, offsets = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
    for column, category in enumerate(CATEGORIES):
        end = len(rows) if category in rare else len(held)
        known = np.array([category in row.labels for row in rows[:end]])
        labels = np.array([row.labels.get(category, 0) for row in rows[:end]])[known]
        if labels.sum() < _POSITIVES_MIN or labels.all():
            continue
        model = LogisticRegression(C=10.0).fit(logits[:end][known, column : column + 1], labels)
        slopes[column] = np.clip(model.coef_[0, 0], *_SLOPE_RANGE)
        offsets[column] = model.intercept_[0]
    scores = (1 / (1 + np.exp(-(logits * slopes + offsets)))).max(1)
    found = {
        audience: _of(
            [row for row, score in zip(rows, scores, strict=True) if score >= least], audience
        )
        for audience, least in FOUND_MIN.items()
    }
    gates = Gates(
        *(
            _quantile([classifier.first_stage(plain(row.text)) for row in found[one]], share)
            for one, share in GATE_MISSED_SHARE_MAX.items()
        )
    )
    doubts = {
        one: np.array([classifier.doubts(plain(row.text), one) for row in found[one]])
        for one in found
    }
    exits = [
        Gates(*(_quantile(doubts[one][:, number], EXIT_MISSED_SHARE_MAX) for one in found))
        for number in range(EXIT_COUNT)
    ]
    return Fitted(gates, exits, slopes, offsets)


def _count(rows: Sequence[Row], category: Category) -> int:
    return sum(row.labels.get(category, 0) for row in rows)


def raw_logits(classifier: Classifier, rows: Sequence[Row]) -> Scores:
    """Logits of the pipeline before calibration, shape [rows, COUNT]."""
    scores = np.array([classifier.scores(row.text, audience_of(row)) for row in rows], np.float64)
    scores = np.clip(scores, 1e-13, 1 - 1e-13)
    return np.clip(np.log(scores / (1 - scores)), -_LOGIT_MAX, _LOGIT_MAX)


def _of(rows: Sequence[Row], audience: Audience) -> list[Row]:
    """The harmful rows that tell what may be missed of an audience.

    Its own, for answers those of people that are no mere attacks on the model.
    """
    harmful = [row for row in rows if row.unsafe == 1]
    if audience is Audience.TOOL:
        return [row for row in harmful if row.document]
    spoken = [row for row in harmful if not row.document]
    if audience is Audience.REPLY:
        return [row for row in spoken if any(row.labels.get(one) for one in _HARMS)]
    return spoken


_HARMS = [category for category in CATEGORIES if category not in ATTACKS]


def _quantile(scores: Sequence[float] | Scores, share: float) -> float:
    """The highest score below which hardly one of these lies."""
    return float(min(np.quantile(scores, share), GATE_MAX)) if len(scores) else 0.0


def thresholds(scores: Scores, rows: Sequence[Row], share_max: float) -> dict[Category, float]:
    """For each category the lowest score that at most `share_max` of harmless rows reach.

    Args:
        scores: calibrated, shape [rows, COUNT].
        rows: of one audience, of sources that were held out; only the harmless count.
        share_max: each source counting the same, range (0, 1).
    """
    harmless = np.array([row.unsafe == 0 for row in rows])
    sizes = Counter(row.source for row in rows if row.unsafe == 0)
    weights = np.array([1 / sizes[row.source] for row in rows if row.unsafe == 0])
    weights /= weights.sum()
    found = {}
    for category, column in INDEX.items():
        one = scores[harmless, column]
        order = np.argsort(-one)
        above = np.searchsorted(np.cumsum(weights[order]), share_max)
        found[category] = float(one[order][min(above, len(order) - 1)])
    return found


def audience_of(row: Row) -> Audience:
    """Who wrote a row."""
    return Audience.TOOL if row.document else Audience.USER
