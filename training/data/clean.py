"""Cleaning: one plain typography, no markup, no slurs, no archaic or overlong sentences.

A paragraph is kept or dropped whole. The rules lean to dropping: a model of ten million parameters
learns more from less text that is simple than from more text that is not.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from training.data import sources

# What the typography of the sources is reduced to, so that each sign has one token.
PLAIN = str.maketrans(
    {
        "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'", "‚": "'", "`": "'",
        "–": "-", "—": " - ", "―": " - ", "…": "...", "\u00a0": " ", "\u200b": None,
        "\ufeff": None, "\u00ad": None, "\t": " ", "\r": None, "•": "-", "×": "x",
    }
)  # fmt: skip
ARCHAIC = re.compile(
    r"\b(thou|thee|thy|thine|hath|doth|dost|hast|wilt|shalt|art thou|quoth|'tis|'twas|ye|yon|"
    r"betwixt|whence|thither|hither|nay|verily|forsooth|prithee|ere|wherefore|methinks|o'er|"
    r"ain't|warn't|hain't|dat|dis|gwine|massa|sah|dey)\b",
    re.IGNORECASE,
)
# Period words about people that no lexicon of today's insults lists.
DATED = re.compile(
    r"\b(negro\w*|savages?|heathens?|redskins?|injuns?|squaws?|darkies|darky|half-?breeds?|"
    r"mulatto\w*|cannibals?|hottentots?|gyps(y|ies)|mohammedans?|jew(s|ess)?|chinam[ae]n|"
    r"coolies?|blackamoors?|piccaninn\w+|pickaninn\w+|colou?red (man|men|people|woman))\b",
    re.IGNORECASE,
)
# Listed words with a plain everyday sense in children's books.
EVERYDAY = frozenset(
    [
        "bone",
        "butt",
        "queer",
        "puss",
        "knob",
        "rod",
        "wang",
        "snatch",
        "fairy",
        "gay",
        "log",
        "tool",
        "crack",
        "trim",
        "jock",
    ]
)
SENTENCE_END = re.compile(r"[.!?][\"')]*\s+")
WORDS_PER_SENTENCE_MAX = 30.0
PARAGRAPH_LENGTH_MAX = 1500


def plain(text: str) -> str:
    """NFC text with ASCII quotation marks and dashes, without emphasis marks or double blanks."""
    text = unicodedata.normalize("NFC", text).translate(PLAIN)
    text = re.sub(r"(?<!\w)[_*]+(?=[A-Za-z\"'])|(?<=[A-Za-z.,!?\"'])[_*]+(?!\w)", "", text)
    text = re.sub(r"\s*--+\s*", " - ", text)
    text = re.sub(r"[ ]{2,}", " ", text)
    text = re.sub(r" +([,.;:!?])(?!\w)", r"\1", text)
    return re.sub(r" *\n *", "\n", text).strip()


def unwrapped(text: str) -> str:
    """Lines that were broken in the middle of a sentence joined; blank lines part paragraphs."""
    text = re.sub(r"(?<![.!?:\"'\n])\n(?=[a-zA-Z\"'])", " ", text)
    return re.sub(r"\n{2,}", "\n", text)


@dataclass(frozen=True)
class Insults:
    """A lexicon: single lower-case words, and phrases of several words."""

    words: frozenset[str]
    phrases: tuple[str, ...]

    def found_in(self, text: str) -> bool:
        """Whether any word, also with a plural s, or phrase of the lexicon occurs."""
        lowered = text.lower()
        spoken = set(re.findall(r"[a-z]+", lowered))
        spoken |= {word[:-1] for word in spoken if word.endswith("s")}
        return not self.words.isdisjoint(spoken) or any(p in lowered for p in self.phrases)


def insults(data: Path) -> Insults:
    """Insults and explicit words of `profanity-list` with severity 2 or more."""
    text = "".join(sources.open_source(data, "profanity-list", "en.json.gz"))
    listed = set()
    for entry in json.loads(text or "[]"):
        if entry["severity"] >= 2:
            listed |= {word.strip() for word in entry["match"].split("|") if len(word) > 2}
    listed -= EVERYDAY
    return Insults(
        frozenset(word for word in listed if re.fullmatch(r"[a-z]+", word)),
        tuple(sorted(word for word in listed if re.fullmatch(r"[a-z]+[ -][a-z -]+", word))),
    )


def words_per_sentence(text: str) -> float:
    """Mean number of words between sentence ends; the whole text counts as at least one."""
    return len(text.split()) / max(1, len(SENTENCE_END.findall(text + " ")))


def defect(paragraph: str, lexicon: Insults) -> str | None:
    """Why a paragraph is dropped, or None if it is kept."""
    letters = sum(c.isalpha() for c in paragraph)
    reason = None
    if len(paragraph) > PARAGRAPH_LENGTH_MAX:
        reason = "too long"
    elif not paragraph.isascii() and sum(not c.isascii() for c in paragraph) > 2:
        reason = "foreign letters"
    elif re.search(r"https?:|www\.|\[\d|\d{4}\. \"", paragraph):
        reason = "reference"
    elif letters < 0.6 * len(paragraph):
        reason = "few letters"
    elif sum(c.isupper() for c in paragraph) > 0.3 * letters:
        reason = "capitals"
    elif lexicon.found_in(paragraph) or DATED.search(paragraph):
        reason = "slur or dated word"
    elif ARCHAIC.search(paragraph):
        reason = "archaic or dialect"
    elif words_per_sentence(paragraph) > WORDS_PER_SENTENCE_MAX:
        reason = "long sentences"
    return reason


def passages(paragraphs: Iterable[str | None], length: int) -> list[str]:
    """Runs of kept paragraphs of about `length` characters; None marks a gap and ends a run.

    Runs shorter than a quarter of `length` are dropped: they are torn from their context.
    """
    made: list[str] = []
    run: list[str] = []
    for paragraph in [*paragraphs, None]:
        if paragraph is not None:
            run.append(paragraph)
        if paragraph is None or sum(map(len, run)) >= length:
            if sum(map(len, run)) >= length // 4:
                made.append("\n".join(run))
            run = []
    return made
