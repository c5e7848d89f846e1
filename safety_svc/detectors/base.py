"""What a detector is, and what it finds.

There are two kinds:

- a `Detector` judges a text as a whole. This is the seam for a trained classifier.
- a `Scanner` judges a text while it arrives, in one pass, with bounded memory. The rules are
  scanners. A streamed answer is shown to a detector window by window (`windowed.py`).

All offsets are bytes of the UTF-8 text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

# Nothing open: larger than any offset of a text.
NOWHERE = 1 << 62


class Category(StrEnum):
    """Kinds of harm; the words of `safety.v1.Category`, in lower case."""

    HATE = "hate"
    HATE_THREATENING = "hate_threatening"
    HARASSMENT = "harassment"
    VIOLENCE = "violence"
    VIOLENCE_GRAPHIC = "violence_graphic"
    SELF_HARM = "self_harm"
    SEXUAL = "sexual"
    SEXUAL_MINORS = "sexual_minors"
    ILLICIT = "illicit"
    ILLICIT_WEAPONS = "illicit_weapons"
    MALWARE = "malware"
    PRIVACY = "privacy"
    PROMPT_INJECTION = "prompt_injection"
    JAILBREAK = "jailbreak"
    SECRET = "secret"  # noqa: S105 - the name of a category


class Audience(StrEnum):
    """Where a text comes from: a rule may hold for some of them only."""

    USER = "user"
    SYSTEM = "system"
    ASSISTANT = "assistant"
    TOOL = "tool"
    REPLY = "reply"


class Finding(NamedTuple):
    """One thing that a detector found.

    Attributes:
        settled_at: offset of the character whose arrival decided it; never less than what the
            span needs. Ordering by it makes a verdict the same however the text was cut.
        category: what it is.
        start: first byte of the span.
        end: one past its last byte.
        detector: which detector, such as "lexicon".
        score: calibrated probability, range [0, 1]; rules report 1.
    """

    settled_at: int
    start: int
    end: int
    category: Category
    detector: str
    score: float = 1.0


class Open(NamedTuple):
    """What could still become a finding when more text arrives.

    Attributes:
        strong: from here on nothing may leave: it may be the beginning of a finding that a
            reader must not see at all. NOWHERE when nothing is open.
        weak: from here on at most the window may leave: ordinary words that only together with
            later ones become a finding. NOWHERE when nothing is open.
    """

    strong: int = NOWHERE
    weak: int = NOWHERE


NOTHING_OPEN = Open()


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
        audience: who wrote it.
        text: all of it.
        name: the author's name, where the model's template may show one.
    """

    audience: Audience
    text: str
    name: str = ""


class PromptFinding(NamedTuple):
    """A finding and the message in which it stands."""

    message_index: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Context:
    """What a detector may know beside the text."""

    audience: Audience
    tier: str = ""


class Detector(Protocol):
    """Judges a whole text. A trained classifier implements this."""

    name: str

    def inspect(self, text: str, context: Context) -> Sequence[Finding]:
        """Returns what is in `text`, in any order; must be a pure function of its arguments."""
        ...


class Scanner(Protocol):
    """Judges a text that arrives in pieces, cut at any character.

    The findings, with all their offsets, depend on the text alone and never on the cuts.
    """

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """Takes the next piece; `final` says that nothing follows. Returns what is now sure."""
        ...

    def open(self) -> Open:
        """Says what of the text so far could still become a finding."""
        ...


class RuleDetector:
    """A `Detector` out of scanners: a whole text is one piece."""

    def __init__(self, name: str, scanners: Iterable[Scanner]) -> None:
        self.name = name
        self._scanners = tuple(scanners)

    def inspect(self, text: str, context: Context) -> Sequence[Finding]:
        """Scans `text`; the scanners are used up by it."""
        del context  # scanners are made for their audience
        return [finding for one in self._scanners for finding in one.feed(text, final=True)]


def byte_count(text: str) -> int:
    """Length of `text` in UTF-8; free for ASCII."""
    return len(text) if text.isascii() else len(text.encode())


class Feed:
    """The unjudged end of a text that arrives in pieces, with its place in bytes."""

    __slots__ = ("_index", "_offset", "base", "text")

    def __init__(self) -> None:
        self.text = ""
        self.base = 0
        # Where `at` was asked last, and what it said: it is asked in the order of the text.
        self._index = self._offset = 0

    def add(self, piece: str) -> str:
        """Appends `piece` and returns all that is unjudged."""
        self.text = self.text + piece if self.text else piece
        return self.text

    def at(self, index: int) -> int:
        """Byte offset of the character `index` of the unjudged text."""
        if self.text.isascii():
            return self.base + index
        if index < self._index:
            self._index = self._offset = 0
        self._offset += len(self.text[self._index : index].encode())
        self._index = index
        return self.base + self._offset

    def cut(self, index: int) -> None:
        """Forgets the characters before `index`: they are judged."""
        self.base = self.at(index)
        self.text = self.text[index:]
        self._index = self._offset = 0
