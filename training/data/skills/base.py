"""What every skill is made of: exchanges, the draw that words them, and the written tables."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from training.data import phrasing
from training.data.phrasing import Wordings

T = TypeVar("T")
CONTENT = Path(__file__).resolve().parent.parent / "content"


class Exchange(NamedTuple):
    """A question and its reply; `answers`: strings of which a right reply contains one.

    `more` is what the model says when it is asked to go on; empty if it has nothing to add.
    """

    ask: str
    say: str
    answers: tuple[str, ...] = ()
    more: str = ""


@dataclass(frozen=True)
class Entry:
    """A row of a table of questions and answers."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    more: str


@dataclass
class Material:
    """What comes from the data folders; everything else is written in `content`."""

    harmful: Sequence[str]
    queries: dict[str, list[str]]
    too_hard: Sequence[str]
    strange: Sequence[str]
    support: Sequence[tuple[str, str]]


@dataclass
class Draw:
    """Random choices of one conversation; `held` words questions as only the evaluation does."""

    rng: random.Random
    material: Material
    held: bool = False
    plain: bool = False  # no typing noise

    def pick(self, items: Sequence[T]) -> T:
        """One element, uniformly."""
        return items[self.rng.randrange(len(items))]

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.rng.random() < share

    def ask(self, wordings: Wordings, **slots: object) -> str:
        """A wording with its slots filled, typed as users type."""
        template = self.pick(wordings.held if self.held else wordings.train)
        text = article(template.format(**slots))
        return self.typed(text[:1].upper() + text[1:])

    def typed(self, text: str) -> str:
        """The text with the noise of typing."""
        return text if self.held or self.plain else phrasing.typed(self.rng, text) or text

    def question(self, written: Sequence[str]) -> str:
        """One of the written questions, perhaps in another wording."""
        chosen = self.pick(written)
        wording, slots = self.pick(phrasing.variants(chosen))
        return self.ask(wording, **slots)


def article(text: str) -> str:
    """`a owl` as `an owl`."""
    return re.sub(r"\b([Aa]) (?=(?!(?:uni|one|use|eu))[aeiou]\w)", r"\1n ", text)


@cache
def entries(name: str) -> tuple[Entry, ...]:
    """Rows of `content/<name>.tsv`: questions, answers and what more there is to say."""
    found = []
    for fields in lines(name):
        more = fields[2] if len(fields) > 2 else ""
        found.append(Entry(tuple(fields[0].split(" | ")), tuple(fields[1].split(" | ")), more))
    return tuple(found)


@cache
def lines(name: str) -> tuple[tuple[str, ...], ...]:
    """Rows of `content/<name>.tsv` as fields; comments begin with a number sign."""
    text = (CONTENT / f"{name}.tsv").read_text(encoding="utf-8")
    return tuple(tuple(row.split("\t")) for row in text.split("\n") if row and row[0] != "#")


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[a-z\d)][.!?]) (?=[A-Z])", text)[0]
