"""Telephone numbers, with Google's libphonenumber (the `phonenumbers` package).

A number with a plus must be a valid one of its country. Without, it must be valid and grouped as in
one of `REGIONS`, or stand after a word that announces it ("call me on …").

The library takes a quarter of a millisecond for a row of digits that is none: it is asked about
what has the form of a number only, and of one text only so often. Beyond that the form decides: who
hides a number behind a hundred others does not get it past a mask.
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
# What the library is asked about: an international number, one of North America, a British one.
_FORM = re.compile(
    r"\+[ (]{0,2}\d(?:[ ()\-./\u00a0\u2010-\u2014\u202f]{0,2}\d){6,14}"
    r"|(?<!\d)(?:1[ \-.]?)?\(?[2-9]\d\d\)?[^\d]{1,3}[2-9]\d\d[^\d]{0,2}\d{4}(?!\d)"
    r"|(?<!\d)\(?0\)?[ \-.]?[1-9](?:[ ()\-./\u00a0\u2010-\u2014\u202f]{0,2}\d){7,9}(?!\d)"
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


def phones(text: str, before: str, *, asked: bool = True) -> Iterator[tuple[int, int]]:
    """Spans of the telephone numbers in a run of digits and separators.

    Args:
        text: the run.
        before: what stands before it.
        asked: whether the library is asked; if not, the form alone decides.
    """
    form = _FORM.search(text)
    found = False
    if form and asked:
        for start, end in _valid(text):
            found = True
            yield start, end
    elif form and ("+" in form.group() or _may_be_national(text)):
        found = True
        yield form.span()
    candidate = _CANDIDATE.search(text) if not found and announced(before) else None
    if candidate and _plausible(candidate.group()):
        yield candidate.span()


def _valid(text: str) -> Iterator[tuple[int, int]]:
    """What the library takes for numbers: international ones, else those of the first region."""
    found = False
    regions: tuple[str | None, ...] = (None, *REGIONS) if _may_be_national(text) else (None,)
    for region in regions:
        if region is None and "+" not in text:
            continue
        for match in PhoneNumberMatcher(text, region, leniency=Leniency.STRICT_GROUPING):
            found = True
            yield match.start, match.end
        if found:
            return


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
