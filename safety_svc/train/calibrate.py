"""Calibration and the gates of the cascade, fitted on the dev split through the whole pipeline.

Scores are calibrated category by category with a slope and an offset (Platt 1999), so that a score
of 0.8 is right about four times in five on rows like those of the dev split.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from safety_svc.classifier.labels import CATEGORIES, COUNT
from safety_svc.classifier.model import Classifier
from safety_svc.classifier.normalise import plain
from safety_svc.classifier.weights import Fitted, Gates, Weights
from safety_svc.detectors.base import Audience
from safety_svc.train.row import Row

# Of the harmful rows of the dev split that the whole encoder sees, so many may end at the first
# stage and at the encoder's first layer.
GATE_MISSED_SHARE_MAX, EXIT_MISSED_SHARE_MAX = 0.0025, 0.001
GATE_MAX = 0.5
# From this score on the encoder sees a row: the policy marks it.
SEEN_MIN = 0.3
_POSITIVES_MIN = 8
_SLOPE_RANGE = (0.4, 2.5)
_LOGIT_MAX = 30.0


def fitted(loaded: Weights, rows: Sequence[Row]) -> Fitted:
    """Calibration and gates for `loaded` by `rows`."""
    classifier = Classifier(replace(loaded, fitted=Fitted()))
    logits = raw_logits(classifier, rows)
    slopes, offsets = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
    for column, category in enumerate(CATEGORIES):
        known = np.array([category in row.labels for row in rows])
        labels = np.array([row.labels.get(category, 0) for row in rows])[known]
        if labels.sum() < _POSITIVES_MIN or labels.all():
            continue
        model = LogisticRegression(C=10.0).fit(logits[known, column : column + 1], labels)
        slopes[column] = np.clip(model.coef_[0, 0], *_SLOPE_RANGE)
        offsets[column] = model.intercept_[0]
    scores = (1 / (1 + np.exp(-(logits * slopes + offsets)))).max(1)
    seen = [
        row for row, score in zip(rows, scores, strict=True) if row.unsafe == 1 and score > SEEN_MIN
    ]
    gates = _gates(seen, GATE_MISSED_SHARE_MAX, lambda text, _: classifier.first_stage(text))
    exits = _gates(
        seen,
        EXIT_MISSED_SHARE_MAX,
        lambda text, document: classifier.doubt(text, document=document),
    )
    return Fitted(gates, exits, slopes, offsets)


def raw_logits(classifier: Classifier, rows: Sequence[Row]) -> NDArray[np.float64]:
    """Logits of the pipeline before calibration, shape [rows, COUNT]."""
    scores = np.array([classifier.scores(row.text, audience_of(row)) for row in rows], np.float64)
    scores = np.clip(scores, 1e-13, 1 - 1e-13)
    return np.clip(np.log(scores / (1 - scores)), -_LOGIT_MAX, _LOGIT_MAX)


def _gates(
    rows: Sequence[Row], missed_share_max: float, score: Callable[[str, bool], float]
) -> Gates:
    """The highest scores of a stage below which hardly one of these harmful rows lies."""
    found = []
    for document in (False, True):
        scores = [score(plain(row.text), document) for row in rows if row.document == document]
        missed = np.quantile(scores, missed_share_max) if scores else 0.0
        found.append(float(min(missed, GATE_MAX)))
    return Gates(*found)


def audience_of(row: Row) -> Audience:
    """Who wrote a row."""
    return Audience.TOOL if row.document else Audience.USER
