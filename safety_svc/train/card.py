"""The manifest of a trained classifier and its model card, with measured figures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from safety_svc.classifier import model
from safety_svc.classifier.labels import CATEGORIES, public_name
from safety_svc.detectors.base import Turn
from safety_svc.evaluate import report, rows, screening
from safety_svc.policy_source import published
from safety_svc.settings import POLICY
from safety_svc.train.calibrate import audience_of
from safety_svc.train.corpus import Corpus
from safety_svc.train.row import Row
from safety_svc.train.split import Split

TEMPLATE = Path(__file__).with_name("model_card.md")
_EXAMPLE_COUNT = 5


def measured(folder: Path, held_out: Sequence[Row]) -> dict[str, Any]:
    """Figures of the held-out split with the shipped policy: all rows, and each kind of rows."""
    policy = published(POLICY.read_text(encoding="utf-8"), str(POLICY))
    screen = screening.Screen(policy, model.load(folder))
    given = [as_given(row) for row in held_out]
    screened = [screen.screen(row) for row in given]
    found = report.document(given, screened)
    kinds: dict[str, dict[str, float]] = {}
    for kind in sorted({row.kind for row in held_out}):
        places = [index for index, row in enumerate(held_out) if row.kind == kind]
        kinds[kind] = _kind([screened[index] for index in places])
    return {**found, "kinds": kinds, "confusions": _confusions(given, screened)}


def as_given(row: Row) -> rows.Row:
    """A training row as the evaluation reads it."""
    labels = {category: bool(label) for category, label in row.labels.items()}
    unsafe = None if row.unsafe is None else bool(row.unsafe)
    return rows.Row([Turn(audience_of(row), row.text)], unsafe, labels)


def write_rows(path: Path, held_out: Sequence[Row]) -> None:
    """Writes the rows of the held-out split, for `python -m safety_svc.evaluate`."""
    with path.open("w", encoding="utf-8") as file:
        for row in held_out:
            role = "document" if row.document else "user"
            content: dict[str, Any] = {"messages": [{"role": role, "content": row.text}]}
            if row.unsafe is not None:
                content["unsafe"] = row.unsafe
            content["labels"] = {public_name(one): label for one, label in row.labels.items()}
            file.write(json.dumps(content | {"source": row.source, "kind": row.kind}) + "\n")


def _kind(screened: Sequence[screening.Screened]) -> dict[str, float]:
    return {
        "rows": len(screened),
        "refused": float(np.mean([one.blocked for one in screened])),
        "marked": float(np.mean([one.flagged.any() for one in screened])),
    }


def _confusions(
    given: Sequence[rows.Row], screened: Sequence[screening.Screened]
) -> dict[str, dict[str, int]]:
    """Of rows with a category, how often each other one was marked and not this one."""
    found: dict[str, dict[str, int]] = {}
    for row, one in zip(given, screened, strict=True):
        for index, category in enumerate(CATEGORIES):
            if not row.labels.get(category) or one.flagged[index]:
                continue
            marked = [public_name(CATEGORIES[i]) for i in np.flatnonzero(one.flagged)] or [
                "nothing"
            ]
            counts = found.setdefault(public_name(category), {})
            for name in marked:
                counts[name] = counts.get(name, 0) + 1
    return {
        name: dict(sorted(counts.items(), key=lambda pair: -pair[1])[:_EXAMPLE_COUNT])
        for name, counts in found.items()
    }


def text(figures: Mapping[str, Any], corpus: Corpus, about: Mapping[str, Any]) -> str:
    """The model card: the template with figures, sources and confusions."""
    counts = corpus.counts()
    sources = sorted({name for one in counts.values() for name in one})
    parts = {
        "version": str(about["version"]),
        "rows": ", ".join(f"{n:,} {split}" for split, n in about["rows"].items()),
        "table": "\n".join(_table(figures)),
        "kinds": "\n".join(_kinds(figures["kinds"])),
        "confusions": "\n".join(_confused(figures["confusions"])),
        "sources": "\n".join(
            f"| {name} | {counts[Split.TRAIN][name]:,} | {counts[Split.TEST][name]:,} |"
            for name in sources
        ),
    }
    card = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        card = card.replace(f"<{name}>", part)
    return card


def _table(figures: Mapping[str, Any]) -> list[str]:
    any_harm = figures["any_harm"]
    named = {"any harm, refused": any_harm, "any harm, marked": {**any_harm, **any_harm["flagged"]}}
    lines = ["| | positives | negatives | precision | recall | F1 | AP | AUROC | FPR | ECE |"]
    lines.append("|---|" + "---:|" * 9)
    for name, one in {**named, **figures["categories"]}.items():
        cells = [_cell(one, key) for key in ("precision", "recall", "f1", "average_precision")]
        cells += [_plain(one["auroc"]), _cell(one, "false_positive_rate")]
        cells.append(_plain(one["calibration_error"]))
        start = f"| {name} | {one['positives']} | {one['negatives']} | "
        lines.append(start + " | ".join(cells) + " |")
    return lines


def _cell(one: Mapping[str, Any], key: str) -> str:
    interval = one[f"{key}_interval"]
    if one[key] is None or interval is None:
        return _plain(one[key])
    return f"{one[key]:.3f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _kinds(kinds: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"| {name} | {one['rows']} | {one['refused']:.1%} | {one['marked']:.1%} |"
        for name, one in kinds.items()
        if not name.endswith("_turns")
    ]


def _confused(confusions: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"| {name} | " + ", ".join(f"{other} {count}" for other, count in counts.items()) + " |"
        for name, counts in confusions.items()
    ]
