"""What nodes say and what of it may be shown. Pure.

An answer is a list of tokens from a seed. A node that draws by position says the same after any
tokens that came before; one that does not says something else in each attempt.
"""

import random
from dataclasses import dataclass

BAD, SECRET, MASK = b"POISON", b"SECRET", "[redacted]"
SAFE_TEXT = "Let us talk of something else."
PLAIN = [b" alpha", b" to", b" \xe6\x97\xa5\xe6\x9c\xac", b"\xc3\xbc", b".\n", b" \xf0\x9f\x99\x82"]
# Words of several tokens; also characters of several.
PIECES = [
    [b" h\xc3", b"\xa9llo"],
    [b" \xf0\x9f", b"\x99\x82"],
    [b" SEC", b"RET"],
    [b" PO", b"ISON"],
]
VOCABULARY = [*PLAIN, *(piece for word in PIECES for piece in word)]
IDS = {text: index for index, text in enumerate(VOCABULARY)}


@dataclass(frozen=True)
class Character:
    """What an account's answers are like; part of the seed of a request, so that all know it."""

    length: int
    secrets: bool
    poison: bool

    @classmethod
    def of(cls, seed: int) -> "Character":
        rng = random.Random(f"character {seed >> 8}")
        return cls(rng.randrange(6, 60), rng.random() < 0.3, rng.random() < 0.15)


def script(seed: int, emitted: list[int], nonce: int | None) -> list[int]:
    """All tokens of an answer, `emitted` first; with a nonce what follows is drawn otherwise."""
    character = Character.of(seed)
    rng = random.Random(f"{seed} {nonce}")
    tokens = list(emitted) if nonce is not None else []
    if tokens:
        tokens += [IDS[word[1]] for word in PIECES if VOCABULARY[tokens[-1]] == word[0]]
    while len(tokens) < character.length:
        draw = rng.random()
        if draw < 0.7:
            tokens.append(rng.randrange(len(PLAIN)))
        elif draw < 0.9:
            tokens += [IDS[piece] for piece in rng.choice(PIECES[:2])]
        elif draw < 0.97:
            tokens += [IDS[piece] for piece in PIECES[2]] if character.secrets else [0]
        else:
            tokens += [IDS[piece] for piece in PIECES[3]] if character.poison else [1]
    return tokens


def data_of(tokens: list[int]) -> bytes:
    return b"".join(VOCABULARY[token] for token in tokens)


def whole(data: bytes) -> int:
    """How many bytes of it are whole characters."""
    for size in range(len(data), max(-1, len(data) - 4), -1):
        try:
            data[:size].decode()
        except UnicodeDecodeError:
            continue
        return size
    raise AssertionError("no text")


def masks_in(data: bytes) -> list[tuple[int, int]]:
    found, at = [], data.find(SECRET)
    while at >= 0:
        found.append((at, at + len(SECRET)))
        at = data.find(SECRET, at + 1)
    return found


def shown(data: bytes, end: int) -> str:
    """The text up to `end` as readers see it."""
    end = whole(data[:end])
    text, border = "", 0
    for first, last in masks_in(data):
        if last <= end:
            text, border = text + data[border:first].decode() + MASK, last
    return text + data[border:end].decode()


def is_safe_complete(seed: int) -> bool:
    """Whether safety says something in the place of a blocked answer."""
    return bool(seed & 4)


def fails_at(seed: int) -> int | None:
    """The position at which the engine gives the answer up for good; None: it does not."""
    return Character.of(seed).length // 2 if seed & 8 else None


@dataclass(frozen=True)
class Expected:
    """An undisturbed answer."""

    text: str
    is_filtered: bool
    token_count: int


def expected(seed: int) -> Expected:
    """Of an engine that draws by position."""
    tokens = script(seed, [], None)[: fails_at(seed)]
    data = data_of(tokens)
    data = data[: whole(data)]
    at = data.find(BAD)
    if at < 0:
        return Expected(shown(data, len(data)), is_filtered=False, token_count=len(tokens))
    text = shown(data, at)
    if is_safe_complete(seed):
        text = f"{text}\n\n{SAFE_TEXT}" if text else SAFE_TEXT
    return Expected(text, is_filtered=True, token_count=len(tokens))
