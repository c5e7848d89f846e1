"""Makes a scanner out of a detector that judges whole texts: the seam of a trained classifier.

Every `stride` characters the detector sees the last `lookback` ones. Both are counted in
characters from the beginning of the text, so the verdict does not depend on how it was cut. What
came since the last look is unjudged: of that, at most the window of the policy leaves.
"""

from safety_svc.detectors.base import Context, Detector, Feed, Finding, Open

STRIDE_LENGTH = 64
LOOKBACK_LENGTH = 2_048


class WindowedScanner:
    """Scans with `detector`.

    Args:
        detector: judges a text; called once for each stride, so it sets the pace.
        context: handed to it.
        stride: characters between two looks, at least 1.
        lookback: characters it sees at most, at least `stride`.
    """

    def __init__(
        self,
        detector: Detector,
        context: Context,
        stride: int = STRIDE_LENGTH,
        lookback: int = LOOKBACK_LENGTH,
    ) -> None:
        self._detector, self._context = detector, context
        self._stride, self._lookback = stride, lookback
        self._feed = Feed()
        self._judged = 0  # characters of the unjudged text's feed that were seen already

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        size = len(self._feed.add(piece))
        findings: list[Finding] = []
        while size - self._judged >= self._stride:
            findings += self._look(self._judged + self._stride)
        if final and size > self._judged:
            findings += self._look(size)
        kept = max(0, self._judged - self._lookback)
        self._feed.cut(kept)
        self._judged -= kept
        return findings

    def open(self) -> Open:
        """See `Scanner.open`."""
        unjudged = len(self._feed.text) > self._judged
        return Open(weak=self._feed.at(self._judged)) if unjudged else Open()

    def _look(self, end: int) -> list[Finding]:
        """Judges the characters before `end`; what lies wholly in the judged part is known."""
        feed = self._feed
        begin = max(0, end - self._lookback)
        known, base, settled = feed.at(self._judged), feed.at(begin), feed.at(end - 1)
        self._judged = end
        return [
            one._replace(settled_at=settled, start=base + one.start, end=base + one.end)
            for one in self._detector.inspect(feed.text[begin:end], self._context)
            if base + one.end > known
        ]
