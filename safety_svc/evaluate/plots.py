"""Plots of an evaluation: precision over recall, calibration, latency. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier.labels import CATEGORIES, public_name
from safety_svc.evaluate import figures
from safety_svc.evaluate.rows import Row
from safety_svc.evaluate.screening import Screened

Floats = NDArray[np.float64]
Labelled = tuple[Floats, NDArray[np.bool_]]


def draw(rows: Sequence[Row], screened: Sequence[Screened], folder: Path) -> list[Path]:
    """Writes the plots to `folder` and returns their paths; raises ImportError."""
    import matplotlib as mpl  # not needed for the figures

    mpl.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    curves = _curves(rows, screened)
    # A colour for each of the 15 curves: the usual cycle has ten. Strong ones first.
    colours = mpl.colormaps["tab20"](range(20))
    paths = []
    for name, plot in (("precision_recall", _precision_recall), ("calibration", _calibration)):
        figure, axes = pyplot.subplots(figsize=(7, 6))
        axes.set_prop_cycle(color=[*colours[::2], *colours[1::2]])
        plot(axes, curves)
        axes.grid(alpha=0.3)
        paths.append(_save(figure, folder / f"{name}.png"))
    figure, axes = pyplot.subplots(figsize=(7, 4))
    _latency(axes, [one.seconds for one in screened])
    paths.append(_save(figure, folder / "latency.png"))
    pyplot.close("all")
    return paths


def _curves(rows: Sequence[Row], screened: Sequence[Screened]) -> dict[str, Labelled]:
    """Scores and labels of any harm and of every category with rows of both classes."""
    scores = np.array([one.scores for one in screened], np.float64)
    known = np.array([row.unsafe is not None for row in rows])
    unsafe = np.array([bool(row.unsafe) for row in rows])
    curves = {"any harm": (scores.max(axis=1)[known], unsafe[known])}
    for index, category in enumerate(CATEGORIES):
        known = np.array([category in row.labels for row in rows])
        labels = np.array([row.labels.get(category, False) for row in rows])
        curves[public_name(category)] = (scores[known, index], labels[known])
    return {k: v for k, v in curves.items() if v[1].any() and not v[1].all()}


def _precision_recall(axes: Any, curves: dict[str, Labelled]) -> None:
    for name, (scores, labels) in curves.items():
        precision, recall, _ = figures.precision_recall(scores, labels)
        area = figures.average_precision(scores, labels)
        width = 2.5 if name == "any harm" else 1
        axes.step(recall, precision, where="post", label=f"{name} {area:.2f}", linewidth=width)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(fontsize=7, title="average precision")


def _calibration(axes: Any, curves: dict[str, Labelled]) -> None:
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for name, (scores, labels) in curves.items():
        error, bins = figures.calibration(scores, labels)
        points = [(one["score"], one["share"]) for one in bins]
        width = 2.5 if name == "any harm" else 1
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=3,
            linewidth=width,
            label=f"{name} {error:.3f}",
        )
    axes.set(xlabel="score", ylabel="share of positives", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=7, title="calibration error")


def _latency(axes: Any, seconds: Sequence[float]) -> None:
    times = np.array(seconds) * 1_000
    low, high = max(float(times.min()), 1e-3), float(times.max()) * 1.01
    axes.hist(times, bins=np.geomspace(low, max(high, low * 2), 60))
    for share in (0.5, 0.99):
        axes.axvline(float(np.quantile(times, share)), color="black", linestyle="--", linewidth=1)
    axes.set(
        xlabel="milliseconds a row (lines: median, 99th percentile)", ylabel="rows", xscale="log"
    )


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return path
