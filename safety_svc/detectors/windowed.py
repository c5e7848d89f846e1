"""A streamed text in windows, for judges that read whole texts: the classifier's first half.

Every `stride` characters, at the next space, a look at the last `lookback` characters is due.
Both are counted from the beginning of the text, so that the looks do not depend on how it was cut.
What came since the last look is unjudged: of that, at most the window of the policy leaves.
"""

import re
from typing import NamedTuple

from safety_svc.detectors.base import Feed, Finding

# About the characters of a token, low enough that a look is due before the window W is spent: then
# the stream flows while the classifier thinks.
STRIDE_LENGTH_PER_TOKEN = 3
STRIDE_LENGTH_MIN = 24
LOOKBACK_LENGTH = 512
# Characters before the new text, where that is read by itself; and after how many bytes all of a
# look is read again, even where the new text is clear by itself.
FRESH_OVERLAP_LENGTH, REREAD_LENGTH = 128, 256
# How much longer than a stride to wait for a space.
SPACE_REACH = 16
_SPACE = re.compile(r"\s")


class TextWindow(NamedTuple):
    """A part of a text that is to be judged.

    Attributes:
        settled_at: offset of its last character, for the order of findings.
        known: what lies before was judged by an earlier look.
        start: first byte of `text`.
        end: one past its last byte.
        text: what is to be read.
        fresh: its end: what no earlier look has read, and some words before.
    """

    settled_at: int
    known: int
    start: int
    end: int
    text: str
    fresh: str = ""

    def placed(self, finding: Finding) -> Finding | None:
        """A finding in `text` at its place in the whole; None when an earlier look had it."""
        end = self.start + finding.end
        if end <= self.known:
            return None
        start = max(self.known, self.start + finding.start)
        return finding._replace(settled_at=self.settled_at, start=start, end=end)


class Windows:
    """Cuts a text that arrives in pieces into looks.

    Args:
        stride: characters between two looks, at least 1.
        lookback: characters of a look at most, at least `stride` + SPACE_REACH.
    """

    def __init__(self, stride: int, lookback: int = LOOKBACK_LENGTH) -> None:
        self._stride, self._lookback = stride, lookback
        self._feed = Feed()
        self._seen = 0  # characters of the feed that earlier looks covered

    @property
    def seen(self) -> int:
        """First byte that no look has covered."""
        return self._feed.at(self._seen)

    def feed(self, piece: str, *, final: bool = False) -> list[TextWindow]:
        """Takes the next piece; returns what is due."""
        size = len(self._feed.add(piece))
        looks: list[TextWindow] = []
        while (end := self._due(size)) is not None:
            looks.append(self._look(end))
        if final and size > self._seen:
            looks.append(self._look(size))
        kept = max(0, self._seen - self._lookback)
        if kept:
            self._feed.cut(kept)
            self._seen -= kept
        return looks

    def _due(self, size: int) -> int | None:
        """Where the next look ends, if the text has come so far."""
        earliest = self._seen + self._stride
        if size < earliest:
            return None
        latest = earliest + SPACE_REACH
        space = _SPACE.search(self._feed.text, earliest - 1, min(size, latest))
        if space:
            return space.end()
        return latest if size >= latest else None

    def _look(self, end: int) -> TextWindow:
        feed = self._feed
        begin = max(0, end - self._lookback)
        fresh = feed.text[max(begin, self._seen - FRESH_OVERLAP_LENGTH) : end]
        start, known = feed.at(begin), feed.at(self._seen)
        self._seen = end
        settled = feed.at(end - 1)
        return TextWindow(settled, known, start, feed.at(end), feed.text[begin:end], fresh)
