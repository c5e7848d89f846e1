"""Thousands of texts for comparing two ways of reading them: ordinary ones, and disguised ones."""

import base64
import codecs
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from tests.unit.safety.samples import HARMFUL, HARMLESS

ROOT = Path(__file__).parents[3]
WINDOW_LENGTH = 512
SIGNS = "0123456789@$!|+€%&\\_-/.·–—,;:?'\"()[]{}<>=~*#^` \n\t"
UNUSUAL = (
    "\u00a0\u200b\u00ad\u2026\u2019\u201c\u201d\u2022\u00e9\u00fc\u00df\u0130\u0131\u212a\u03a3\u03c2"
    "\u0430\u0435\u043e\u0301\u0338\uff21\ufb01\u1100\u1161\u11a8\uac00\u3042\u4e2d\u0664\u00b2\u00bd"
    "\u2460\u2028\u0085\u001c\u007f\U0001f600\U0001d400\U000e0041\u3007\u09c7\u09be\u2126\u00c5"
)


def lines() -> list[str]:
    """Lines that lie in the repository, and those of the tests."""
    found = [*HARMLESS, *(line for line, _ in HARMFUL)]
    for path in sorted((ROOT / "safety_svc/train/rows").glob("*.txt")):
        found += path.read_text(encoding="utf-8").splitlines()
    for path in sorted((ROOT / "training/data/content").glob("*.tsv")):
        for row in path.read_text(encoding="utf-8").splitlines():
            found += row.split("\t")
    return [line for line in dict.fromkeys(found) if line.strip()]


def texts(count: int, seed: int = 18) -> Iterator[str]:
    """The same `count` texts each time."""
    chance, known = random.Random(seed), lines()
    yield from itertools.islice(known, count // 4)
    for number in range(count - min(count // 4, len(known))):
        text = _woven(chance, known)
        for _ in range(number % 4):
            text = chance.choice(CHANGES)(chance, text)
        yield text


def _woven(chance: random.Random, known: list[str]) -> str:
    """A look at an answer: some lines, one after the other, from anywhere."""
    gap = chance.choice([" ", " ", "\n", "\n\n", "\n- ", "  "])
    text = gap.join(chance.choices(known, k=chance.randint(1, 12)))
    start = chance.randrange(len(text))
    return text[start : start + chance.randint(1, WINDOW_LENGTH)]


def _put(chance: random.Random, text: str, what: str) -> str:
    at = chance.randint(0, len(text))
    return text[:at] + what + text[at:]


def _signs(chance: random.Random, text: str) -> str:
    for _ in range(chance.randint(1, 4)):
        text = _put(chance, text, chance.choice(SIGNS) * chance.choice([1, 1, 1, 2, 3, 5]))
    return text


def _unusual(chance: random.Random, text: str) -> str:
    return _put(chance, text, "".join(chance.choices(UNUSUAL, k=chance.randint(1, 3))))


def _any_character(chance: random.Random, text: str) -> str:
    code = chance.choice([chance.randrange(0x250), chance.randrange(0x3000), 0xFFFF])
    code = chance.randrange(code + 1)
    return text if 0xD800 <= code < 0xE000 else _put(chance, text, chr(code))


def _apart(chance: random.Random, text: str) -> str:
    gap = chance.choice([" ", ".", "-", "_", "  ", "*", "~"])
    return _put(chance, text, f" {gap.join(chance.choice(['bomb', 'a1b2', 'kill me', 'xyz']))} ")


def _leet(chance: random.Random, text: str) -> str:
    table = str.maketrans("oieast", "013457")
    return " ".join(
        word.translate(table) if chance.random() < 0.2 else word for word in text.split(" ")
    )


def _hidden(chance: random.Random, text: str) -> str:
    piece = text[: chance.randint(1, 60)]
    ways = [
        base64.b64encode(piece.encode()).decode(),
        piece.encode().hex(),
        piece[:6].encode().hex(" "),
        " ".join(f"{byte:08b}" for byte in piece[:6].encode()),
        codecs.encode(piece, "rot13"),
        piece[::-1],
        "".join(f"%{byte:02x}" for byte in piece[:3].encode()),
        "&#x41;",
        "\\u0041",
        "... --- ... / .- -... -.-. -..",
    ]
    return _put(chance, text, chance.choice(["", " ", "\n"]) + chance.choice(ways))


def _whole(chance: random.Random, text: str) -> str:
    return chance.choice([str.upper, str.title, lambda t: t[::-1], _rot13, str.swapcase])(text)


def _rot13(text: str) -> str:
    return codecs.encode(text, "rot13")


def _long(chance: random.Random, text: str) -> str:
    return (text + chance.choice(["", " ", "\n"])) * chance.randint(2, 12)


CHANGES = [_signs, _signs, _unusual, _any_character, _apart, _leet, _hidden, _whole, _long]
