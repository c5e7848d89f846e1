"""Spans inside runs of characters, found while the text arrives.

A kind of span lives in runs: maximal stretches that a pattern matches. Whether a run is complete
shows with the character after it, so that what is found depends on the text alone and not on how it
was cut. Only an unfinished run can still become a finding.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from safety_svc.detectors import prefilter
from safety_svc.detectors.base import NOTHING_OPEN, Category, Finding, Open, byte_count

# How much of the text before a run its judge sees: words such as "call me on".
CONTEXT_LENGTH = prefilter.CONTEXT_LENGTH

# (start, end, type), in characters of the run.
Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A complete run with what stands around it."""

    text: str
    before: str  # at most CONTEXT_LENGTH characters
    after: str  # the next character; "" at the end of the text
    number: int = 0  # of the runs of its kind in the text: how many with a mark came before


@dataclass(frozen=True, slots=True)
class RunKind:
    """What lives in one kind of runs.

    Attributes:
        pattern: the run; bounded in length, and every beginning of a run must be a run too.
        judge: the spans in a complete run.
        types: the types that it finds.
        mark: found in every run with a span, and in few others; in time linear in the text.
        may_begin: False for an unfinished run that cannot become a span any more.
        wakes: hints of `prefilter.py`, one of which stands in the first word of every run that
            may hold a span, or may begin one.
        free_length: characters at the beginning of a run that stand before its spans.
    """

    pattern: re.Pattern[str]
    judge: Callable[[Run], Iterable[Span]]
    types: frozenset[str]
    mark: re.Pattern[str]
    wakes: int
    may_begin: Callable[[str], bool] = lambda run: True
    free_length: int = 0


class RunScanner:
    """Finds the spans of one kind.

    Args:
        kind: what to find.
        allows: says of a span's text that it is no finding.
        holds: whether an unfinished run keeps the text back: somebody acts on its findings.
    """

    def __init__(self, kind: RunKind, allows: Callable[[str], bool], *, holds: bool) -> None:
        self._kind, self._allows, self._holds = kind, allows, holds
        # The unjudged text begins at index `_next`, after some context; `_base` is the offset of
        # the first character of the context.
        self._text = ""
        self._next = self._base = 0
        self._unfinished = -1
        self._count = 0  # runs with a mark
        # Where `_at` was asked last, and how many bytes come before: it is asked in order, mostly.
        self._index = self._offset = 0

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        text = self._text = self._text + piece
        findings: list[Finding] = []
        mark = self._kind.mark
        self._unfinished, cut = -1, len(text)
        # The end of most texts holds no mark: then its runs need not be found.
        runs = self._kind.pattern.finditer(text, self._next)
        for match in () if final and not mark.search(text, self._next) else runs:
            start, end = match.span()
            if end == len(text) and not final:
                self._unfinished = cut = start
                break
            if not mark.search(text, start, end):
                continue
            before = text[max(0, start - CONTEXT_LENGTH) : start]
            run = Run(match.group(), before, text[end : end + 1], self._count)
            self._count += 1
            for span_start, span_end, kind in self._kind.judge(run):
                whole = max(0, span_start - self._kind.free_length)
                if not self._allows(run.text[whole:span_end]):
                    findings.append(self._finding(start, span_start, span_end, end, kind))
        self._forget(cut)
        return findings

    @property
    def wakes(self) -> int:
        """See `Sleeper.wakes`: of some kinds any word may be a run, which is held if asked so."""
        begins_anywhere = not self._kind.wakes & (prefilter.DIGIT | prefilter.OPENING)
        return self._kind.wakes | (prefilter.ALWAYS if self._holds and begins_anywhere else 0)

    def wakes_at(self, words: Sequence[str]) -> bool:
        """See `Sleeper.wakes_at`."""
        return False

    def is_idle(self) -> bool:
        """See `Sleeper.is_idle`."""
        return self._unfinished < 0

    def skip(self, context: str, offset: int) -> None:
        """See `Sleeper.skip`."""
        self._text, self._next = context, len(context)
        self._base = offset - byte_count(context)
        self._index = self._offset = 0

    def peek(self, word: str, offset: int) -> Open:
        """See `Sleeper.peek`: no run begins in it that may hold a span."""
        return NOTHING_OPEN

    def open(self) -> Open:
        """See `Scanner.open`."""
        start = self._unfinished
        if not self._holds or start < 0 or not self._kind.may_begin(self._text[start:]):
            return Open()
        return Open(strong=self._at(min(start + self._kind.free_length, len(self._text))))

    def _finding(self, run: int, start: int, end: int, settled: int, kind: str) -> Finding:
        category = Category.PRIVACY
        first, last = self._at(run + start), self._at(run + end)
        return Finding(self._at(settled), first, last, category, kind)

    def _at(self, index: int) -> int:
        """Byte offset of a character."""
        if self._text.isascii():
            return self._base + index
        if index < self._index:
            self._index = self._offset = 0
        self._offset += len(self._text[self._index : index].encode())
        self._index = index
        return self._base + self._offset

    def _forget(self, judged: int) -> None:
        """Drops the text before `judged`, save the context."""
        kept = max(0, judged - CONTEXT_LENGTH)
        self._base = self._at(kept)
        self._text = self._text[kept:]
        self._index = self._offset = 0
        self._next = judged - kept
        if self._unfinished >= 0:
            self._unfinished -= kept
