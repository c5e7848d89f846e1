"""A folder with a Hugging Face sequence classifier: `config.json`, tokenizer, weights.

`transformers` is imported only when this back end is chosen. A model with `problem_type`
"multi_label_classification" gives a probability to each label by itself; any other model one
distribution over its labels.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safety_svc.backends.base import BackendError
from safety_svc.detectors.base import (
    Audience,
    Category,
    Finding,
    byte_count,
)

NAME = "huggingface"
SCORE_MIN = 0.05  # less is not reported
WINDOW_LENGTH = 1_024  # characters of a text that are read at once
WINDOW_COUNT_MAX = 64  # at once
TOKEN_COUNT_MAX = 512
_WEIGHTS = ("*.safetensors", "*.bin", "config.json", "tokenizer.json", "vocab.txt")


class HuggingFaceModel:
    """The classifier of a folder.

    Args:
        folder: as `save_pretrained` writes it; nothing is downloaded.
        labels: the model's label -> our category; labels without one are not reported.

    Raises:
        BackendError: it cannot be loaded, or `labels` names a label that the model has not.
    """

    name = NAME
    short_length = 0

    def __init__(self, folder: Path, labels: Mapping[str, Category]) -> None:
        try:
            import transformers
        except ImportError as error:
            raise BackendError("install transformers to use the back end huggingface") from error
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True
            )
            model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise BackendError(f"{folder} holds no sequence classifier: {error}") from error
        self._model = model.eval().requires_grad_(False)
        self._columns = _columns(model.config, labels)
        self._multi_label = model.config.problem_type == "multi_label_classification"
        self.digest = _digest(folder)

    def clears(self, text: str, audience: Audience) -> bool:
        """See `Model.clears`: there is no first stage."""
        return False

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
        """See `Model.inspect_many`: each text window by window, of each category the highest."""
        del audience
        places = [
            (number, at)
            for number, text in enumerate(texts)
            for at in range(0, max(1, len(text)), WINDOW_LENGTH)
        ]
        found: list[dict[Category, Finding]] = [{} for _ in texts]
        for first in range(0, len(places), WINDOW_COUNT_MAX):
            several = places[first : first + WINDOW_COUNT_MAX]
            windows = [texts[number][at : at + WINDOW_LENGTH] for number, at in several]
            for (number, at), window, row in zip(
                several, windows, self._rows(windows), strict=True
            ):
                offset = byte_count(texts[number][:at])
                for one in self._findings(window, row):
                    known = found[number].get(one.category)
                    if known is None or one.score > known.score:
                        found[number][one.category] = _moved(one, offset)
        return [list(one.values()) for one in found]

    def lessened(self, finding: Finding, audience: Audience) -> Finding:
        """See `Model.lessened`: a message weighs the same wherever it stands."""
        del audience
        return finding

    def _rows(self, windows: Sequence[str]) -> list[list[float]]:
        """Scores by label of texts that are read at once."""
        inputs = self._tokenizer(
            list(windows),
            padding=True,
            truncation=True,
            max_length=TOKEN_COUNT_MAX,
            return_tensors="pt",
        )
        logits = self._model(**inputs).logits.double()
        scores = logits.sigmoid() if self._multi_label else logits.softmax(-1)
        rows: list[list[float]] = scores.tolist()
        return rows

    def _findings(self, text: str, row: Sequence[float]) -> list[Finding]:
        end = byte_count(text)
        best: dict[Category, float] = {}
        for column, category in self._columns.items():
            best[category] = max(best.get(category, 0.0), row[column])
        return [
            Finding(max(0, end - 1), 0, end, category, NAME, score)
            for category, score in best.items()
            if score >= SCORE_MIN
        ]


def _columns(config: Any, labels: Mapping[str, Category]) -> dict[int, Category]:
    known = {str(label): int(index) for index, label in config.id2label.items()}
    missing = sorted(set(labels) - set(known))
    if missing or not labels:
        raise BackendError(
            f"SAFETY_LABELS names {', '.join(missing) or 'no label'}; the model has "
            f"{', '.join(sorted(known))}"
        )
    return {known[label]: category for label, category in labels.items()}


def _digest(folder: Path) -> str:
    """SHA-256 over the files that make the model, in order of their names."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _moved(finding: Finding, offset: int) -> Finding:
    return finding._replace(
        settled_at=finding.settled_at + offset,
        start=finding.start + offset,
        end=finding.end + offset,
    )
