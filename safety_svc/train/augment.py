"""Texts as evaders and hurried people write them: leet, spacing, look-alikes, emoji, typing errors.

The screen undoes what it can (`classifier/normalise.py`); these rows teach the model the rest and
what is left of it. Labels never change.
"""

import random
from collections.abc import Callable

_LEET = str.maketrans({"a": "4", "e": "3", "i": "1", "o": "0", "s": "5", "t": "7"})
_SYMBOLS = str.maketrans({"a": "@", "i": "!", "s": "$", "l": "|"})
_LOOKALIKE = str.maketrans({"a": "а", "e": "е", "o": "о", "p": "р", "c": "с", "i": "і", "x": "х"})
_EMOJI = "😀😂🔥💀😡🙏👀💣❤️🤬"


def leet(text: str, rng: random.Random) -> str:
    """Digits or symbols for letters, in half of the words."""
    table = _LEET if rng.random() < 0.7 else _SYMBOLS
    return _words(text, rng, 0.5, lambda word: word.translate(table))


def lookalikes(text: str, rng: random.Random) -> str:
    """Cyrillic letters for Latin ones, in some words."""
    return _words(text, rng, 0.4, lambda word: word.translate(_LOOKALIKE))


def spaced(text: str, rng: random.Random) -> str:
    """Letters of some words apart: "b o m b" or "b.o.m.b"."""
    gap = rng.choice((" ", ".", "-", "*"))
    return _words(text, rng, 0.25, lambda word: gap.join(word) if len(word) > 3 else word)


def casing(text: str, rng: random.Random) -> str:
    """All capitals, all small, or mixed."""
    kind = rng.randrange(3)
    if kind == 2:
        return "".join(c.upper() if rng.random() < 0.5 else c.lower() for c in text)
    return text.lower() if kind else text.upper()


def typing(text: str, rng: random.Random) -> str:
    """Letters dropped, doubled or swapped, punctuation lost."""
    letters = list(text)
    for _ in range(max(1, len(text) // 25)):
        at = rng.randrange(max(1, len(letters) - 1))
        if at + 1 >= len(letters):
            break
        kind = rng.randrange(3)
        if kind == 0:
            del letters[at]
        elif kind == 1:
            letters.insert(at, letters[at])
        else:
            letters[at], letters[at + 1] = letters[at + 1], letters[at]
    return "".join(letters)


def emoji(text: str, rng: random.Random) -> str:
    """Emoji between words."""
    return _words(text, rng, 0.15, lambda word: word + rng.choice(_EMOJI))


def politeness(text: str, rng: random.Random) -> str:
    """Small talk around a request."""
    before = rng.choice(
        ("hi, ", "hey can you help me? ", "please answer: ", "Question: ", "so ", "")
    )
    after = rng.choice(
        (" thanks", " please", " asap", "??", " be detailed", " I need it for work", "")
    )
    return f"{before}{text}{after}"


WAYS: tuple[Callable[[str, random.Random], str], ...] = (
    casing, casing, typing, typing, politeness, politeness, leet, lookalikes, spaced, emoji,
)  # fmt: skip


def augmented(text: str, rng: random.Random) -> str:
    """`text` changed in one of the ways."""
    return rng.choice(WAYS)(text, rng) if text else text


def _words(text: str, rng: random.Random, share: float, change: Callable[[str], str]) -> str:
    return " ".join(change(word) if rng.random() < share else word for word in text.split(" "))
