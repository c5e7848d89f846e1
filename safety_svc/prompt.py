"""Judging a conversation before any work is spent on it. Pure."""

from collections.abc import Collection, Iterable, Sequence

from safety_svc.classifier.labels import ATTACKS
from safety_svc.detectors.base import (
    Audience,
    Finding,
    PromptFinding,
    Scanner,
    Turn,
    byte_count,
)
from safety_svc.detectors.kinds import KINDS
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
    """Screens one conversation. Use: for each message either `message`, its `piece`s and `close`,
    or `known`; then `add`, then `end`.

    Every message is judged, each by the rules of its author's role: whoever sends the
    conversation wrote all of it, earlier turns too. Of equally strong findings the one in the
    last user message decides. A classifier's findings come in through `add`. A finding in the name
    of an author has no place in the message: it begins and ends at 0.

    Args:
        regime: the rules in force.
        detectors: of the policy.
        guarded: whether the operator's prompt stands above the conversation.
    """

    def __init__(self, regime: Regime, detectors: Detectors, *, guarded: bool = False) -> None:
        self._regime, self._detectors = regime, detectors
        self._attacks = Direction.GUARDED if guarded else Direction.PROMPT
        self._wrapped = False  # known at the end
        self._scanners: Sequence[Scanner] = ()
        self._index = self._last_user = -1
        self._piece = ""  # not scanned yet: scanners are quickest when they know the end
        self._found_here: set[Finding] = set()
        self.found: list[PromptFinding] = []
        self.directions: list[Direction] = []
        self.byte_count = 0

    def message(self, turn: Turn) -> None:
        """Begins the next message; its text comes in pieces."""
        self._begin(turn.audience)
        for scanner in self._detectors.scanners(turn.audience) if turn.name else ():
            found = scanner.feed(turn.name, final=True)
            self._found_here.update(one._replace(settled_at=0, start=0, end=0) for one in found)
        self._scanners = self._detectors.scanners(turn.audience)

    def known(self, turn: Turn, found: Sequence[Finding]) -> None:
        """Takes a whole message of which is known what `close` said of it before."""
        self._begin(turn.audience)
        self.byte_count += byte_count(turn.text)
        self._keep(found)

    def piece(self, text: str) -> None:
        """Takes more of the message."""
        self.byte_count += byte_count(text)
        if self._piece:
            self._scan(self._piece, final=False)
        self._piece = text

    def close(self) -> list[Finding]:
        """Ends the message; returns all that was found in it."""
        self._scan(self._piece, final=True)
        found, self._piece = sorted(self._found_here), ""
        self._scanners, self._found_here = (), set()
        self._keep(found)
        return found

    def add(
        self,
        findings: Iterable[PromptFinding],
        *,
        judged: bool = False,
        unread: Collection[int] = (),
    ) -> None:
        """Takes what a classifier found in the messages that were given.

        Args:
            findings: of the classifier.
            judged: True when it read them. Then an attack on the model that the rules alone see is
                only a suspicion: such words are quoted more often than they are meant.
            unread: the messages that it did not read whole; there the rules keep their force.
        """
        found = list(findings)
        if judged:
            attacked = set(unread) | {
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
        self._wrapped = any(map(self._is_attack, self.found))
        ordered = sorted(self.found, key=self._weight)
        judgement = self._regime.judge_all((self.direction(one), one.finding) for one in ordered)
        return judgement, ordered[:FINDING_COUNT_MAX]

    def direction(self, found: PromptFinding) -> Direction:
        """Whose rules hold for a finding; to be asked after the end."""
        index, finding = found
        direction = self.directions[index]
        if direction is not Direction.PROMPT or finding.detector in KINDS:
            return direction
        if finding.category in ATTACKS:
            return self._attacks
        return Direction.WRAPPED if self._wrapped else direction

    def _is_attack(self, found: PromptFinding) -> bool:
        """Whether a finding makes of the harm beside it what an attack wraps."""
        index, finding = found
        if self.directions[index] is not Direction.PROMPT or finding.category not in ATTACKS:
            return False
        return self._regime.action(self._attacks, finding) > Action.ALLOW

    def _weight(self, found: PromptFinding) -> tuple[object, ...]:
        index, finding = found
        action = self._regime.action(self.direction(found), finding)
        return -action, -finding.score, index != self._last_user, -index, finding

    def _scan(self, text: str, *, final: bool) -> None:
        for scanner in self._scanners:
            self._found_here.update(scanner.feed(text, final=final))

    def _begin(self, audience: Audience) -> None:
        """Begins the next message; indices count from 0."""
        self._index += 1
        self.directions.append(direction_of(audience))
        if audience is Audience.USER:
            self._last_user = self._index

    def _keep(self, found: Sequence[Finding]) -> None:
        """Of what was found in the message what may change the decision, and what is masked."""
        direction = self.directions[self._index]
        halting = [one for one in found if self._regime.halts(direction, one)]
        masked = [one for one in found if self._regime.action(direction, one) is Action.REDACT]
        kept = dict.fromkeys([*halting[:1], *masked, *found[:MESSAGE_FINDING_COUNT_MAX]])
        self.found += [PromptFinding(self._index, finding) for finding in kept]


def screened(
    regime: Regime,
    detectors: Detectors,
    turns: Sequence[Turn],
    found: Iterable[PromptFinding] | None,
    *,
    guarded: bool = False,
) -> PromptScreener:
    """A screener that has seen a whole conversation, but for its `end`.

    Args:
        regime, detectors: of the policy.
        turns: the messages.
        found: by the classifier; None when there is none.
        guarded: whether the operator's prompt stands above them.
    """
    screener = PromptScreener(regime, detectors, guarded=guarded)
    for turn in turns:
        screener.message(turn)
        for piece in pieces(turn.text):
            screener.piece(piece)
        screener.close()
    screener.add(found or (), judged=found is not None)
    return screener


def _doubted(found: PromptFinding) -> PromptFinding:
    """The finding of a rule with the score of a suspicion, if it is an attack on the model."""
    index, finding = found
    if finding.category not in ATTACKS or finding.detector == NAME_POLICY_TERMS:
        return found
    return PromptFinding(index, finding._replace(score=min(finding.score, DOUBTED_SCORE)))
