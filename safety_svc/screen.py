"""Judging answers while they stream. Pure: no clock, no I/O.

The exposure of a streamed answer, exactly. Let a finding that halts begin at byte s, and let t be
the first token of the delta that brings byte s. When the halt is given,

1. of a key, a card number or another span of personal data no byte at or after s has left, and of
   a phrase at most the first three letters;
2. of a pattern that begins with ordinary words ("how to … pipe bomb") only deltas that end within
   W tokens, counted from t, t included, have left;
3. of text that the classifier judges, only deltas that end within W tokens of the text that it had
   judged before and not objected to.

So at most W unjudged tokens leave, whatever the answer, however it is cut, and however long the
classifier takes. Clean text leaves at once, except an unfinished word or number that may be the
beginning of a finding (usually until the next token). The verdict and its offset are the same for
every cut of the same text: findings are decided in the order in which the text decides them, and
one that stands behind a look of the classifier waits for it.

What the policy redacts is masked on the way: no release ends inside a masked span, and the released
text is what masking the whole answer would give. An answer that is to be JSON stays so: masks lie
inside the strings that are its values, whole escapes at a time, or it is halted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from safety_svc.detectors.base import NOWHERE, Finding, Scanner, byte_count
from safety_svc.detectors.windowed import (
    REREAD_LENGTH,
    STRIDE_LENGTH_MIN,
    STRIDE_LENGTH_PER_TOKEN,
    TextWindow,
    Windows,
)
from safety_svc.json_text import JsonText
from safety_svc.masking import Mask, mask_of, merged
from safety_svc.policy import Action, Direction, Judgement, Regime

FINDING_COUNT_MAX = 32
# Pieces in which whole texts are scanned, so that the caller can let others run in between.
PIECE_LENGTH = 4_096


@dataclass(frozen=True, slots=True)
class Released:
    """Bytes of the answer before `offset` may leave, masked; it never falls."""

    offset: int
    masks: Sequence[Mask] = ()


@dataclass(frozen=True, slots=True)
class Halted:
    """The answer ends: the offending text begins at `offset`, in bytes of the answer."""

    offset: int
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Passed:
    """The answer is complete; all of it may leave, what had not yet left with these masks."""

    judgement: Judgement
    masks: Sequence[Mask] = ()


Outcome = Released | Halted | Passed


class ReplyScreener:
    """Screens one answer. Use: `resume` at most once, `delta` any number of times, `end` once.

    After each of them `looks` are due, if a classifier takes part; give each of them back through
    `judged`, in any order. `Halted` or `Passed` comes once, from whichever call decides.

    Args:
        regime: the rules in force for this answer, from its start to its end.
        scanners: fresh scanners for replies.
        stride_min: fewest characters between two looks of the classifier; 0: none takes part.
        masking: whether the caller masks while it releases; if not, all text from the first masked
            span on is held back to the end.
        is_json: whether the answer is a JSON document and must stay one.
        clears: True for the text of a look that the classifier finds nothing in, if that shows at
            once: such a look is given back here and now. A pure function, of microseconds.
    """

    def __init__(
        self,
        regime: Regime,
        scanners: Sequence[Scanner],
        *,
        stride_min: int = 0,
        masking: bool = True,
        is_json: bool = False,
        clears: Callable[[str], bool] = lambda text: False,
    ) -> None:
        self._regime, self._scanners, self._masking = regime, scanners, masking
        self._clears = clears
        self._windows = Windows(max(stride_min, stride_of(regime))) if stride_min else None
        self._json = JsonText() if is_json else None
        self._due: list[TextWindow] = []
        self._pending: dict[TextWindow, None] = {}  # in the order of the text, the due ones too
        self._judged = NOWHERE if self._windows is None else 0  # the classifier read up to here
        self._read = -REREAD_LENGTH  # last byte of the last look that was not cleared
        self._undecided: list[Finding] = []
        self._findings: list[Finding] = []
        self._masks: list[Mask] = []  # not delivered
        self._origin = 0  # bytes released before this stream: context, never cut
        self._byte_count = 0
        self._token_count = 0
        self._released = 0
        self._ended = self._over = False
        # Ends of deltas that may still matter: (bytes, tokens) after each.
        self._ends: deque[tuple[int, int]] = deque([(0, 0)])

    @property
    def findings(self) -> list[Finding]:
        """What was found until now, offsets in bytes of the answer, the strongest first."""
        return strongest(_shift(finding, self._origin) for finding in self._findings)

    @property
    def byte_count(self) -> int:
        """Bytes of the answer until now."""
        return self._byte_count - self._origin

    @property
    def token_count(self) -> int:
        """Tokens of the answer until now."""
        return self._token_count

    @property
    def pending_count(self) -> int:
        """Looks that were not given back."""
        return len(self._pending)

    def resume(self, released_text: str) -> None:
        """Takes the text that left before; what it holds by itself is not judged again."""
        for scanner in self._scanners:
            scanner.feed(released_text)
        if self._windows:
            self._windows.feed(released_text)
        if self._json:
            self._json.feed(released_text)
        self._origin = self._byte_count = self._released = byte_count(released_text)
        self._ends = deque([(self._origin, 0)])

    def delta(self, text: str, token_count: int) -> Outcome | None:
        """Takes more of the answer; None when nothing new may leave."""
        self._byte_count += byte_count(text)
        self._token_count += token_count
        self._ends.append((self._byte_count, self._token_count))
        return self._take(text)

    def end(self) -> Outcome | None:
        """Takes the end; None when looks must come back first."""
        self._ended = True
        return self._take("")

    def looks(self) -> list[TextWindow]:
        """What the classifier is to judge, each once."""
        due, self._due = self._due, []
        return due

    def judged(self, look: TextWindow, findings: Iterable[Finding]) -> Outcome | None:
        """Takes the findings in a look, placed as in its text."""
        if self._over:
            return None
        del self._pending[look]
        placed = (look.placed(finding) for finding in findings)
        self._undecided += [finding for finding in placed if finding]
        return self._step()

    def _take(self, text: str) -> Outcome | None:
        if self._over:
            return None
        if self._json:
            self._json.feed(text)
        for scanner in self._scanners:
            self._undecided += scanner.feed(text, final=self._ended)
        if self._windows:
            looks = self._windows.feed(text, final=self._ended)
            looks = [look for look in looks if not self._cleared(look)]
            self._due += looks
            self._pending.update(dict.fromkeys(looks))
        return self._step()

    def _cleared(self, look: TextWindow) -> bool:
        """Whether a look need not be taken.

        What makes it doubtful may be old: an earlier look has read it and not objected. Then it is
        enough that the new text is clear, for some looks: harm that is spread over more is read.
        """
        if self._clears(look.text):
            return True
        if look.settled_at - self._read < REREAD_LENGTH and self._clears(look.fresh):
            return True
        self._read = look.settled_at
        return False

    def _step(self) -> Outcome | None:
        """Decides what can be decided, and says what may leave."""
        halted = self._decide()
        if halted or (self._ended and not self._pending):
            self._over = True
            judgement = self._regime.judge(Direction.REPLY, self._findings)
            return halted or Passed(judgement, self._delivered(self._byte_count))
        limit = self._limit()
        if limit <= self._released:
            return None
        self._released = limit
        return Released(limit - self._origin, self._delivered(limit))

    def _decide(self) -> Halted | None:
        """Acts on findings in the order in which the text decides them, up to the first halt."""
        if not self._undecided:
            return None
        horizon = min((look.settled_at for look in self._pending), default=NOWHERE)
        ready = sorted(one for one in self._undecided if one.settled_at < horizon)
        self._undecided = [one for one in self._undecided if one.settled_at >= horizon]
        for finding in ready:
            if finding.end <= self._origin:
                continue
            self._note(finding)
            action = self._regime.action(Direction.REPLY, finding)
            if self._regime.halts(Direction.REPLY, finding):
                judgement = self._regime.judge(Direction.REPLY, [finding])
                return Halted(max(finding.start - self._origin, 0), judgement)
            if action is Action.REDACT and finding.end > self._released:
                mask = self._mask(finding)
                if mask is None:
                    judgement = Judgement(Action.BLOCK, finding.category)
                    return Halted(max(finding.start - self._origin, 0), judgement)
                self._masks = merged([*self._masks, mask])
        return None

    def _mask(self, finding: Finding) -> Mask | None:
        """What hides the rest of a finding; None where JSON would not be JSON any more."""
        mask = mask_of(finding)
        if self._json:
            span = self._json.span(finding.start, finding.end)
            if span is None:
                return None
            mask = mask._replace(start=span[0], end=span[1])
        return mask._replace(start=max(mask.start, self._released))

    def _note(self, finding: Finding) -> None:
        """Keeps the first FINDING_COUNT_MAX findings, and every one that halts."""
        if finding in self._findings:
            return
        if len(self._findings) == FINDING_COUNT_MAX:
            if not self._regime.halts(Direction.REPLY, finding):
                return
            self._findings.pop()
        self._findings.append(finding)

    def _delivered(self, limit: int) -> tuple[Mask, ...]:
        """The masks that end within `limit`, in bytes of the answer; they are given once."""
        given = [mask for mask in self._masks if mask.end <= limit]
        self._masks = self._masks[len(given) :]
        origin = self._origin
        return tuple(Mask(max(start - origin, 0), end - origin, kind) for start, end, kind in given)

    def _limit(self) -> int:
        """Up to which byte the exposure allows text to leave."""
        strong, weak = NOWHERE, self._unjudged()
        for scanner in self._scanners:
            one = scanner.open()
            strong, weak = min(strong, one.strong), min(weak, one.weak)
        for finding in self._undecided:
            if self._regime.action(Direction.REPLY, finding) >= Action.REDACT:
                strong = min(strong, finding.start)
        limit = min(self._byte_count, strong)
        if weak < limit:
            limit = max(min(limit, self._window_end(weak)), self._released)
        self._forget(min(weak, limit))
        limit = self._outside_masks(limit)
        if self._json:
            limit = max(self._json.whole(limit), self._released)
            self._json.forget(self._released)
        return limit

    def _unjudged(self) -> int:
        """From which byte on the classifier has read nothing; NOWHERE when there is none."""
        if self._windows is None:
            return NOWHERE
        first = next(iter(self._pending), None)
        self._judged = max(self._judged, first.known if first else self._windows.seen)
        return self._judged if self._judged < self._byte_count else NOWHERE

    def _outside_masks(self, limit: int) -> int:
        """`limit`, or the start of the mask that it would cut."""
        for start, end, _ in self._masks:
            if start < limit and (end > limit or not self._masking):
                return start
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


def stride_of(regime: Regime) -> int:
    """Characters between two looks: so few that a look is due before W tokens are spent."""
    return max(STRIDE_LENGTH_MIN, STRIDE_LENGTH_PER_TOKEN * regime.window_token_count)


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
