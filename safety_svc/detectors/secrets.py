"""Secrets: keys of known formats, private keys, and random text beside words such as "password".

The unit is a blob: a run of the characters that keys are made of. Formats are those that their
issuers publish for secret scanning; the test for random text follows the usual one (Shannon
entropy over the characters), made stricter so that identifiers and hashes in prose do not pass.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from safety_svc.detectors import prefilter
from safety_svc.detectors.base import NOTHING_OPEN, Category, Feed, Finding, Open, byte_count
from safety_svc.detectors.kinds import PRIVATE_KEY, SECRET_ENTROPY, SECRET_FORMAT

BLOB_LENGTH_MAX = 512
_BLOB = re.compile(rf"[A-Za-z0-9_\-.+/=~]{{1,{BLOB_LENGTH_MAX}}}")
_LAST_BLOB = re.compile(r"[A-Za-z0-9_\-.+/=~]+$")

# prefix -> what follows it
_FORMATS = {
    "sk-": r"[A-Za-z0-9_-]{20,200}",  # OpenAI, Anthropic and others
    "cm-": r"[A-Za-z0-9_-]{20,200}",  # chatmesh
    "AKIA": r"[0-9A-Z]{16}",  # AWS
    "ASIA": r"[0-9A-Z]{16}",
    "ghp_": r"[A-Za-z0-9]{36}",  # GitHub
    "gho_": r"[A-Za-z0-9]{36}",
    "ghu_": r"[A-Za-z0-9]{36}",
    "ghs_": r"[A-Za-z0-9]{36}",
    "ghr_": r"[A-Za-z0-9]{36}",
    "github_pat_": r"[A-Za-z0-9_]{50,90}",
    "glpat-": r"[A-Za-z0-9_-]{20,40}",  # GitLab
    "xoxb-": r"[A-Za-z0-9-]{20,200}",  # Slack
    "xoxp-": r"[A-Za-z0-9-]{20,200}",
    "xoxa-": r"[A-Za-z0-9-]{20,200}",
    "AIza": r"[0-9A-Za-z_-]{35}",  # Google
    "sk_live_": r"[A-Za-z0-9]{20,100}",  # Stripe
    "rk_live_": r"[A-Za-z0-9]{20,100}",
    "SG.": r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
    "npm_": r"[A-Za-z0-9]{36}",
    "hf_": r"[A-Za-z0-9]{30,40}",  # Hugging Face
    "pypi-AgEIcHlwaS5vcmc": r"[A-Za-z0-9_-]{30,200}",
}
_EDGE = r"(?:^|(?<=[=/+]))"
_KEY = re.compile(
    _EDGE + "(?:" + "|".join(re.escape(prefix) + body for prefix, body in _FORMATS.items()) + ")"
)
_KEY_BEGIN = re.compile(_EDGE + "(?:" + "|".join(map(re.escape, _FORMATS)) + ")")
_PREFIX_PARTS = frozenset(p[:n] for p in _FORMATS for n in range(1, len(p)))
_KEY_ENTROPY_MIN_BITS = 3.0
_KEY_DIGIT_COUNT_MIN = 2

# Ends of names that announce a secret; "key" alone only as a whole part of a name.
_KEYWORDS = (
    *("password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "token"),
    *("tokens", "apikey", "apikeys", "api-key", "api-keys", "api_key", "api_keys", "accesskey"),
    *("credential", "credentials", "bearer", "_key", "-key", "_keys", "-keys"),
)
# "password is: X", "key for staging is X"
_KEYWORD_REACH_BLOBS = 4

_RANDOM_LENGTH_MIN = 16
_RANDOM_ENTROPY_MIN_BITS = 3.5
_RANDOM_CHANGE_RATIO_MIN = 0.33
_HEX = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f]{32,}")
_BASE64_LINE = re.compile(r"[A-Za-z0-9+/]{40}")
_PEM_REACH_BLOBS = 16
_PEM_KINDS = frozenset({"RSA", "EC", "DSA", "OPENSSH", "ENCRYPTED"})


def entropy(text: str) -> float:
    """Shannon entropy of the characters of `text`, in bits for each (0 for empty text)."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _kind(character: str) -> str:
    if character.isdigit():
        return "d"
    return "u" if character.isupper() else "l" if character.islower() else "o"


def looks_random(blob: str) -> bool:
    """True when `blob` (ASCII) is more likely drawn than written."""
    if len(blob) < _RANDOM_LENGTH_MIN:
        return False
    if _HEX.fullmatch(blob):
        return True
    kinds = [_kind(character) for character in blob]
    if not {"d", "u", "l"} <= set(kinds) or kinds.count("d") < _KEY_DIGIT_COUNT_MIN:
        return False
    # A capital letter that begins a word is no change: CamelCase names are written, not drawn.
    changes = sum(a != b and a + b != "ul" for a, b in itertools.pairwise(kinds))
    ratio = changes / len(blob)
    return ratio >= _RANDOM_CHANGE_RATIO_MIN and entropy(blob) >= _RANDOM_ENTROPY_MIN_BITS


def known_key(blob: str) -> tuple[int, int] | None:
    """Span of the first key of a known format in `blob`, if any."""
    for match in _KEY.finditer(blob):
        key = match.group()
        digits = sum(character.isdigit() for character in key)
        if digits >= _KEY_DIGIT_COUNT_MIN and entropy(key) >= _KEY_ENTROPY_MIN_BITS:
            return match.span()
        if key.startswith(("AKIA", "ASIA")) and entropy(key) >= _KEY_ENTROPY_MIN_BITS:
            return match.span()
    return None


def _announces(name: str) -> bool:
    """True when a secret may follow `name`."""
    name = name.rstrip("-_.=+/~").lower()
    return name.endswith(_KEYWORDS) or name == "key"


def _value(blob: str, *, expected: bool) -> int | None:
    """Index in `blob` where the value of a keyword begins, if one is there."""
    name, separator, _ = blob.partition("=")
    if separator and _announces(name):
        return len(name) + 1
    return 0 if expected else None


def _open_from(blob: str, *, expected: bool) -> int | None:
    """Index from which the unfinished `blob` could become a secret, if anywhere."""
    if blob.startswith("-"):
        return 0  # the dashes of a PEM header
    value = _value(blob, expected=expected)
    begin = _KEY_BEGIN.search(blob)
    tail = max(blob.rfind("="), blob.rfind("/"), blob.rfind("+")) + 1
    starts = [tail] if blob[tail:] in _PREFIX_PARTS else []
    starts += [] if value is None else [value]
    starts += [begin.start()] if begin else []
    return min(starts, default=None)


class _Pem:
    """Follows `-----BEGIN … PRIVATE KEY-----` and the base64 after it."""

    __slots__ = ("_left", "_state", "start")

    def __init__(self) -> None:
        self._state = ""
        self._left = 0
        self.start = -1

    def step(self, blob: str, offset: int) -> bool:
        """Takes the next blob; True when it is key material after a header."""
        word = blob.strip("-")
        if word == "BEGIN" and blob.startswith("--"):
            self._state, self._left, self.start = "BEGIN", _PEM_REACH_BLOBS, offset
            return False
        if self.start < 0:
            return False
        self._left -= 1
        if self._state == "BEGIN" and word in _PEM_KINDS:
            return False
        if self._state == "BEGIN" and word == "PRIVATE":
            self._state = "PRIVATE"
            return False
        if self._state == "PRIVATE" and word.startswith("KEY"):
            self._state = "KEY"
        if self._state == "KEY" and _BASE64_LINE.search(blob):
            return True
        if self._state != "KEY" or self._left <= 0:
            self.start = -1
        return False

    def reset(self) -> None:
        self.start = -1


def _may_hold_secret(text: str) -> bool:
    """False, quickly, for a text without a blob that could be a key, or begin one."""
    return "--" in text or any(len(word) >= _RANDOM_LENGTH_MIN for word in text.split())


class SecretScanner:
    """Finds secrets in a text that arrives in pieces.

    Args:
        allows: says of a secret that it is no finding.
    """

    def __init__(self, allows: Callable[[str], bool] = lambda text: False) -> None:
        self._allows = allows
        self._feed = Feed()
        self._pem = _Pem()
        self._reach = 0  # for how many more blobs the last keyword holds

    def feed(self, piece: str, *, final: bool = False) -> list[Finding]:
        """See `Scanner.feed`."""
        text = self._feed.add(piece)
        findings: list[Finding] = []
        cut = len(text)
        nothing = final and self._pem.start < 0 and not _may_hold_secret(text)
        for match in () if nothing else _BLOB.finditer(text):
            start, end = match.span()
            if end == len(text) and not final and end - start < BLOB_LENGTH_MAX:
                cut = start
                break
            finding = self._blob(match.group(), start)
            if finding:
                findings.append(finding)
        self._feed.cut(cut)
        return findings

    @property
    def wakes(self) -> int:
        """See `Sleeper.wakes`."""
        return prefilter.SECRET

    def wakes_at(self, words: Sequence[str]) -> bool:
        """See `Sleeper.wakes_at`."""
        return False

    def is_idle(self) -> bool:
        """See `Sleeper.is_idle`."""
        return not self._feed.text and not self._reach and self._pem.start < 0

    def skip(self, context: str, offset: int) -> None:
        """See `Sleeper.skip`."""
        self._feed.base = offset

    def peek(self, word: str, offset: int) -> Open:
        """See `Sleeper.peek`."""
        if word.isalpha() and word.isascii():  # nearly every word of a text
            begins = word in _PREFIX_PARTS or _KEY_BEGIN.match(word)
            return Open(strong=offset) if begins else NOTHING_OPEN
        blob = _LAST_BLOB.search(word)
        begin = _open_from(blob.group(), expected=False) if blob else None
        if blob is None or begin is None:
            return NOTHING_OPEN
        return Open(strong=offset + byte_count(word[: blob.start()]) + begin)

    def open(self) -> Open:
        """See `Scanner.open`."""
        if self._pem.start >= 0:
            return Open(strong=self._pem.start)
        blob = self._feed.text
        begin = _open_from(blob, expected=self._reach > 0) if blob else None
        return Open() if begin is None else Open(strong=self._feed.base + begin)

    def _blob(self, blob: str, index: int) -> Finding | None:
        """Judges one whole blob that begins at `index` of the unjudged text."""
        announces, expected = _announces(blob), self._reach > 0
        self._reach = _KEYWORD_REACH_BLOBS if announces else max(0, self._reach - 1)
        if len(blob) < _RANDOM_LENGTH_MIN and self._pem.start < 0 and not blob.startswith("--"):
            return None  # too short for a key: nearly every word of a text
        offset = self._feed.at(index)
        end = offset + len(blob)
        # A blob ends with the character after it, or by its length with its own last one.
        settled = end if len(blob) < BLOB_LENGTH_MAX else end - 1
        if self._pem.step(blob, offset):
            start = self._pem.start
            self._pem.reset()
            return Finding(settled, start, end, Category.SECRET, PRIVATE_KEY)
        span = known_key(blob)
        if span and not self._allows(blob[slice(*span)]):
            start, stop = offset + span[0], offset + span[1]
            return Finding(settled, start, stop, Category.SECRET, SECRET_FORMAT)
        value = _value(blob, expected=expected)
        drawn = None if value is None else blob[value:].rstrip(".=")
        if value is not None and drawn and looks_random(drawn) and not self._allows(drawn):
            return Finding(settled, offset + value, end, Category.SECRET, SECRET_ENTROPY)
        return None
