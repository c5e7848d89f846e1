"""The arithmetic of the figures, against scikit-learn and numbers worked out by hand."""

import numpy as np
import pytest
from sklearn import metrics

from safety_svc.evaluate import figures


def _random(count: int, distinct: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(distinct)
    scores = random.integers(0, distinct, count) / distinct
    return scores, random.random(count) < 0.2 + 0.6 * scores


@pytest.mark.parametrize("distinct", [2, 7, 1000])
def test_ranking_figures_agree_with_scikit_learn(distinct: int) -> None:
    scores, labels = _random(300, distinct)
    expected = metrics.average_precision_score(labels, scores)
    assert figures.average_precision(scores, labels) == pytest.approx(expected)
    assert figures.auroc(scores, labels) == pytest.approx(metrics.roc_auc_score(labels, scores))
    precision, recall, thresholds = figures.precision_recall(scores, labels)
    theirs = metrics.precision_recall_curve(labels, scores)
    np.testing.assert_allclose(precision[::-1], theirs[0][:-1])
    np.testing.assert_allclose(recall[::-1], theirs[1][:-1])
    np.testing.assert_allclose(thresholds[::-1], theirs[2])


def test_decisions_agree_with_scikit_learn() -> None:
    scores, labels = _random(200, 50)
    predicted = scores > 0.6
    found = figures.decisions(predicted, labels)
    assert found["precision"] == pytest.approx(metrics.precision_score(labels, predicted))
    assert found["recall"] == pytest.approx(metrics.recall_score(labels, predicted))
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, predicted))
    low, high = found["f1_interval"]
    assert low < found["f1"] < high
    wrong = (predicted & ~labels).sum() / (~labels).sum()
    assert found["false_positive_rate"] == pytest.approx(wrong)


def test_wilson_by_hand() -> None:
    # 8 of 10: Wilson (1927), z = 1.96, gives 0.4902 to 0.9433.
    assert figures.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert figures.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert figures.wilson(0, 0) is None


def test_calibration_by_hand() -> None:
    scores = np.array([0.1, 0.1, 0.9, 0.9])
    labels = np.array([False, False, True, False])
    error, bins = figures.calibration(scores, labels)
    assert error == pytest.approx(0.5 * 0.1 + 0.5 * 0.4)
    assert [one["count"] for one in bins] == [2, 2]
    assert figures.calibration(np.array([1.0]), np.array([True]))[0] == pytest.approx(0)


def test_what_cannot_be_computed_is_none() -> None:
    nothing = np.array([]), np.array([], bool)
    ones = np.array([0.2, 0.4]), np.array([True, True])
    zeros = np.array([0.2, 0.4]), np.array([False, False])
    assert figures.auroc(*nothing) is figures.auroc(*ones) is figures.auroc(*zeros) is None
    assert figures.average_precision(*zeros) is None
    assert figures.average_precision(*ones) == 1
    assert figures.calibration(*nothing) == (None, [])
    for scores, labels in (nothing, ones, zeros):
        found = {**figures.decisions(scores > 0.3, labels), **figures.ranking(scores, labels)}
        for name, value in found.items():
            if not name.endswith("_interval") and value is None:
                assert found.get(f"{name}_interval") is None
