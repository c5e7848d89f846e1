"""Payment card numbers: issuer, length, layout and check digit (ISO/IEC 7812-1, Luhn).

A number stands alone or in groups as on a card (4-4-4-4, 4-6-5, 4-6-4, …) with one space or dash
between them, and touches no letter. Random digits of the right length pass about once in forty.
"""

import re
from collections.abc import Callable, Sequence

from safety_svc.detectors import prefilter
from safety_svc.detectors.base import NOTHING_OPEN, Category, Feed, Finding, Open
from safety_svc.detectors.kinds import CARD_NUMBER

DIGIT_COUNT_MIN, DIGIT_COUNT_MAX = 12, 19
_GROUP_COUNT_MAX, _GROUP_SIZE = 5, 4

# Longer runs are no card numbers; the bound keeps the unjudged text short.
_DIGITS = re.compile(r"\d{1,24}")
_RUN_MAX = 24
_SEPARATORS = frozenset(" -\u00a0\u2010\u2011\u2012\u2013\u202f")

# (first prefix, last prefix, lengths), prefixes compared over their own number of digits.
_ISSUERS: tuple[tuple[int, int, frozenset[int]], ...] = (
    (4, 4, frozenset({13, 16, 19})),  # Visa
    (51, 55, frozenset({16})),  # Mastercard
    (2221, 2720, frozenset({16})),  # Mastercard
    (34, 34, frozenset({15})),  # American Express
    (37, 37, frozenset({15})),
    (6011, 6011, frozenset(range(16, 20))),  # Discover
    (644, 659, frozenset(range(16, 20))),
    (300, 305, frozenset(range(14, 20))),  # Diners Club
    (36, 36, frozenset(range(14, 20))),
    (38, 39, frozenset(range(14, 20))),
    (35, 35, frozenset(range(16, 20))),  # JCB; test numbers use all of 35
    (1800, 1800, frozenset({15})),
    (2131, 2131, frozenset({15})),
    (62, 62, frozenset(range(16, 20))),  # UnionPay
    (2200, 2204, frozenset(range(16, 20))),  # Mir
    (60, 60, frozenset({16})),  # RuPay
    (81, 82, frozenset({16})),
    (5018, 5018, frozenset(range(12, 20))),  # Maestro
    (5020, 5020, frozenset(range(12, 20))),
    (5038, 5038, frozenset(range(12, 20))),
    (6304, 6304, frozenset(range(12, 20))),
    (56, 58, frozenset(range(12, 20))),
    (6759, 6763, frozenset(range(12, 20))),
)
_FIRST_DIGITS = frozenset("1234568")


def luhn(digits: str) -> bool:
    """True when the check digit of `digits` (ASCII) is right."""
    doubled = (int(digit) * 2 for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(n - 9 if n > 9 else n for n in doubled)) % 10 == 0  # noqa: PLR2004 - digit sum


def issued(digits: str) -> bool:
    """True when an issuer gives out numbers of this prefix and length."""
    return any(
        len(digits) in lengths and first <= int(digits[: len(str(first))]) <= last
        for first, last, lengths in _ISSUERS
    )


def is_card_number(digits: str) -> bool:
    """True for a plausible payment card number of ASCII digits."""
    if not DIGIT_COUNT_MIN <= len(digits) <= DIGIT_COUNT_MAX:
        return False
    return issued(digits) and luhn(digits) and len(set(digits)) > 1


def _is_layout(sizes: list[int]) -> bool:
    """True when numbers are printed on cards in groups of `sizes`."""
    if sizes in ([4, 6, 5], [4, 6, 4]):
        return True
    *head, last = sizes
    return not head or (all(size == _GROUP_SIZE for size in head) and last <= _GROUP_SIZE)


def _begins_card(sizes: list[int]) -> bool:
    """True when groups of `sizes`, the last one unfinished, may become a card number."""
    *head, last = sizes
    if sum(sizes) > DIGIT_COUNT_MAX or len(sizes) > _GROUP_COUNT_MAX:
        return False
    if head in ([_GROUP_SIZE], [_GROUP_SIZE, 6]):
        return last <= 6  # noqa: PLR2004 - 4-6-5
    return _is_layout(sizes)


class CardScanner:
    """Finds card numbers in a text that arrives in pieces.

    Args:
        allows: says of a number (ASCII digits) that it is no finding.
    """

    def __init__(self, allows: Callable[[str], bool] = lambda text: False) -> None:
        self._allows = allows
        self._feed = Feed()
        self._before = ""  # the character before the unjudged text
        self._groups: list[tuple[str, int]] = []  # linked groups: digits, offset
        self._end = -1  # where the last of them ends

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        text = self._feed.add(piece)
        findings: list[Finding] = []
        cut = len(text)
        for match in _DIGITS.finditer(text):
            start, end = match.span()
            if end == len(text) and not final and end - start < _RUN_MAX:
                cut = start
                break
            before = text[start - 1] if start else self._before
            self._group(match.group(), self._feed.at(start), before)
            after = text[end] if end < len(text) else ""
            findings += self._judge(after)
        if cut:
            self._before = text[cut - 1]
            self._feed.cut(cut)
        return findings

    @property
    def wakes(self) -> int:
        """See `Sleeper.wakes`."""
        return prefilter.DIGIT

    def wakes_at(self, words: Sequence[str]) -> bool:
        """See `Sleeper.wakes_at`."""
        return False

    def is_idle(self) -> bool:
        """See `Sleeper.is_idle`."""
        return not self._feed.text and self.open() == Open()

    def skip(self, context: str, offset: int) -> None:
        """See `Sleeper.skip`."""
        self._before = context[-1:]
        self._feed.base = offset

    def peek(self, word: str, offset: int) -> Open:
        """See `Sleeper.peek`: there is no digit in it."""
        return NOTHING_OPEN

    def open(self) -> Open:
        """See `Scanner.open`."""
        feed, before = self._feed, self._before
        gap = len(before.encode()) if before in _SEPARATORS else 0
        linked = bool(self._groups) and gap > 0 and feed.base - self._end == gap
        if not linked and (before.isalnum() or before in ("_", ".")):
            return Open()
        groups = [*(self._groups if linked else []), (feed.text, feed.base)]
        sizes = [len(digits) for digits, _ in groups]
        for index, (digits, offset) in enumerate(groups):
            if _ascii(digits[:1]) in _FIRST_DIGITS and _begins_card(sizes[index:]):
                return Open(strong=offset)
        return Open()

    def _group(self, digits: str, offset: int, before: str) -> None:
        """Adds a run of digits, linked to the one before when one separator stands between."""
        separator = len(before.encode()) if before in _SEPARATORS else 0
        if not (self._groups and separator and offset - separator == self._end):
            self._groups = []
            if before.isalnum() or before in ("_", ".") or len(digits) == _RUN_MAX:
                return
        self._groups = [*self._groups[1 - _GROUP_COUNT_MAX :], (digits, offset)]
        self._end = offset + len(digits.encode())

    def _judge(self, after: str) -> list[Finding]:
        """The longest card number that ends with the last group, if any."""
        if after.isalnum() or after == "_":
            self._groups = []
            return []
        for index in range(len(self._groups)):
            groups = self._groups[index:]
            digits = _ascii("".join(group for group, _ in groups))
            sizes = [len(group) for group, _ in groups]
            if _is_layout(sizes) and is_card_number(digits):
                start, self._groups = groups[0][1], []
                if self._allows(digits):
                    return []
                return [Finding(self._end, start, self._end, Category.PRIVACY, CARD_NUMBER)]
        return []


def _ascii(digits: str) -> str:
    """Digits of any script as ASCII ones."""
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)
