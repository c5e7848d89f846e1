"""All figures of an evaluation as one document, and as lines to read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier.labels import CATEGORIES, public_name
from safety_svc.evaluate import figures
from safety_svc.evaluate.rows import Row
from safety_svc.evaluate.screening import Screened

_MS = 1_000


def document(rows: Sequence[Row], screened: Sequence[Screened], **about: Any) -> dict[str, Any]:
    """Every figure.

    `any_harm` compares the highest score, and the decision to refuse, with `unsafe`; `flagged`
    under it takes every mark of the policy for a decision. `categories` compares each category's
    score, and whether the policy acts on it, with its label.
    """
    scores = np.array([one.scores for one in screened], np.float64)
    flagged = np.array([one.flagged for one in screened], np.bool_)
    blocked = np.array([one.blocked for one in screened], np.bool_)
    known = np.array([row.unsafe is not None for row in rows])
    unsafe = np.array([bool(row.unsafe) for row in rows if row.unsafe is not None], np.bool_)
    highest = scores.max(axis=1)
    return {
        **about,
        "rows": len(rows),
        "blocked": int(blocked.sum()),
        "blocked_share": float(blocked.mean()),
        "blocked_share_interval": figures.wilson(int(blocked.sum()), len(rows)),
        "flagged_share": float(flagged.any(axis=1).mean()),
        "any_harm": {
            **_counts(unsafe),
            **figures.decisions(blocked[known], unsafe),
            **figures.ranking(highest[known], unsafe),
            "flagged": figures.decisions(np.any(flagged, axis=1)[known], unsafe),
        },
        "categories": {
            public_name(category): _category(rows, category, scores[:, index], flagged[:, index])
            for index, category in enumerate(CATEGORIES)
        },
        "deciding_categories": dict(
            Counter(_deciding(one) for one in screened if one.blocked).most_common()
        ),
        "latency_ms": latency([one.seconds for one in screened]),
    }


def _deciding(one: Screened) -> str:
    return "" if one.category is None else public_name(one.category)


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and mean in milliseconds, and rows in a second."""
    times = np.array(seconds) * _MS
    return {
        "p50": float(np.quantile(times, 0.5)),
        "p99": float(np.quantile(times, 0.99)),
        "mean": float(times.mean()),
        "rows_per_second": _MS / float(times.mean()),
    }


def _category(
    rows: Sequence[Row],
    category: Any,
    scores: NDArray[np.float64],
    flagged: NDArray[np.bool_],
) -> dict[str, Any]:
    known = np.array([category in row.labels for row in rows])
    labels = np.array([row.labels.get(category, False) for row in rows])[known]
    return {
        **_counts(labels),
        **figures.decisions(flagged[known], labels),
        **figures.ranking(scores[known], labels),
    }


def _counts(labels: NDArray[np.bool_]) -> dict[str, int]:
    return {"positives": int(labels.sum()), "negatives": int((~labels).sum())}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The document as a table."""
    low, high = found["blocked_share_interval"]
    yield (
        f"{found['rows']} rows, {found['blocked']} refused: "
        f"{found['blocked_share']:.1%} ({low:.1%} to {high:.1%})"
    )
    yield ""
    heads = "".join(f"{head:<18}" for head in ("precision", "recall", "F1", "AP"))
    yield f"{'':18}{'pos':>6}{'neg':>7}  {heads}{'AUROC':<7}{'FPR':<19}ECE"
