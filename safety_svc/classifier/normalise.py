"""One plain spelling of a text, and further readings of what is hidden in it.

`plain` undoes tricks of Unicode that leave the words as they are: invisible characters, styled and
full-width letters, look-alike letters of other scripts, ASCII hidden in tag characters. `readings`
decodes what no person reads at sight: leet, letters set apart, base64, hex, binary, URL and HTML
escapes, rot13, reversed text, Morse. The screen judges the plain text first and every reading
after it; a reading that means nothing scores low and does no harm.
"""

import re
import unicodedata
from functools import cache

from safety_svc.classifier import encodings, joins
from safety_svc.fast.library import FastPlain

READING_COUNT_MAX = 10
# A look at what is decoded: longer hidden texts are cut. Words around it that are kept.
READING_LENGTH_MAX, _AROUND = 4_096, 16
# A hidden text that is read alone has at least so many words that the text has not.
_HIDDEN_WORD_COUNT_MIN = 4

# Drawn as nothing: soft hyphen, joiners, marks of direction, variation selectors, fillers.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0100-\U000e01ef]"
)
_TAGS = re.compile("[\U000e0020-\U000e007e]+")
# Bytes as variation selectors; in honest text they stand alone.
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")
_SPACE = re.compile(r"\s")
_WORD = re.compile(r"[^\W\d_]+")
# Letters of other scripts that look like Latin ones (a part of Unicode TS 39, confusables.txt).
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝкмтнвгпАВЕКМНОРСТХУІЈЅαοριντυκχεγωηΑΒΕΖΗΙΚΜΝΟΡΤΥΧıɑɡⅼаᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aeopcyxijshdqwkmthbrnABEKMHOPCTXYIJSaopivtukxeywnABEZHIKMNOPTYXiaglaabcdefghijklmnoprstuvwyz",
)
# Of no script of their own: a word of nothing else is a Latin one.
_SMALL_CAPITALS = frozenset("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")
_KNOWN_TRICKS = encodings.TURNED.union(map(chr, _LOOKALIKES))
# Two spaces stay two, and three become two: they part l e t t e r s   s e t   a p a r t.
_SPACES = re.compile(r"[^\S\n]{3,}|[^\S\n ]")
_APART_SPACE_COUNT = 3
_LINES = re.compile(r"\n{3,}")
# One character again and again says nothing more after the third; digits may be binary.
_REPEATED = re.compile(r"([^\s\d])\1{4,}")
# Strokes through letters, and heaps of marks on them; single accents stay.
_MARK = "\u0300-\u036f\u1ab0-\u1aff\u20d0-\u20ff"
_MARKS = re.compile(f"[\u0334-\u0338\u0489\u20d2\u20d3\u20d8-\u20ea][{_MARK}]*|[{_MARK}]{{2,}}")
# Marks on one letter are put in order, in time that is quadratic in their number: no language has
# so many (Unicode's stream-safe format allows 30, UAX 15).
_HEAP_LENGTH_MAX = 8
# Beyond it no character is, or becomes, a mark that has a place in that order.
_MARKS_END = 0x20000


# What `is_plain` is told of a character, see Kind in plain.h; and how many are told of.
_UNKNOWN, _SIGN, _LETTER = range(3)
_TOLD_COUNT = 0x10000
# Jamo come together to other characters; marks do so too.
_JAMO = range(0x1100, 0x1200)


def is_plain(text: str) -> bool:
    """True, quickly, only where `plain(text)` is `text.strip()` and has no `readings`.

    False where the C++ library is missing, and for one look in ten of natural text.
    """
    fast = _fast()
    return fast is not None and fast.is_all(text)


@cache
def _fast() -> FastPlain | None:
    return FastPlain.open(bytes(map(_told, range(_TOLD_COUNT))), sorted(encodings.COMMON))


def _told(code: int) -> int:
    """A letter or sign that `plain` leaves alone, whatever stands beside it; or unknown."""
    character = chr(code)
    category = unicodedata.category(character)
    if code in _JAMO or category[0] in "MNZC" or character in _KNOWN_TRICKS:
        return _UNKNOWN
    if _INVISIBLE.match(character) or unicodedata.normalize("NFKC", character) != character:
        return _UNKNOWN
    if not character.isalpha():
        return _UNKNOWN if character.isalnum() or character.isspace() else _SIGN
    lower = character.lower()
    return _LETTER if len(lower) == 1 and not lower.isascii() else _UNKNOWN


@cache
def _heaps() -> re.Pattern[str]:
    """More marks on one letter than _HEAP_LENGTH_MAX; the group holds those that stay."""
    ordered = "".join(
        character
        for character in map(chr, range(0x300, _MARKS_END))
        if unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
    )
    return re.compile(f"([{ordered}]{{{_HEAP_LENGTH_MAX}}})[{ordered}]+")


def plain(text: str) -> str:
    """`text` in plain characters: the same words, one spelling.

    Cheap for ASCII. Long runs of spaces and of one character become short.
    """
    if not text.isascii():
        text = _SELECTORS.sub(_from_selectors, text)
        text = _heaps().sub(r"\1", _TAGS.sub(_untagged, _INVISIBLE.sub("", text)))
        text = unicodedata.normalize("NFKC", text)
        text = _MARKS.sub("", unicodedata.normalize("NFC", text))
        text = _WORD.sub(_latin, text)
    text = _LINES.sub("\n\n", _SPACES.sub(_spaced, text))
    return _REPEATED.sub(r"\1\1\1", text).strip()


def readings(text: str) -> list[str]:
    """What else `text`, already plain, can be read as: what differs, with some words around it.

    At most READING_COUNT_MAX, often none.
    """
    seen = text[: 4 * READING_LENGTH_MAX]
    found: dict[str, None] = {}
    for reading in encodings.decoded(seen):
        found |= dict.fromkeys((_changed(seen, reading), _hidden(seen, reading)))
    found |= dict.fromkeys(joins.joined(seen))
    kept = dict.fromkeys(one.strip()[:READING_LENGTH_MAX] for one in found)
    kept.pop(text, None)
    kept.pop("", None)
    return list(kept)[:READING_COUNT_MAX]


def _hidden(text: str, reading: str) -> str:
    """What `reading` has where `text` has something else, without the words before and after.

    The line that says how to decode it makes a request look like an exercise. Empty where it is
    too short to be a request, or is the text's own words for more than half.
    """
    first = _shared(text, reading)
    start = 1 + max(reading.rfind(" ", 0, first), reading.rfind("\n", 0, first))
    last = max(start, len(reading) - _shared(text[::-1], reading[::-1]))
    rest = _SPACE.search(reading, last)
    hidden = reading[start : rest.start() if rest else None]
    words, known = hidden.split(), set(text.split())
    other = sum(word not in known for word in words)
    return hidden if other >= max(_HIDDEN_WORD_COUNT_MIN, len(words) / 2) else ""


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _changed(text: str, reading: str) -> str:
    """The words of `reading` that are not in `text`, with some around them."""
    words, known = reading.split(" "), set(text.split(" "))
    kept: set[int] = set()
    for place, word in enumerate(words):
        if word not in known:
            kept.update(range(max(0, place - _AROUND), min(len(words), place + _AROUND + 1)))
    return " ".join(words[place] for place in sorted(kept))


def _spaced(match: re.Match[str]) -> str:
    """Three spaces are two: s e t   a p a r t has them between its words. More are one."""
    return "  " if len(match.group()) == _APART_SPACE_COUNT else " "


def _untagged(match: re.Match[str]) -> str:
    """ASCII out of tag characters (U+E0020 to U+E007E), which are drawn as nothing."""
    return "".join(chr(ord(tag) - 0xE0000) for tag in match.group())


def _from_selectors(match: re.Match[str]) -> str:
    """UTF-8 out of variation selectors: 1 to 16 are the bytes 0 to 15, 17 to 256 the rest."""
    first, more = 0xFE00, 0xE0100 - 16
    codes = map(ord, match.group())
    data = bytes(code - (more if code > more else first) for code in codes)
    return data.decode(errors="ignore")


def _latin(match: re.Match[str]) -> str:
    """A word that mixes Latin letters with look-alikes of them, in Latin letters only.

    Small capitals, and words that consist of them, too.
    """
    word = match.group()
    if word.isascii():
        return word
    changed = word.translate(_LOOKALIKES)
    mixed = any(c.isascii() for c in word) or _SMALL_CAPITALS.issuperset(word)
    return changed if mixed and changed.isascii() else word
