"""Judging a conversation before any work is spent on it. Pure."""

from collections.abc import Iterable, Sequence

from safety_svc.classifier.labels import ATTACKS
from safety_svc.detectors.base import (
    Audience,
    Finding,
    PromptFinding,
    Scanner,
    Turn,
    byte_count,
)
from safety_svc.detectors.rulebook import NAME_POLICY_TERMS, Detectors
from safety_svc.policy import Action, Direction, Judgement, Regime, direction_of
from safety_svc.screen import FINDING_COUNT_MAX, pieces

# Findings kept of one message: what is beyond does not change the decision by rules. What is
# masked is kept whole.
MESSAGE_FINDING_COUNT_MAX = 256
# From this score on a classifier agrees with a rule that sees an attack; and the score of the
# rule's finding without it.
AGREED_SCORE, DOUBTED_SCORE = 0.5, 0.37


class PromptScreener:
    """Screens one conversation. Use: `message`, its `piece`s, the next `message`, …, `end`.

    Every message is judged, each by the rules of its author's role: whoever sends the
    conversation wrote all of it, earlier turns too. Of equally strong findings the one in the
    last user message decides. A classifier's findings come in through `add`, before `end`.
    """

    def __init__(self, regime: Regime, detectors: Detectors) -> None:
        self._regime, self._detectors = regime, detectors
        self._scanners: Sequence[Scanner] = ()
        self._index = self._last_user = -1
        self._piece = ""  # not scanned yet: scanners are quickest when they know the end
        self._found_here: set[Finding] = set()
        self.found: list[PromptFinding] = []
        self.directions: list[Direction] = []
        self.byte_count = 0

    def message(self, index: int, audience: Audience) -> None:
        """Begins the next message; indices count from 0."""
        self._close()
        self._index = index
        self.directions.append(direction_of(audience))
        if audience is Audience.USER:
            self._last_user = index
        self._scanners = self._detectors.scanners(audience)

    def piece(self, text: str) -> None:
        """Takes more of the message."""
        self.byte_count += byte_count(text)
        if self._piece:
            self._scan(self._piece, final=False)
        self._piece = text

    def add(self, findings: Iterable[PromptFinding], *, judged: bool = False) -> None:
        """Takes what a classifier found in the messages that were given.

        Args:
            findings: of the classifier.
            judged: True when it read them all. Then an attack on the model that the rules alone
                see is only a suspicion: such words are quoted more often than they are meant.
        """
        self._close()
        found = list(findings)
        if judged:
            attacked = {
                index
                for index, one in found
                if one.category in ATTACKS and one.score >= AGREED_SCORE
            }
            self.found = [
                one if one.message_index in attacked else _doubted(one) for one in self.found
            ]
        self.found += found

    def end(self) -> tuple[Judgement, list[PromptFinding]]:
        """Returns the decision and its grounds, the strongest first, at most 32."""
        self._close()
        ordered = sorted(self.found, key=self._weight)
        judgement = self._regime.judge_all((self._direction(one), one.finding) for one in ordered)
        return judgement, ordered[:FINDING_COUNT_MAX]

    def _direction(self, found: PromptFinding) -> Direction:
        return self.directions[found.message_index]

    def _weight(self, found: PromptFinding) -> tuple[object, ...]:
        index, finding = found
        action = self._regime.action(self._direction(found), finding)
        return -action, -finding.score, index != self._last_user, -index, finding

    def _scan(self, text: str, *, final: bool) -> None:
        for scanner in self._scanners:
            self._found_here.update(scanner.feed(text, final=final))

    def _close(self) -> None:
        """Ends the message in hand."""
        if self._index < 0:
            return
        self._scan(self._piece, final=True)
        self._piece = ""
        here, direction = sorted(self._found_here), self.directions[self._index]
        halting = [one for one in here if self._regime.halts(direction, one)]
        masked = [one for one in here if self._regime.action(direction, one) is Action.REDACT]
        kept = dict.fromkeys([*halting[:1], *masked, *here[:MESSAGE_FINDING_COUNT_MAX]])
        self.found += [PromptFinding(self._index, finding) for finding in kept]
        self._found_here = set()
        self._scanners = ()


def screened(
    regime: Regime,
    detectors: Detectors,
    turns: Sequence[Turn],
    found: Iterable[PromptFinding] | None,
) -> PromptScreener:
    """A screener that has seen a whole conversation, but for its `end`.

    Args:
        regime, detectors: of the policy.
        turns: the messages.
        found: by the classifier; None when there is none.
    """
    screener = PromptScreener(regime, detectors)
    for index, turn in enumerate(turns):
        screener.message(index, turn.audience)
        for piece in pieces(turn.text):
            screener.piece(piece)
    screener.add(found or (), judged=found is not None)
    return screener


def _doubted(found: PromptFinding) -> PromptFinding:
    """The finding of a rule with the score of a suspicion, if it is an attack on the model."""
    index, finding = found
    if finding.category not in ATTACKS or finding.detector == NAME_POLICY_TERMS:
        return found
    return PromptFinding(index, finding._replace(score=min(finding.score, DOUBTED_SCORE)))
