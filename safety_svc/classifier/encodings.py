"""Decoders of what hides a text. Each gives the whole text with its hidden parts decoded.

What they give is text that can be encoded, whatever they are given: no half of a surrogate pair.
"""

import base64
import binascii
import html
import operator
import re
import string
from collections.abc import Callable, Iterator
from urllib.parse import unquote

# A hidden part is decoded again, for base64 in base64.
_ROUNDS = 2
_PRINTABLE_MIN = 0.95
_LETTERS_MIN = 0.6
_HIDDEN_LENGTH_MIN = 8
_ASCII_END = 128

_BASE64 = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/=])")
# RFC 4648, section 6.
_BASE32 = re.compile(r"(?<![\w=])[A-Z2-7]{16,}={0,6}(?![\w=])")
# Codes of printable ASCII.
_CODES = re.compile(r"(?<!\w)(?:\d{2,3}[ ,]{1,2}){8,}\d{2,3}(?!\w)")
_HEX = re.compile(r"(?<!\w)(?:(?:0x|\\x)?[0-9a-fA-F]{2}[ ,:]?){8,}(?!\w)")
_BINARY = re.compile(r"(?<!\w)(?:[01]{8}[ ,]?){4,}(?!\w)")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}")
_ENTITY = re.compile(r"&#x?[0-9a-fA-F]{2,6};")
# Beside a numbered one those with names count too. Bounded: of thousands of digits
# `html.unescape` makes no number.
_ENTITIES = re.compile(r"&(?:#x?[0-9a-fA-F]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});?")
# Units of UTF-16, as JSON writes them: two of them may make one character.
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
_MORSE = re.compile(r"(?<![\w.-])(?:[.\-·–]{1,5}(?:\s+|\s*/\s*)){6,}[.\-·–]{1,5}(?![\w.-])")
_APART = re.compile(r"(?<!\w)(?:[^\W_]([ .\-*_|/~]))(?:[^\W_]\1{1,3}){2,}[^\W_](?!\w)")
# A word with a digit or sign that may stand for a letter.
_WORD = re.compile(r"(?<!\S)[^\s\d@$!|+€]*[\d@$!|+€]\S*")

# Digits in one run at one end are a unit, a version, a year: no leet.
_PLAIN = re.compile(
    r"\W*(\d+[a-zA-Z]{0,2}|[A-Za-z]+\d*|\w*[_./]\w.*|[0-9a-f]{6,}[0-9a-f-]*|[^A-Za-z]*)\W*"
)
# The sign first: it is rare.
_MIXED = re.compile(r"[\d@$!|+€](?:(?<=[^\W\d_].)|(?=[^\W\d_]))")
_LEET_LENGTH_MAX = 24
# Where so many words of a line are leet, one in three, its numbers are too: "4 y0u", "bull135".
_LEET_COUNT_MIN, _LEET_SHARE = 3, 3
_NUMBER_LENGTH_MAX = 2
_LEET = str.maketrans("01345789@$!|+€", "oieastbgasiite")
_ROT13 = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "NOPQRSTUVWXYZABCDEFGHIJKLMnopqrstuvwxyzabcdefghijklm",
)
# Latin letters upside down, where another letter is not its own picture; and those that are.
TURNED = frozenset("ɐɔǝɟƃɥᴉɾʞɯɹʇʌʍʎ")
_UPRIGHT = str.maketrans("ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹʇnʌʍʎ", "abcdefghijklmnopqrtuvwy")
_TURNED, _TURNED_COUNT_MIN = re.compile(f"[{''.join(sorted(TURNED))}]"), 4
# Flags are two of these; a row of them may be a word.
_REGIONAL = str.maketrans(
    {0x1F1E6 + at: letter for at, letter in enumerate(string.ascii_lowercase)}
)
_FLAGS, _REGIONAL_COUNT_MIN = re.compile("[\U0001f1e6-\U0001f1ff]"), 10
# The signs of a to z (ITU-R M.1677).
_SIGNS = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- "
    "-. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
)
_CODE = dict(zip(_SIGNS.split(), string.ascii_lowercase, strict=True))
# The commonest words of English, to tell text from what only has letters.
_COMMON = """
the of and to a in is it you that he was for on are with as i his they be at one have this from or
had by not but what some we can out other were all there when up use your how said an each she
which do their if will way about many then them make write would like so these her long me my tell
give please who why ignore instructions build kill someone into explain than more no time people
its now find new where help want need used does did could should without been has him our us any
only very just good know take get go see over back after first own work day through before between
because while same two three most every little old great man world life house home school money
secret steps step answer question message describe list show create detailed guide
"""
COMMON = frozenset(_COMMON.split())
_COMMON_MIN = 2
# In English every fourth word or so is a common one; a text with fewer than one in twelve is none.
_COMMON_RARE = 12
_LOOK_LENGTH = 2_000
_LETTERS = re.compile(r"[a-z]{2,}")


def decoded(text: str) -> Iterator[str]:
    """Every other way in which `text` can be read, the most certain first."""
    current = text
    for _ in range(_ROUNDS):
        opened = _opened(current)
        if opened == current:
            break
        yield opened
        current = opened
    yield from _drawn_otherwise(text)
    joined = _APART.sub(_joined, text)
    if joined != text:
        yield joined
    unleeted = _WORD.sub(_letters_only, joined) if _MIXED.search(joined) else joined
    if unleeted != joined:
        yield unleeted
        spelled = "\n".join(map(_all_leet, joined.split("\n")))
        if spelled != joined:
            yield spelled
    # A line that says what to do often stands above the hidden ones.
    lines = text.split("\n")
    counts = [_english(line) for line in lines]
    if all(_has_enough(*one) for one in counts):
        return
    whole = _english(text)
    for undo in (_rotated, _reversed, _each_reversed):
        other = _undone(text, whole, undo)
        if other == text:
            pairs = zip(lines, counts, strict=True)
            other = "\n".join(_undone(line, count, undo) for line, count in pairs)
        if other != text:
            yield other


def _drawn_otherwise(text: str) -> Iterator[str]:
    """Letters upside down, and as flags."""
    if text.isascii():
        return
    if len(_TURNED.findall(text)) >= _TURNED_COUNT_MIN:
        lines = text.split("\n")
        yield "\n".join(
            line.translate(_UPRIGHT) if TURNED.intersection(line) else line for line in lines
        )
    if len(_FLAGS.findall(text)) >= _REGIONAL_COUNT_MIN:
        yield text.translate(_REGIONAL)


def _has_enough(common: int, count: int) -> bool:
    """Whether so many common words among `count` make it English."""
    return common * _COMMON_RARE > count


def _undone(text: str, english: tuple[int, int], undo: Callable[[str], str]) -> str:
    """`undo(text)` where that is English and `text`, of which `english` tells, is none."""
    if _has_enough(*english):
        return text
    other = undo(text)
    return other if _english(other)[0] > max(_COMMON_MIN, 2 * english[0]) else text


def _rotated(text: str) -> str:
    return text.translate(_ROT13)


def _reversed(text: str) -> str:
    return text[::-1]


def _each_reversed(text: str) -> str:
    """Every word backwards, in its place."""
    return " ".join(word[::-1] for word in text.split(" "))


def _opened(text: str) -> str:
    """`text` with every encoded part of it decoded."""
    text = _BASE64.sub(_from_base64, text)
    text = _BASE32.sub(_from_base32, text)
    text = _CODES.sub(_from_codes, text)
    text = _HEX.sub(_from_hex, text)
    text = _BINARY.sub(_from_binary, text)
    text = _MORSE.sub(_from_morse, text)
    if _PERCENT.search(text):
        text = unquote(text, errors="ignore")
    if _ENTITY.search(text):
        text = _ENTITIES.sub(lambda match: html.unescape(match.group()), text)
    return _ESCAPES.sub(_from_escapes, text)


def _from_escapes(match: re.Match[str]) -> str:
    """Characters of JSON escapes; half of a pair, which no text may hold, as U+FFFD."""
    units = bytes.fromhex(match.group().replace("\\u", ""))
    return units.decode("utf-16-be", errors="replace")


def _from_base64(match: re.Match[str]) -> str:
    letters = match.group().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        return match.group()
    return _text(data) or match.group()


def _from_base32(match: re.Match[str]) -> str:
    letters = match.group().rstrip("=")
    try:
        data = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except (binascii.Error, ValueError):
        return match.group()
    return _text(data) or match.group()


def _from_codes(match: re.Match[str]) -> str:
    codes = [int(code) for code in re.findall(r"\d+", match.group())]
    return _text(bytes(codes)) or match.group() if max(codes) < _ASCII_END else match.group()


def _from_hex(match: re.Match[str]) -> str:
    digits = re.sub(r"0x|\\x|[ ,:]", "", match.group())
    return _text(bytes.fromhex(digits)) or match.group()


def _from_binary(match: re.Match[str]) -> str:
    bits = re.sub(r"[ ,]", "", match.group())
    return _text(bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))) or match.group()


def _from_morse(match: re.Match[str]) -> str:
    code = match.group().replace("·", ".").replace("–", "-")
    words = [[_CODE.get(sign, "?") for sign in word.split()] for word in code.split("/")]
    letters = " ".join("".join(word) for word in words)
    return letters if letters.count("?") <= len(letters) // 10 else match.group()


def _text(data: bytes) -> str:
    """`data` as text, empty when it is not one."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""
    if len(text) < _HIDDEN_LENGTH_MIN:
        return ""
    printable = sum(c.isprintable() or c.isspace() for c in text) / len(text)
    letters = sum(c.isalpha() or c.isspace() for c in text) / len(text)
    return text if printable >= _PRINTABLE_MIN and letters >= _LETTERS_MIN else ""


def _joined(match: re.Match[str]) -> str:
    """Letters set apart by one sign, together; a doubled sign ends a word."""
    gap = match.group(1)
    return " ".join(part.replace(gap, "") for part in match.group().split(gap * 2))


def _letters_only(match: re.Match[str]) -> str:
    """A word that mixes letters with digits or signs, in letters only."""
    word = match.group()
    core = word.rstrip(".,;:!?")
    if core.isalpha() or len(core) > _LEET_LENGTH_MAX or _PLAIN.fullmatch(core):
        return word
    return core.translate(_LEET) + word[len(core) :]


def _all_leet(line: str) -> str:
    """A line of leet with its numbers as letters too; another line as it is."""
    words = line.split(" ")
    leet = sum(map(operator.ne, words, _WORD.sub(_letters_only, line).split(" ")))
    is_leet = leet >= _LEET_COUNT_MIN and _LEET_SHARE * leet >= len(words)
    return _WORD.sub(_any_letters, line) if is_leet else line


def _any_letters(match: re.Match[str]) -> str:
    """A word with every digit and sign as a letter; numbers of more than two digits stay."""
    word = match.group()
    core = word.rstrip(".,;:!?")
    if len(core) > _LEET_LENGTH_MAX or (core.isdigit() and len(core) > _NUMBER_LENGTH_MAX):
        return word
    return core.translate(_LEET) + word[len(core) :]


def _english(text: str) -> tuple[int, int]:
    """How many of the first words are common English ones, and how many words there are."""
    words = _LETTERS.findall(text[:_LOOK_LENGTH].lower())
    return sum(map(COMMON.__contains__, words)), len(words)
