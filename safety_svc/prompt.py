"""Judging a conversation before any work is spent on it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from safety_svc.detectors.base import Audience, Finding, Scanner, byte_count
from safety_svc.detectors.rulebook import Detectors
from safety_svc.policy import Direction, Judgement, Regime
from safety_svc.screen import FINDING_COUNT_MAX

# Findings kept of one message: what is beyond does not change the decision by rules.
MESSAGE_FINDING_COUNT_MAX = 256


class PromptFinding(NamedTuple):
    """A finding and the message in which it stands."""

    message_index: int
    finding: Finding


class PromptScreener:
    """Screens one conversation. Use: `message`, its `piece`s, the next `message`, …, `end`.

    Every message is judged, each by the rules of its author's role: whoever sends the
    conversation wrote all of it, earlier turns too. Of equally strong findings the one in the
    last user message decides.
    """

    def __init__(self, regime: Regime, detectors: Detectors) -> None:
        self._regime, self._detectors = regime, detectors
        self._scanners: Sequence[Scanner] = ()
        self._index = self._last_user = -1
        self._found: list[PromptFinding] = []
        self._found_here: set[Finding] = set()
        self.byte_count = 0

    def message(self, index: int, audience: Audience) -> None:
        """Begins the next message."""
        self._close()
        self._index = index
        if audience is Audience.USER:
            self._last_user = index
        self._scanners = self._detectors.scanners(audience)

    def piece(self, text: str) -> None:
        """Takes more of the message."""
        self.byte_count += byte_count(text)
        self._scan(text, final=False)

    def end(self) -> tuple[Judgement, list[PromptFinding]]:
        """Returns the decision and its grounds, the strongest first, at most 32."""
        self._close()
        ordered = sorted(self._found, key=self._weight)
        judgement = self._regime.judge(Direction.PROMPT, (one.finding for one in ordered))
        return judgement, ordered[:FINDING_COUNT_MAX]

    def _weight(self, found: PromptFinding) -> tuple[object, ...]:
        index, finding = found
        action = self._regime.action(Direction.PROMPT, finding)
        return -action, -finding.score, index != self._last_user, -index, finding

    def _scan(self, text: str, *, final: bool) -> None:
        for scanner in self._scanners:
            self._found_here.update(scanner.feed(text, final=final))

    def _close(self) -> None:
        """Ends the message in hand."""
        self._scan("", final=True)
        here = sorted(self._found_here)
        halting = [one for one in here if self._regime.halts(Direction.PROMPT, one)]
        kept = dict.fromkeys([*halting[:1], *here[:MESSAGE_FINDING_COUNT_MAX]])
        self._found += [PromptFinding(self._index, finding) for finding in kept]
        self._found_here = set()
        self._scanners = ()
