"""Judging prompts and, while they stream, answers. Pure: no clock, no I/O.

The exposure of a streamed answer, exactly. Let a finding that halts begin at byte s, and let t be
the first token of the delta that brings byte s. When the halt is given,

1. of a key or a card number no byte at or after s has left, and of a phrase at most the first
   three letters;
2. of a pattern that begins with ordinary words ("how to … pipe bomb") only deltas that end within
   W tokens, counted from t, t included, have left;
3. of text that a windowed detector judges, only deltas that end within W tokens of the text that
   it had judged before and not objected to.

So at most W unjudged tokens leave, whatever the answer and however it is cut. Clean text leaves
at once, except an unfinished word or number that may be the beginning of a finding (usually until
the next token). The verdict and its offset are the same for every cut of the same text.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from safety_svc.detectors.base import NOWHERE, Finding, Scanner, byte_count
from safety_svc.policy import Action, Direction, Judgement, Regime

FINDING_COUNT_MAX = 32
# Pieces in which whole texts are scanned, so that the caller can let others run in between.
PIECE_LENGTH = 16_384


@dataclass(frozen=True, slots=True)
class Released:
    """Bytes of the answer before `offset` may leave; it never falls."""

    offset: int


@dataclass(frozen=True, slots=True)
class Halted:
    """The answer ends: the offending text begins at `offset`, in bytes of the answer."""

    offset: int
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Passed:
    """The answer is complete; all of it may leave (masked, when the judgement is to redact)."""

    judgement: Judgement


class ReplyScreener:
    """Screens one answer. Use: `resume` at most once, `delta` any number of times, `end` once.

    Args:
        regime: the rules in force for this answer, from its start to its end.
        scanners: fresh scanners for replies.
    """

    def __init__(self, regime: Regime, scanners: Sequence[Scanner]) -> None:
        self._regime = regime
        self._scanners = scanners
        self._findings: list[Finding] = []
        self._origin = 0  # bytes released before this stream: context, never cut
        self._byte_count = 0
        self._token_count = 0
        self._released = 0
        self._redact_from = NOWHERE
        # Ends of deltas that may still matter: (bytes, tokens) after each.
        self._ends: deque[tuple[int, int]] = deque([(0, 0)])

    @property
    def findings(self) -> list[Finding]:
        """What was found until now, offsets in bytes of the answer, the strongest first."""
        shifted = (_shift(finding, self._origin) for finding in self._findings)
        return strongest(shifted)

    @property
    def byte_count(self) -> int:
        """Bytes of the answer until now."""
        return self._byte_count - self._origin

    @property
    def token_count(self) -> int:
        """Tokens of the answer until now."""
        return self._token_count

    def resume(self, released_text: str) -> None:
        """Takes the text that left before; what it holds by itself is not judged again."""
        for scanner in self._scanners:
            scanner.feed(released_text)
        self._origin = self._byte_count = self._released = byte_count(released_text)
        self._ends = deque([(self._origin, 0)])

    def delta(self, text: str, token_count: int) -> Released | Halted | None:
        """Takes more of the answer; None when nothing new may leave."""
        self._byte_count += byte_count(text)
        self._token_count += token_count
        self._ends.append((self._byte_count, self._token_count))
        found = [finding for scanner in self._scanners for finding in scanner.feed(text)]
        if found:
            halted = self._judge(found)
            if halted:
                return halted
        limit = min(self._limit(), self._redact_from)
        if limit <= self._released:
            return None
        self._released = limit
        return Released(limit - self._origin)

    def end(self) -> Halted | Passed:
        """Judges what is left; afterwards all of the answer may leave, or nothing more."""
        found = [f for scanner in self._scanners for f in scanner.feed("", final=True)]
        return self._judge(found) or Passed(self._regime.judge(Direction.REPLY, self._findings))

    def _judge(self, found: list[Finding]) -> Halted | None:
        """Notes findings in the order in which the text decides them, up to the first halt."""
        for finding in sorted(found):
            if finding.end <= self._origin:
                continue
            if self._regime.halts(Direction.REPLY, finding):
                self._note(finding)
                judgement = self._regime.judge(Direction.REPLY, [finding])
                return Halted(max(finding.start - self._origin, 0), judgement)
            if self._regime.action(Direction.REPLY, finding) is Action.REDACT:
                self._redact_from = min(self._redact_from, max(finding.start, self._released))
            self._note(finding)
        return None

    def _note(self, finding: Finding) -> None:
        """Keeps the first FINDING_COUNT_MAX findings, and every one that halts."""
        if finding in self._findings:
            return
        if len(self._findings) == FINDING_COUNT_MAX:
            if not self._regime.halts(Direction.REPLY, finding):
                return
            self._findings.pop()
        self._findings.append(finding)

    def _limit(self) -> int:
        """Up to which byte the exposure allows text to leave."""
        strong, weak = NOWHERE, NOWHERE
        for scanner in self._scanners:
            one = scanner.open()
            strong, weak = min(strong, one.strong), min(weak, one.weak)
        limit = min(self._byte_count, strong)
        if weak < limit:
            limit = max(min(limit, self._window_end(weak)), self._released)
        self._forget(min(weak, limit))
        return limit

    def _window_end(self, start: int) -> int:
        """End of the last delta within W tokens from the delta that brings byte `start`."""
        if start < self._origin:  # how many tokens left before is not known: none more may
            return self._released
        result = first = 0
        for end, tokens in self._ends:
            if end <= start:
                result, first = end, tokens
            elif tokens - first <= self._regime.window_token_count:
                result = end
        return max(result, start)

    def _forget(self, before: int) -> None:
        """Drops the ends of deltas that lie wholly before `before`, except the last of them."""
        while len(self._ends) > 1 and self._ends[1][0] <= before:
            self._ends.popleft()


def strongest(findings: Iterable[Finding]) -> list[Finding]:
    """At most FINDING_COUNT_MAX findings by falling score, equal ones in the order of the text."""
    ordered = sorted(dict.fromkeys(findings), key=lambda one: (-one.score, one))
    return ordered[:FINDING_COUNT_MAX]


def pieces(text: str) -> Iterable[str]:
    """`text` in pieces of PIECE_LENGTH characters."""
    return (text[i : i + PIECE_LENGTH] for i in range(0, len(text), PIECE_LENGTH))


def _shift(finding: Finding, origin: int) -> Finding:
    """The finding with its span in bytes of the answer."""
    return finding._replace(
        settled_at=finding.settled_at - origin,
        start=max(finding.start - origin, 0),
        end=finding.end - origin,
    )
