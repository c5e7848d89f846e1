"""Keeps evaluation prompts out of the training data by overlap of word sequences.

A text is contaminated by a prompt of eight or more words if they share eight words in a row, by a
prompt of five to seven words if it contains all of them in a row, and by a shorter one only if one
of its messages is that prompt: "hello" must stay learnable inside other sentences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from training.data.evaluation import normalised

GRAM_LENGTH = 8
EMBEDDED_LENGTH_MIN = 5


class Decontaminator:
    """Knows the evaluation prompts; `hit` tells which one a text overlaps."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self.exact: dict[str, str] = {}
        self.grams: dict[int, dict[tuple[str, ...], str]] = defaultdict(dict)
        for prompt in prompts:
            words = normalised(prompt).split()
            self.exact[" ".join(words)] = prompt
            length = min(len(words), GRAM_LENGTH)
            if length >= EMBEDDED_LENGTH_MIN:
                for start in range(len(words) - length + 1):
                    self.grams[length][tuple(words[start : start + length])] = prompt

    def hit(self, text: str) -> str | None:
        """The first prompt that `text` overlaps, or None."""
        words = normalised(text).split()
        found = self.exact.get(" ".join(words))
        if found is not None:
            return found
        for length, grams in self.grams.items():
            for start in range(len(words) - length + 1):
                prompt = grams.get(tuple(words[start : start + length]))
                if prompt is not None:
                    return prompt
        return None


RESEMBLANCE_MAX = 0.6
FILLERS = frozenset(
    [
        "a",
        "an",
        "the",
        "to",
        "of",
        "for",
        "in",
        "on",
        "and",
        "or",
        "how",
        "what",
        "is",
        "are",
        "do",
        "i",
        "can",
        "with",
        "that",
    ]
)


def resembles(text: str, prompts: Iterable[str]) -> bool:
    """Whether the words of `text`, without fillers, are nearly those of one of the prompts."""
    words = set(normalised(text).split()) - FILLERS
    for prompt in prompts:
        others = set(normalised(prompt).split()) - FILLERS
        if words and len(words & others) / len(words | others) > RESEMBLANCE_MAX:
            return True
    return False
