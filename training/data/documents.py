"""Pretraining documents from each data set: prose as text, dialogues as messages.

Every function yields `Document`s that are clean but neither deduplicated nor split; `prepare`
does that. Counts of what was dropped go to the `Counter` that is handed in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.data import clean, countries, sources

Message = dict[str, str]
PASSAGE_LENGTH = 3000  # characters: about one row of training
TURN_COUNT_MAX = 14

# Books whose language is near to today's; the rest of the folder is left out as too ornate,
# too long-winded or written in dialect.
EASY_BOOKS = frozenset(
    {
        "Aesop's Fables",
        "Great Big Treasury of Beatrix Potter",
        "The Adventures of Pinocchio",
        "Five Children and It",
        "The Book of Dragons",
        "The Railway Children",
        "A Little Princess",
        "The Secret Garden",
        "The Princess and the Goblin",
        "Andersen's Fairy Tales",
        "The Little Mermaid",
        "The Story of Doctor Dolittle",
        "Peter Pan",
        "Heidi",
        "The Wind in the Willows",
        "A Kidnapped Santa Claus",
        "Dorothy and the Wizard in Oz",
        "Ozma of Oz",
        "The Life and Adventures of Santa Claus",
        "The Marvelous Land of Oz",
        "The Wonderful Wizard of Oz",
        "Alice's Adventures in Wonderland",
        "Through the Looking-Glass",
        "Little Men",
        "Little Women",
        "Anne of Green Gables",
        "Anne of Avonlea",
        "The Adventures of Tom Sawyer",
        "Black Beauty",
        "Treasure Island",
        "The Jungle Book",
        "Grimms' Fairy Tales",
        "Three Men in a Boat",
        "The Adventure of the Blue Carbuncle",
        "The Adventure of the Speckled Band",
        "The Adventure of the Red-Headed League",
        "The Hound of the Baskervilles",
        "A Case of Identity",
        "A Scandal in Bohemia",
        "A Study in Scarlet",
        "Silver Blaze",
        "The Adventure of the Copper Beeches",
        "The Adventure of the Beryl Coronet",
        "The Adventure of the Dancing Men",
        "The Adventure of the Empty House",
        "The Adventure of the Engineer's Thumb",
        "The Adventure of the Norwood Builder",
        "The Adventure of the Second Stain",
        "The Adventure of the Six Napoleons",
        "The Five Orange Pips",
        "The Final Problem",
        "The Sign of the Four",
        "The Valley of Fear",
        "An Old-Fashioned Girl",
        "Jo's Boys",
        "Anne of the Island",
        "Anne's House of Dreams",
        "Rainbow Valley",
        "Rilla of Ingleside",
        "Emily of New Moon",
        "Christmas Stories",
        "Swiss Family Robinson",
    }
)


@dataclass(frozen=True)
class Document:
    """Text of one story, passage or page, or the messages of one dialogue."""

    source: str
    kind: str
    text: str = ""
    messages: tuple[Message, ...] = ()

    def row(self) -> dict[str, Any]:
        """As a line of `pretrain.*.jsonl`."""
        body: dict[str, Any] = {"messages": list(self.messages)} if self.messages else {}
        return (body or {"text": self.text}) | {"kind": self.kind, "source": self.source}

    def plain(self) -> str:
        """All words, without roles: what deduplication and the split look at."""
        return self.text or "\n".join(message["content"] for message in self.messages)


def _prose(
    folder: str, kind: str, texts: Iterator[str], lexicon: clean.Insults, dropped: Counter[str]
) -> Iterator[Document]:
    """Passages of the paragraphs that have no defect; a heading line stays with its text."""
    for text in texts:
        kept: list[str | None] = []
        for paragraph in text.split("\n"):
            if not paragraph.strip():
                continue
            reason = clean.defect(paragraph.lstrip("# "), lexicon)
            dropped[f"{folder}: {reason}"] += reason is not None
            kept.append(None if reason else paragraph.strip())
        for passage in clean.passages(kept, PASSAGE_LENGTH):
            yield Document(folder, kind, passage)


def stories(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Picture books and fairy tales, whole or in passages."""
    for folder in ("text-african-storybook", "text-pratham-stories"):
        raw = sources.records(data, folder, "stories_en.txt.xz")
        texts = (clean.unwrapped(clean.plain(re.sub(r"^# ", "", text))) for text in raw)
        yield from _prose(folder, "story", texts, lexicon, dropped)
    tales = sources.rows(data, "fairytale-qa", "stories_train.jsonl.xz")
    texts = (clean.unwrapped(clean.plain("\n\n".join(row["sections"]))) for row in tales)
    yield from _prose("fairytale-qa", "fairy tale", texts, lexicon, dropped)


def books(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Passages of the easy classic books, without their headings."""
    folder = "text-classic-books"
    for book in sources.records(data, folder, "children_and_simple.txt.xz"):
        title = re.match(r"# Title: (.*)", book)
        if not title or title.group(1).strip() not in EASY_BOOKS:
            dropped[f"{folder}: book not among the easy ones"] += 1
            continue
        body = re.sub(r"(?m)^(#.*|-{3,}|\[.*\])$", "", book.split("\n-------\n", 1)[-1])
        text = clean.unwrapped(clean.plain(body))
        yield from _prose(folder, "book", iter([text]), lexicon, dropped)


def expository(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Textbook sections and the country backgrounds."""
    folder = "text-anthropology"
    raw = sources.records(data, folder, "anthropology.txt.xz")
    texts = (
        clean.plain(re.sub(r"(?ms)^## Learning Outcomes.*?(?=^[^-\n][^\n]{80})", "", text))
        for text in raw
    )
    yield from _prose(folder, "textbook", texts, lexicon, dropped)
    profiles = (clean.plain(text) for text in countries.profiles(data))
    yield from _prose("text-world-factbook", "country", profiles, lexicon, dropped)


def recipes(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Whole recipes of moderate length."""
    for record in sources.records(data, "text-recipes", "recipes.txt.xz"):
        text = re.sub(r"\n{2,}", "\n", clean.plain(record.replace("## ", "").lstrip("# ")))
        if len(text) < 3000 and sum(not c.isascii() for c in text) < 12:
            yield Document("text-recipes", "recipe", text)
        else:
            dropped["text-recipes: long or foreign"] += 1


def commands(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Help pages of commands with short names and few examples."""
    for record in sources.records(data, "text-tldr-pages", "pages_en.txt.xz"):
        name = record.split("\n", 1)[0].lstrip("# ").strip()
        lines = [line.strip() for line in record.split("\n")[1:] if line.strip()]
        lines = [
            line for line in lines if "More information" not in line and "See also" not in line
        ]
        lines = [
            re.sub(r"\{\{(.*?)\}\}", r"\1", line).replace("[", "").replace("]", "")
            for line in lines
        ]
        text = "\n".join([name, *(line.lstrip("> ") for line in lines)])
        if not re.fullmatch(r"[a-z0-9]{1,7}( [a-z]{1,7})?", name) or not 150 < len(text) < 900:
            dropped["text-tldr-pages: rare or long"] += 1
            continue
        if "moved together" in text or "alias" in text or not text.isascii():
            dropped["text-tldr-pages: alias or foreign"] += 1
            continue
        yield Document("text-tldr-pages", "command", text)


def dialogues(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Human dialogues in sentence case; the second speaker takes the assistant's part."""
    for row in sources.rows(data, "self-dialogue", "dialogues.jsonl.gz"):
        turns = [clean.plain(turn) for turn in row["turns"] if turn.strip()]
        found = _dialogue("self-dialogue", turns, lexicon)
        dropped["self-dialogue: short, long, foreign or insulting"] += found is None
        if found:
            yield found
    for row in sources.rows(data, "taskmaster-4", "dialogues.jsonl.xz"):
        found = None
        if [speaker for speaker, _ in row["turns"]] == ["U", "A"] * (len(row["turns"]) // 2):
            found = _dialogue(
                "taskmaster-4", [clean.plain(text) for _, text in row["turns"]], lexicon
            )
        dropped["taskmaster-4: not alternating"] += found is None
        if found:
            yield found


def _dialogue(folder: str, turns: list[str], lexicon: clean.Insults) -> Document | None:
    turns = [turn[:1].upper() + turn[1:] for turn in turns][:TURN_COUNT_MAX]
    turns = turns[: len(turns) // 2 * 2]
    words = sum(len(turn.split()) for turn in turns)
    text = " ".join(turns)
    lengthy = any(len(turn) > 260 for turn in turns)
    if not turns or lengthy or words < 4 * len(turns) or not text.isascii():
        return None
    if lexicon.found_in(text) or sum(c.isupper() for c in text) > 0.15 * len(text):
        return None
    return Document(folder, "dialogue", messages=_messages(turns))


def _messages(turns: list[str]) -> tuple[Message, ...]:
    roles = ("user", "assistant")
    return tuple({"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns))


def worded_sums(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Short worded sums with their steps, as a question and an answer."""
    for row in sources.rows(data, "gsm8k-train", "train.jsonl.gz"):
        steps, _, result = row["answer"].partition("####")
        answer = clean.plain(re.sub(r"<<.*?>>", "", steps)) + f"\nThe answer is {result.strip()}."
        question = clean.plain(row["question"])
        if len(question) < 300 and answer.count("\n") <= 4 and (question + answer).isascii():
            yield Document("gsm8k-train", "worded sum", messages=_messages([question, answer]))
        else:
            dropped["gsm8k-train: long"] += 1


def questions(data: Path, lexicon: clean.Insults, dropped: Counter[str]) -> Iterator[Document]:
    """Questions about a section of a fairy tale, after the section."""
    tales = {
        row["story"]: row["sections"]
        for row in sources.rows(data, "fairytale-qa", "stories_train.jsonl.xz")
    }
    for row in sources.rows(data, "fairytale-qa", "questions_train.jsonl.gz"):
        number, sections = str(row["section"]), tales.get(row["story"], [])
        if not number.isdigit() or not 0 < int(number) <= len(sections):
            continue
        section = clean.unwrapped(clean.plain(sections[int(number) - 1]))
        answer = clean.plain(row["answer"])
        answer = answer[:1].upper() + answer[1:] + ("" if answer.endswith((".", "!")) else ".")
        if (
            len(section) < 700
            and not lexicon.found_in(section)
            and not clean.ARCHAIC.search(section)
        ):
            asked = f"{section}\n\n{clean.plain(row['question'])}"
            yield Document("fairytale-qa", "reading", messages=_messages([asked, answer]))


ALL = (stories, books, expository, recipes, commands, dialogues, worded_sums, questions)
