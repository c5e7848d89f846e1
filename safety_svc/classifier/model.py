"""The trained classifier: texts and conversations to calibrated scores.

A cascade. The text in plain characters goes to the linear first stage, window by window; windows
that are not clearly harmless go to the encoder, whose first layers settle most of them. Then what
other readings of the text (decoded base64, leet undone, …) change goes the same way. The score of
a category is the highest over all of it.

What the parts of a conversation are, and what each weighs: `conversation.py`.
"""

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier import weights
from safety_svc.classifier.encoder import EXIT_COUNT, Window, WindowScore
from safety_svc.classifier.labels import CATEGORIES, COUNT, INDEX, NAME, judged
from safety_svc.classifier.linear import probability
from safety_svc.classifier.normalise import is_plain, plain, readings
from safety_svc.conversation import Part, parts, wrapped
from safety_svc.detectors.base import Audience, Context, Finding, PromptFinding, Turn, byte_count

T = TypeVar("T")
Scores = NDArray[np.float32]
_ALL = np.arange(COUNT)

# Lower scores are not reported.
REPORT_SCORE_MIN = 0.05
# Of longer texts the beginning and the end are judged; and only so many windows of one text by
# the encoder, those that the first stage finds worst.
HEAD_LENGTH_MAX, TAIL_LENGTH_MAX = 24_576, 8_192
ENCODER_WINDOW_COUNT_MAX = 12
# What either early stage settles scores this share of its own probability of harm: low, as it only
# ever says "harmless", but in order.
_SETTLED_SHARE = 0.02
# Taken off the logits of what is found in a message that weighs less; documents weigh the same
# wherever they stand.
_DISCOUNT = {Audience.USER: 1.0, Audience.ASSISTANT: 2.0, Audience.SYSTEM: 1.5}
# Scores nearer to 0 or 1 than this are taken for it where logits are made of them.
_CERTAIN = 1e-6


class Judged(NamedTuple):
    """Scores of one message: probabilities by category, shape [COUNT]."""

    message_index: int
    scores: Scores


class Classifier:
    """A `Detector` with trained weights; safe for several threads.

    Args:
        loaded: what `weights.load` returns.
    """

    name = NAME

    def __init__(self, loaded: weights.Weights) -> None:
        self._weights, self._fitted = loaded, loaded.fitted
        self._limits = {
            one: [_logit(early.of(one)) for early in loaded.fitted.exits] for one in Audience
        }
        self.digest, self.short_length = loaded.digest, _SHORT_LENGTH
        is_plain("")  # makes its table of characters: not at the first look, in the loop

    def scores(self, text: str, audience: Audience) -> Scores:
        """Probabilities of the categories for one text, shape [COUNT]; 0 where not judged.

        Args:
            text: of any length, see HEAD_LENGTH_MAX.
            audience: who wrote it; a document (TOOL) is judged as one.
        """
        if is_plain(text):
            found = self._reading(text.strip(), audience)
            return np.where(_MASKS[audience], found, np.float32(0))
        if len(text) > HEAD_LENGTH_MAX + TAIL_LENGTH_MAX:
            text = f"{text[:HEAD_LENGTH_MAX]}\n{text[-TAIL_LENGTH_MAX:]}"
        first = plain(text)
        found = self._reading(first, audience)
        for other in readings(first):
            found = np.maximum(found, self._reading(other, audience))
        return np.where(_MASKS[audience], found, np.float32(0))

    def clears(self, text: str, audience: Audience) -> bool:
        """True, within microseconds, for a text in which `scores` would find nothing to report.

        False says nothing: so for long texts, and for all where the C++ library is missing.
        """
        if not self._weights.linear.fast or len(text) > _SHORT_LENGTH or not is_plain(text):
            return False
        return self.first_stage(text.strip()) < self._fitted.gates.of(audience)

    def inspect(self, text: str, context: Context) -> Sequence[Finding]:
        """See `Detector`: at most one finding for each category, over the whole text."""
        return self.inspect_many([text], context.audience)[0]

    def inspect_many(self, texts: Sequence[str], audience: Audience) -> list[list[Finding]]:
        """`inspect` for several texts of one audience."""
        return [_findings(text, self.scores(text, audience)) for text in texts]

    def conversation(self, turns: Sequence[Turn]) -> list[PromptFinding]:
        """What is in a conversation: findings with their messages, in no certain order."""
        return found_in(turns, self.judge(turns))

    def judge(self, turns: Sequence[Turn]) -> list[Judged]:
        """Scores of every message, in no certain order."""
        found: dict[int, Scores] = {}
        self._add(parts(turns), found)
        first = found_in(turns, [Judged(*one) for one in found.items()])
        self._add(wrapped(turns, first), found)
        return [Judged(*one) for one in found.items()]

    def _add(self, several: Iterable[Part], found: dict[int, Scores]) -> None:
        """Adds the scores of `several` to those of their messages."""
        for part in several:
            scores = self.scores(part.text, part.audience)
            if part.weighs_less:
                scores = self._lessened(scores, part.audience)
            known = found.get(part.message_index, scores)
            found[part.message_index] = np.maximum(known, scores)

    def lessened(self, finding: Finding, audience: Audience) -> Finding:
        """See `Model.lessened`."""
        score = np.array([finding.score], np.float32)
        columns = np.array([INDEX[finding.category]])
        return finding._replace(score=float(self._lessened(score, audience, columns)[0]))

    def _lessened(
        self, scores: Scores, audience: Audience, columns: NDArray[np.int64] = _ALL
    ) -> Scores:
        """Scores of `columns`, with something taken off their logits before calibration."""
        certain = np.clip(scores, _CERTAIN, 1 - _CERTAIN)
        discount = self._fitted.slopes[columns] * np.float32(_DISCOUNT.get(audience, 0.0))
        less = _sigmoid(np.log(certain / (1 - certain)) - discount)
        # What an early stage settled has no logits, and is in order only.
        return np.where(scores < REPORT_SCORE_MIN, np.minimum(scores, less), less)

    def _reading(self, text: str, audience: Audience) -> Scores:
        """Scores of one reading: the highest over its parts that are not clearly harmless."""
        if len(text) <= _SHORT_LENGTH:
            rated = self.first_stage(text)
            doubtful = rated >= self._fitted.gates.of(audience)
            parts = self._weights.encoder.windows(text) if doubtful else []
            looks = [self._look(one, audience) for one in parts]
        else:
            rated, looks = self._long(text, audience)
        open_ones = [look.logits for look in looks if not look.settled]
        if not open_ones:
            # Which of the harmless texts are least so is still told.
            harm = max((probability(look.doubt) for look in looks), default=rated)
            return np.full(COUNT, _SETTLED_SHARE * harm, np.float32)
        highest = np.max(open_ones, axis=0)
        return _sigmoid(highest * self._fitted.slopes + self._fitted.offsets)

    def _long(self, text: str, audience: Audience) -> tuple[float, list[WindowScore]]:
        """The first stage's highest score, and the encoder's looks at what it finds worst.

        A request in the midst of harmless words is thin in every window; alone it is not. Each
        further look is one more chance to be wrong: it counts a little less.
        """
        encoder = self._weights.encoder
        windows = encoder.windows(text)
        # In one or two windows nothing is thin; and an instruction among other words is what
        # documents are trained to show.
        thick = audience is Audience.TOOL or len(windows) <= _THICK_COUNT
        sentences = [] if thick else _sentences(text)
        # All at once: what they share is hashed once.
        parts = sorted({*((one.start, one.end) for one in windows), *sentences})
        scores = dict(zip(parts, self._weights.linear.scores_of(text, parts), strict=True))
        rated = [scores[one.start, one.end] for one in windows]
        highest, gate = max(rated, default=0.0), self._fitted.gates.of(audience)
        count = max(2, len(windows) // 2) if thick else max(1, len(windows) // 4)
        worst = _worst(windows, rated, gate, count)
        looks = [_less(self._look(one, audience), _WINDOW_COST) for one in worst]
        rated = [scores[one] for one in sentences]
        for start, end in _worst(sentences, rated, _SENTENCE_MIN, _SENTENCE_COUNT):
            for window in encoder.windows(text[start:end])[:1]:
                looks.append(_less(self._look(window, audience), _SENTENCE_COST))
        return highest, looks

    def _look(self, window: Window, audience: Audience) -> WindowScore:
        document, limits = audience is Audience.TOOL, self._limits[audience]
        return self._weights.encoder.look(window, document=document, limits=limits)

    def first_stage(self, text: str) -> float:
        """Score of the linear model, range [0, 1]."""
        return self._weights.linear.score(text)

    def doubts(self, text: str, audience: Audience) -> NDArray[np.float32]:
        """Scores of the encoder's first layers: highest over the windows, shape [EXIT_COUNT]."""
        document, encoder = audience is Audience.TOOL, self._weights.encoder
        looks = [encoder.look(one, document=document).doubts for one in encoder.windows(text)]
        return _sigmoid(np.max(looks, axis=0)) if looks else np.zeros(EXIT_COUNT, np.float32)


def _logit(score: float) -> float:
    return math.log(score / (1 - score)) if score > 0 else -math.inf


def _less(look: WindowScore, cost: np.float32) -> WindowScore:
    """A look that counts less; one that is settled stays so."""
    return look if look.settled else look._replace(logits=look.logits - cost)


def _worst(parts: Sequence[T], scores: Sequence[float], least: float, count: int) -> list[T]:
    """Of `parts` those with the highest scores, from the score `least` on."""
    order = sorted(range(len(parts)), key=lambda index: -scores[index])
    most = min(count, ENCODER_WINDOW_COUNT_MAX)
    return [parts[index] for index in order[:most] if scores[index] >= least]


def found_in(turns: Sequence[Turn], judged_messages: Sequence[Judged]) -> list[PromptFinding]:
    """The findings out of what `Classifier.judge` returns."""
    return [
        PromptFinding(index, finding)
        for index, scores in judged_messages
        for finding in _findings(turns[index].text, scores)
    ]


def _sentences(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text lie, short ones together with the next, long ones cut."""
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if end - start >= _SENTENCE_LENGTH_MIN:
            found += [
                (at, min(at + _SENTENCE_LENGTH_MAX, end))
                for at in range(start, end, _SENTENCE_LENGTH_MAX)
            ]
            start = end
    if start < len(text):
        found.append((start, min(len(text), start + _SENTENCE_LENGTH_MAX)))
    return found


# A text up to this many characters, about one window, is looked at as a whole.
_SHORT_LENGTH = 640
# Taken off the logits of one window among several, and of a sentence by itself.
_WINDOW_COST, _SENTENCE_COST = np.float32(0.8), np.float32(1.5)
_THICK_COUNT = 2
# Sentences of a long text that the encoder sees alone, and from which score of the first stage on.
_SENTENCE_COUNT, _SENTENCE_MIN = 3, 0.3
_SENTENCE_LENGTH_MIN, _SENTENCE_LENGTH_MAX = 32, 240
_SENTENCE_END = re.compile(r"[.!?\n]+\s*|$")
_MASKS = {
    audience: np.array([category in judged(audience) for category in CATEGORIES])
    for audience in Audience
}


def load(folder: Path) -> Classifier:
    """The classifier of a folder; raises ModelError."""
    return Classifier(weights.load(folder))


@cache
def shipped() -> Classifier:
    """The classifier of this repository, loaded once; raises ModelError when it is damaged."""
    return load(weights.SHIPPED)


def _sigmoid(value: NDArray[np.float32]) -> NDArray[np.float32]:
    return (1 / (1 + np.exp(-value))).astype(np.float32)


def _findings(text: str, scores: Scores) -> list[Finding]:
    """Findings over all of `text`, for the scores that are reported."""
    end = byte_count(text)
    return [
        Finding(end, 0, end, CATEGORIES[index], NAME, float(scores[index]))
        for index in np.flatnonzero(scores >= REPORT_SCORE_MIN)
    ]
