"""Scanners behind one prefilter: most text of an answer holds nothing that any of them looks for.

Each scanner sleeps while no character or word of the text can begin a finding of its kind (a digit
for card numbers, an @ for e-mail, a first word of a phrase, …). It wakes with the whole word that
has one, is told what stood before it, and sleeps again at a space, when nothing is open in it.
Findings, offsets and what is open are those of scanners that read everything:
`tests/unit/safety/test_prefilter.py` compares them.
"""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Protocol

from safety_svc.detectors.base import NOTHING_OPEN, NOWHERE, Finding, Open, Scanner, byte_count

# What wakes scanners, as bits of one number.
DIGIT, CAPITAL, AT, OPENING, COLONS, SECRET, WORD, ALWAYS = (1 << bit for bit in range(8))
_ALL = (1 << 8) - 1
# How much of the text before a word a scanner is told of when it wakes.
CONTEXT_LENGTH = 48
# In longer words everybody wakes.
_WORD_LENGTH_MAX = 48

_CALM = re.compile(r"[a-z ,.;!?'\n]*")
_HINTS = {
    **dict.fromkeys(" \t\n\r,.;!?'\"`)[]{}<>*^|\\$&#%-_=/~–—‘’“”…•", 0),
    **dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 0),
    **dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZ", CAPITAL),
    **dict.fromkeys("0123456789", DIGIT),
    **dict.fromkeys("(+", OPENING),
    "@": AT,
    ":": COLONS,
}
_SPACE = re.compile(r"\s")
_WORDS = re.compile("[A-Za-z0-9]+")
# A keyword of `secrets.py` or a part of each, the dashes of PEM, and whatever is as long as a key.
_SECRET = re.compile(r"(?i)pass|pwd|secret|token|key|credential|bearer|--|\S{16}")


class Sleeper(Scanner, Protocol):
    """A scanner that need not read everything."""

    @property
    def wakes(self) -> int:
        """Which hints wake it."""
        ...

    def wakes_at(self, words: Sequence[str]) -> bool:
        """Whether it must read one of these (ASCII letters, digits); asked if WORD wakes it."""
        ...

    def is_idle(self) -> bool:
        """True when nothing that it read can become a finding: it may sleep."""
        ...

    def skip(self, context: str, offset: int) -> None:
        """Wakes it, idle, at byte `offset`; `context` are the characters before, at most 48."""
        ...

    def peek(self, word: str, offset: int) -> Open:
        """What `open` would say had it read the unfinished `word`, which begins at `offset`.

        Asked if WORD or SECRET wakes it; for others nothing may be open in such a word.
        """
        ...


class Prefiltered:
    """Scanners as one; each reads only what it must."""

    def __init__(self, scanners: Sequence[Sleeper]) -> None:
        self._scanners = tuple(scanners)
        self._wordy = [one for one in scanners if one.wakes & WORD]
        self._peeking = [one for one in scanners if one.wakes & (WORD | SECRET)]
        self._wakes = functools.reduce(operator.or_, (one.wakes for one in scanners), 0)
        self._awake: set[Sleeper] = set()
        # The unfinished word at the end of the text, which those asleep have not read; what stands
        # before it, and where it begins.
        self._word, self._context, self._offset = "", "", 0

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        text = self._word + piece
        findings: list[Finding] = []
        cut = _last_word(text)
        # Of a long word only the end is kept: then nobody is asleep.
        is_long = max(len(text) - cut, len(self._word) + 1) > _WORD_LENGTH_MAX
        hints = _ALL if final or is_long else self._hints(text)
        if self._awake or hints & self._wakes:
            read = len(self._word)
            for scanner in self._scanners:
                if scanner in self._awake:
                    findings += self._go_on(scanner, piece, max(0, cut - read), hints, final)
                elif scanner.wakes & hints:
                    scanner.skip(self._context, self._offset)
                    findings += scanner.feed(text, final=final)
                    self._awake.add(scanner)
        self._move(text, max(cut, len(text) - _WORD_LENGTH_MAX))
        return findings

    def open(self) -> Open:
        """See `Scanner.open`."""
        opened = [scanner.open() for scanner in self._awake]
        if self._word:
            word, offset, awake = self._word, self._offset, self._awake
            opened += [one.peek(word, offset) for one in self._peeking if one not in awake]
        strong = weak = NOWHERE
        for one in opened:
            if one is not NOTHING_OPEN:
                strong, weak = min(strong, one.strong), min(weak, one.weak)
        return Open(strong, weak)

    def _hints(self, text: str) -> int:
        """What in `text` wakes scanners."""
        hints = ALWAYS
        if not _CALM.fullmatch(text):
            for character in set(text):
                hints |= _HINTS.get(character, _ALL)
            if hints & COLONS and text.count(":") == 1:
                hints &= ~COLONS
        if _SECRET.search(text):
            hints |= SECRET
        words = _WORDS.findall(text)
        if any(one.wakes_at(words) for one in self._wordy):
            hints |= WORD
        return hints

    def _go_on(
        self, scanner: Sleeper, piece: str, cut: int, hints: int, final: bool
    ) -> list[Finding]:
        """Lets a scanner that is awake read; it falls asleep at the space before index `cut`."""
        if cut == 0 or scanner.wakes & hints:
            return scanner.feed(piece, final=final)
        findings = scanner.feed(piece[:cut])
        if scanner.is_idle():
            self._awake.discard(scanner)
        elif cut < len(piece):
            findings += scanner.feed(piece[cut:])
        return findings

    def _move(self, text: str, start: int) -> None:
        """The unfinished word begins at index `start` of `text`."""
        if start > 0:
            self._context = (self._context + text[:start])[-CONTEXT_LENGTH:]
            self._offset += byte_count(text[:start])
        self._word = text[start:] if start > 0 else text


def _last_word(text: str) -> int:
    """Index after the last space of `text`; 0 where there is none, or only before a long word."""
    for index in range(len(text), max(0, len(text) - _WORD_LENGTH_MAX - 1), -1):
        if text[index - 1].isspace():
            return index
    return 0
