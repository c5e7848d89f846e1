"""Calibration and the gate of the cascade, fitted on the dev split through the whole pipeline.

Scores are calibrated category by category with a slope and an offset (Platt 1999), so that a score
of 0.8 is right about four times in five on rows like those of the dev split.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from safety_svc.classifier.labels import CATEGORIES, COUNT
from safety_svc.classifier.model import Classifier
from safety_svc.classifier.normalise import plain
from safety_svc.classifier.weights import Gates, Weights
from safety_svc.detectors.base import Audience
from safety_svc.train.row import Row

# Of the harmful rows of the dev split so many may end at the first stage.
MISSED_SHARE_MAX = 0.01
GATE_MAX = 0.5
_POSITIVES_MIN = 8
_SLOPE_RANGE = (0.4, 2.5)
_LOGIT_MAX = 30.0


def fitted(loaded: Weights, rows: Sequence[Row]) -> Weights:
    """`loaded` with its gate and calibration fitted to `rows`."""
    bare = replace(
        loaded,
        gates=Gates(0.0, 0.0),
        slopes=np.ones(COUNT, np.float32),
        offsets=np.zeros(COUNT, np.float32),
    )
    logits = raw_logits(Classifier(bare), rows)
    slopes, offsets = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
    for column, category in enumerate(CATEGORIES):
        known = np.array([category in row.labels for row in rows])
        labels = np.array([row.labels.get(category, 0) for row in rows])[known]
        if labels.sum() < _POSITIVES_MIN or labels.all():
            continue
        model = LogisticRegression(C=10.0).fit(logits[known, column : column + 1], labels)
        slopes[column] = np.clip(model.coef_[0, 0], *_SLOPE_RANGE)
        offsets[column] = model.intercept_[0]
    return replace(loaded, gates=gates(loaded, rows), slopes=slopes, offsets=offsets)


def raw_logits(classifier: Classifier, rows: Sequence[Row]) -> NDArray[np.float64]:
    """Logits of the pipeline before calibration, shape [rows, COUNT]."""
    scores = np.array([classifier.scores(row.text, audience_of(row)) for row in rows], np.float64)
    scores = np.clip(scores, 1e-13, 1 - 1e-13)
    return np.clip(np.log(scores / (1 - scores)), -_LOGIT_MAX, _LOGIT_MAX)


def gates(loaded: Weights, rows: Sequence[Row]) -> Gates:
    """The highest scores of the first stage below which hardly a harmful row lies."""
    classifier = Classifier(loaded)
    harmful = [row for row in rows if row.unsafe == 1]
    found = []
    for document in (False, True):
        scores = [
            classifier.first_stage(plain(row.text)) for row in harmful if row.document == document
        ]
        missed = np.quantile(scores, MISSED_SHARE_MAX) if scores else 0.0
        found.append(float(min(missed, GATE_MAX)))
    return Gates(*found)


def audience_of(row: Row) -> Audience:
    """Who wrote a row."""
    return Audience.TOOL if row.document else Audience.USER
