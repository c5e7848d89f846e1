"""Personal data with exact spans: e-mail, telephone, IBAN, US SSN, IP and postal addresses.

Payment cards are in `cards.py`. Checksums and registries come from `python-stdnum`, telephone plans
from `phonenumbers`. Names of people are left to the policy's `terms`: without a language model a
pattern cannot tell a person from a month.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator

from stdnum import iban
from stdnum.us import ssn

from safety_svc.detectors import kinds
from safety_svc.detectors.addresses import MARK, WORDS, addresses
from safety_svc.detectors.cards import is_card_number
from safety_svc.detectors.phones import DIGIT_COUNT_MAX, DIGIT_COUNT_MIN, digits_of, phones
from safety_svc.detectors.prefilter import AT, CAPITAL, COLONS, DIGIT, OPENING
from safety_svc.detectors.runs import Run, RunKind, RunScanner, Span

# Rows of digits in one text that the library of telephone plans is asked about: some milliseconds.
PHONE_RUN_COUNT_MAX = 32

# RFC 5321: 64 for the local part, 255 for the domain.
_EMAIL_RUN = re.compile(r"[\w.%+\-@]{1,320}")
_EMAIL = re.compile(
    r"[^\W_][\w.%+\-]{0,62}@(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w\-])"
)
# Accounts of machines, as in `git@github.com:…`.
_MACHINES = frozenset({"git", "hg", "svn"})

_IN_NUMBER = r"[\d ()+\-./\u00a0\u2010-\u2014\u202f]"
_NUMBER_RUN = re.compile(rf"(?<![\w])[+(\d]{_IN_NUMBER}{{0,47}}")
_NUMBER_MARK = re.compile(rf"[+(\d]{_IN_NUMBER}{{{DIGIT_COUNT_MIN - 1}}}")
_IPV4 = re.compile(r"(?<![\d.\-])\d{1,3}(?:\.\d{1,3}){3}(?![\d\-]|\.\d)")
_SSN_DIGIT_COUNT = 9
_SSN = re.compile(r"(?<![\d\-])\d{3}-\d{2}-\d{4}(?![\d\-])")
_SSN_ANNOUNCED = re.compile(r"(?i)\b(?:ssn|social security)\b[^\d\n]{0,24}$")
_SSN_LOOSE = re.compile(r"(?<![\d\-])\d{3}[ \-]?\d{2}[ \-]?\d{4}(?![\d\-])")
_VERSION = re.compile(r"(?i)\b(?:version|release|v|section|chapter)[ :.]*$")

_IPV6_RUN = re.compile(r"(?<![\w:.])[0-9A-Fa-f:.]{1,45}")
_IPV6_GROUP_COUNT_MIN = 3
_IPV6_MARK = re.compile(":[0-9A-Fa-f.]*:")

# Two letters, two digits, and up to 30 letters and digits in groups (ISO 13616). The letters name
# the country only: they stay, so that no answer waits at each short word.
_IBAN_FREE_LENGTH, _IBAN_LENGTH_MIN = 2, 15
_IBAN_RUN = re.compile(
    r"(?<!\w)[A-Za-z](?:[A-Za-z](?:\d(?:\d(?:[ \u00a0]?[A-Za-z0-9]){0,30}[ \u00a0]?)?)?)?"
)
# The digits first: they are rare.
_IBAN_MARK = re.compile(rf"\d\d(?<=[A-Za-z]{{2}}\d\d)[ \u00a0A-Za-z0-9]{{{_IBAN_LENGTH_MIN - 4}}}")


def _emails(run: Run) -> Iterator[Span]:
    for match in _EMAIL.finditer(run.text):
        if match.group().partition("@")[0].lower() not in _MACHINES:
            yield *match.span(), kinds.EMAIL_ADDRESS


def _numbers(run: Run) -> Iterator[Span]:
    """IPv4 addresses, SSNs and telephone numbers; what is one is not also another."""
    text = run.text.rstrip(" ()+-./\u00a0\u2010\u2011\u2012\u2013\u2014\u202f")
    if text == run.text and run.after.isalnum():
        text = text.rstrip("0123456789")  # "10x": the last group belongs to a word
    rest = text
    for start, end, kind in (*_ipv4(text, run.before), *_ssns(text, run.before)):
        yield start, end, kind
        rest = rest[:start] + "\n" * (end - start) + rest[end:]
    offset = 0
    for part in rest.split("\n"):
        count = len(digits_of(part))
        if count and count <= DIGIT_COUNT_MAX + 6 and not is_card_number(digits_of(part)):
            before = run.before + text[:offset]
            asked = run.number < PHONE_RUN_COUNT_MAX
            for start, end in phones(part, before, asked=asked):
                yield offset + start, offset + end, kinds.PHONE_NUMBER
        offset += len(part) + 1


def _ipv4(text: str, before: str) -> Iterator[Span]:
    for match in _IPV4.finditer(text):
        if not (match.start() == 0 and _VERSION.search(before)) and _is_global(match.group()):
            yield *match.span(), kinds.IP_ADDRESS


def _ssns(text: str, before: str) -> Iterator[Span]:
    """Without a word that announces them, only where the run is nothing else: no longer number."""
    announced = bool(_SSN_ANNOUNCED.search(before))
    matches = list((_SSN_LOOSE if announced else _SSN).finditer(text))
    if not announced and len(matches) * _SSN_DIGIT_COUNT != len(digits_of(text)):
        return
    for match in matches:
        if ssn.is_valid(digits_of(match.group())):
            yield *match.span(), kinds.US_SSN


def _ipv6(run: Run) -> Iterator[Span]:
    text = run.text.rstrip(".:") if not run.text.endswith("::") else run.text
    groups = [group for group in text.split(":") if group]
    if len(groups) >= _IPV6_GROUP_COUNT_MIN and not run.after.isalnum() and _is_global(text):
        yield 0, len(text), kinds.IP_ADDRESS


def _is_global(text: str) -> bool:
    """True for an address that may belong to somebody: not private, loopback or reserved."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast


def _ibans(run: Run) -> Iterator[Span]:
    """The run holds what follows the number too: the registry says how long it is."""
    compact_end = [index for index, character in enumerate(run.text) if character.isalnum()]
    for count in range(len(compact_end), _IBAN_LENGTH_MIN - 1, -1):
        end = compact_end[count - 1] + 1
        after = run.text[end : end + 1] or run.after
        if not after.isalnum() and iban.is_valid(run.text[:end].replace("\u00a0", " ")):
            yield _IBAN_FREE_LENGTH, end, kinds.IBAN_CODE
            return


def _may_be_iban(run: str) -> bool:
    return len(run) > _IBAN_FREE_LENGTH


def _addresses(run: Run) -> Iterator[Span]:
    for start, end in addresses(run.text):
        yield start, end, kinds.STREET_ADDRESS


RUN_KINDS = (
    RunKind(_EMAIL_RUN, _emails, frozenset({kinds.EMAIL_ADDRESS}), re.compile("@"), AT),
    RunKind(
        _NUMBER_RUN,
        _numbers,
        frozenset({kinds.PHONE_NUMBER, kinds.US_SSN, kinds.IP_ADDRESS}),
        _NUMBER_MARK,
        DIGIT | OPENING,
    ),
    RunKind(
        _IPV6_RUN,
        _ipv6,
        frozenset({kinds.IP_ADDRESS}),
        _IPV6_MARK,
        COLONS,
    ),
    RunKind(
        _IBAN_RUN,
        _ibans,
        frozenset({kinds.IBAN_CODE}),
        _IBAN_MARK,
        DIGIT,
        _may_be_iban,
        _IBAN_FREE_LENGTH,
    ),
    RunKind(
        WORDS,
        _addresses,
        frozenset({kinds.STREET_ADDRESS}),
        MARK,
        DIGIT | CAPITAL,
    ),
)


def personal_scanners(
    allows: Callable[[str], bool], held: Collection[str] | None
) -> tuple[RunScanner, ...]:
    """Fresh scanners for one text.

    Args:
        allows: says of a span's text that it is no finding.
        held: types that somebody acts on; None: all are.
    """
    return tuple(
        RunScanner(kind, allows, holds=held is None or not kind.types.isdisjoint(held))
        for kind in RUN_KINDS
    )
