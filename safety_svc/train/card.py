"""The manifest of a trained classifier and its model card, with measured figures."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from safety_svc.classifier import model
from safety_svc.classifier.labels import CATEGORIES, public_name
from safety_svc.detectors.base import Turn
from safety_svc.evaluate import report, rows, screening
from safety_svc.evaluate.figures import wilson
from safety_svc.policy_source import published
from safety_svc.settings import POLICY
from safety_svc.train import calibrate
from safety_svc.train.calibrate import audience_of
from safety_svc.train.corpus import Corpus
from safety_svc.train.row import Row
from safety_svc.train.split import Split

TEMPLATE = Path(__file__).with_name("model_card.md")
_EXAMPLE_COUNT = 5
# Beside a kind or a source: whether its rows are harmful.
_HARM = {0: "", 1: " (harm)", None: " (unknown)"}
_LEADING = {
    "harmless refused (FPR)": "false_positive_rate",
    "harm refused (recall)": "recall",
    "precision": "precision",
    "average precision": "average_precision",
    "AUROC": "auroc",
}
# Fewer conversations of a kind tell nothing.
_TURNS_MIN = 50


def measured(folder: Path, held_out: Sequence[Row]) -> dict[str, Any]:
    """Figures of held-out rows with the shipped policy: all, by kind, by source."""
    policy = published(POLICY.read_text(encoding="utf-8"), str(POLICY))
    screen = screening.Screen(policy, model.load(folder))
    given = [as_given(row) for row in held_out]
    screened = [screen.screen(row) for row in given]
    found = report.document(given, screened)
    by_kind = _shares(held_out, screened, lambda row: f"{row.kind}{_HARM[row.unsafe]}")
    by_source = _shares(held_out, screened, lambda row: f"{row.source}{_HARM[row.unsafe]}")
    return {
        **found,
        "kinds": by_kind,
        "by_source": by_source,
        "confusions": _confusions(given, screened),
        "thresholds": _thresholds(held_out, screened),
    }


def _thresholds(
    held: Sequence[Row], screened: Sequence[screening.Screened]
) -> dict[str, dict[str, float]]:
    """Scores that no more than the shares of `calibrate` of harmless held-out rows reach.

    By the section of the policy that they are meant for, and category.
    """
    found: dict[str, dict[str, float]] = {}
    for section, document, share in (
        ("prompt", False, calibrate.REFUSED_SHARE_MAX),
        ("wrapped", False, calibrate.REFUSED_WRAPPED_MAX),
        ("document", True, calibrate.REFUSED_DOCUMENTS_MAX),
    ):
        places = [place for place, row in enumerate(held) if row.document is document]
        scores = np.array([screened[place].scores for place in places], np.float64)
        limits = calibrate.thresholds(scores, [held[place] for place in places], share)
        found[section] = {public_name(one): round(limit, 3) for one, limit in limits.items()}
    return found


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


def _shares(
    held_out: Sequence[Row],
    screened: Sequence[screening.Screened],
    name_of: Callable[[Row], str],
) -> dict[str, dict[str, Any]]:
    """The share refused and the share marked of the rows of each name."""
    found: dict[str, list[screening.Screened]] = defaultdict(list)
    for row, one in zip(held_out, screened, strict=True):
        found[name_of(row)].append(one)
    return {
        name: {
            "rows": len(several),
            "refused": float(np.mean([one.blocked for one in several])),
            "refused_interval": wilson(sum(one.blocked for one in several), len(several)),
            "marked": float(np.mean([one.flagged.any() for one in several])),
        }
        for name, several in sorted(found.items())
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
    trained, tested = counts[Split.TRAIN], counts[Split.TEST]
    held, split = figures["sources"], figures["split"]
    parts = {
        "version": str(about["version"]),
        "rows": ", ".join(f"{n:,} {split}" for split, n in about["rows"].items()),
        "gap": "\n".join(_gap(held, split)),
        "held_table": "\n".join(_table(held)),
        "held_kinds": "\n".join(_kinds(held["kinds"])),
        "held_sources": "\n".join(_kinds(held["by_source"])),
        "table": "\n".join(_table(split)),
        "kinds": "\n".join(_kinds(split["kinds"])),
        "confusions": "\n".join(_confused(held["confusions"])),
        "sources": ", ".join(
            f"{name} {trained[name]:,}" for name in sorted({*trained, *tested}) if trained[name]
        ),
    }
    card = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        card = card.replace(f"<{name}>", part)
    return card


def _gap(held: Mapping[str, Any], split: Mapping[str, Any]) -> list[str]:
    """One line a figure: on sources never seen, on rows never seen, and what lies between."""
    lines = []
    for name, key in _LEADING.items():
        strange, known = held["any_harm"][key], split["any_harm"][key]
        cells = [_cell(held["any_harm"], key), _cell(split["any_harm"], key)]
        lines.append(f"| {name} | {' | '.join(cells)} | {strange - known:+.3f} |")
    return lines


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


def _kinds(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"| {name} | {one['rows']} | {one['refused']:.1%} ({one['refused_interval'][0]:.1%} to "
        f"{one['refused_interval'][1]:.1%}) | {one['marked']:.1%} |"
        for name, one in kinds.items()
        if "_turns" not in name or one["rows"] >= _TURNS_MIN
    ]


def _confused(confusions: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"| {name} | " + ", ".join(f"{other} {count}" for other, count in counts.items()) + " |"
        for name, counts in confusions.items()
    ]
