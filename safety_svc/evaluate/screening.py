"""Scores a row exactly as ScreenPrompt does: same policy, same rules, same classifier."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier.labels import COUNT, INDEX
from safety_svc.classifier.model import Classifier, Judged, found_in
from safety_svc.detectors.base import Category, PromptFinding
from safety_svc.detectors.kinds import KINDS
from safety_svc.evaluate.rows import Row
from safety_svc.policy import HALTING, Action, Judgement, Regime
from safety_svc.policy_source import Published
from safety_svc.prompt import PromptScreener, screened

TIER = "free"


@dataclass(frozen=True, slots=True)
class Screened:
    """What came out for one row.

    Attributes:
        scores: highest score by category over all messages, shape [COUNT].
        flagged: categories whose score the policy acts on, if only by a mark, shape [COUNT].
        blocked: True when the person is refused.
        category: the one that decided; None when nothing was done.
        seconds: time it took, without audit and network.
    """

    scores: NDArray[np.float32]
    flagged: NDArray[np.bool_]
    blocked: bool
    category: Category | None
    seconds: float


class Screen:
    """Screens rows.

    Args:
        published: the policy and its detectors.
        classifier: None leaves the rules alone.
    """

    def __init__(self, published: Published, classifier: Classifier | None) -> None:
        self._published, self._classifier = published, classifier
        self._regime = published.policy.regime(TIER)

    def screen(self, row: Row) -> Screened:
        """Scores and judges one row."""
        begun = time.perf_counter()
        judged = self._classifier.judge(row.turns) if self._classifier else []
        found = found_in(row.turns, judged) if self._classifier else None
        screener = screened(self._regime, self._published.detectors, row.turns, found)
        judgement, _ = screener.end()
        seconds = time.perf_counter() - begun
        return self._result(judged, screener, judgement, seconds)

    def _result(
        self,
        judged: Sequence[Judged],
        screener: PromptScreener,
        judgement: Judgement,
        seconds: float,
    ) -> Screened:
        """With the scores below the reporting limit too: the ranking figures need them."""
        scores, flagged = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.bool_)
        # Spans of personal data and secrets have figures of their own: an e-mail address in a
        # text says nothing about the harm in it.
        found = [one for one in screener.found if one.finding.detector not in KINDS]
        for one in found:
            finding = one.finding
            if finding.category in INDEX:
                column = INDEX[finding.category]
                scores[column] = max(scores[column], finding.score)
                direction = screener.direction(one)
                flagged[column] |= self._regime.action(direction, finding) > Action.ALLOW
        for each in judged:
            scores = np.maximum(scores, each.scores)
        return Screened(
            scores=scores,
            flagged=flagged,
            blocked=_harm(screener, self._regime, found),
            category=judgement.category,
            seconds=seconds,
        )


def _harm(screener: PromptScreener, regime: Regime, found: Iterable[PromptFinding]) -> bool:
    judged = ((screener.direction(one), one.finding) for one in found)
    return regime.judge_all(judged).action in HALTING
