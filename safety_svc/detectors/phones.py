"""Telephone numbers, with Google's libphonenumber (the `phonenumbers` package).

A number with a plus must be a valid one of its country. Without, it must be valid and grouped as in
one of `REGIONS`, or stand after a word that announces it ("call me on …").
"""

import re
from collections.abc import Iterator

from phonenumbers import Leniency, PhoneNumberMatcher

DIGIT_COUNT_MIN, DIGIT_COUNT_MAX = 7, 15
# National numbers are taken as such only where the plan makes chance hits rare: fixed lengths and
# groups. Many plans take nearly every row of digits.
REGIONS = ("US", "GB")
# Their numbers have so many digits, or begin with a 0.
_REGION_DIGIT_COUNT_MIN = 10
_ANNOUNCED = re.compile(
    r"(?i)\b(?:tele|mobile |cell |work |home )?(?:phones?|tel|call(?:ed|ing|s)?|mobile|cell|fax|"
    r"whatsapp|sms|hotline|dial|ring|extension|contact|reach|text|messages? (?:to|on|from)|"
    r"registered)\b[^\d\n]{0,28}$"
)
_NUMBER_IS = re.compile(r"(?i)\bnumber\b[^\d\n]{0,16}$")
_OTHER_NUMBER = re.compile(
    r"(?i)\b(?:card|account|order|serial|invoice|ticket|ssn|security|licen[cs]e)\b"
)
_CANDIDATE = re.compile(r"[+(]?\d[\d ()+\-./\u00a0\u2010-\u2014\u202f]*\d")
_DATE = re.compile(r"(?:19|20)\d\d[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)?\d\d")
# What the clock at the beginning of a log line leaves of it in a run.
_CLOCK = re.compile(r"(?:19|20)\d\d([-/.])\d\d\1\d\d \d\d")


def digits_of(text: str) -> str:
    """The digits of a text."""
    return "".join(character for character in text if character.isdigit())


def announced(before: str) -> bool:
    """True when the text before a number says that it is a telephone number."""
    if _ANNOUNCED.search(before):
        return True
    return bool(_NUMBER_IS.search(before)) and not _OTHER_NUMBER.search(before)


def phones(text: str, before: str) -> Iterator[tuple[int, int]]:
    """Spans of the telephone numbers in a run of digits and separators."""
    found = False
    regions: tuple[str | None, ...] = (None, *REGIONS) if _may_be_national(text) else (None,)
    for region in regions:
        if region is None and "+" not in text:
            continue
        matcher = PhoneNumberMatcher(text, region, leniency=Leniency.STRICT_GROUPING)
        for match in matcher:
            found = True
            yield match.start, match.end
        if found:
            return
    candidate = _CANDIDATE.search(text) if announced(before) else None
    if candidate and _plausible(candidate.group()):
        yield candidate.span()


def _may_be_national(text: str) -> bool:
    """True when somebody wrote the digits in groups, and they are not plainly something else."""
    if _CLOCK.fullmatch(text.strip()):
        return False
    grouped = any(not character.isdigit() for character in text.strip())
    digits = digits_of(text)
    return grouped and (len(digits) >= _REGION_DIGIT_COUNT_MIN or digits.startswith("0"))


def _plausible(text: str) -> bool:
    count = len(digits_of(text))
    return DIGIT_COUNT_MIN <= count <= DIGIT_COUNT_MAX and not _DATE.fullmatch(text)
