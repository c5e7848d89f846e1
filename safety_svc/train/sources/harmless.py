"""Readers of the data sets with ordinary texts: what most people write most of the time.

Left out for their licence (share-alike): open-trivia, schema-guided-dialogues, text-wikisplit and
text-wordset-dictionary. They serve as test sets.
"""

import hashlib
import json
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safety_svc.train.row import Row, harmless
from safety_svc.train.sources.attacks import parts
from safety_svc.train.sources.harm import json_lines

_RECORD = "\x1e"
# The questions written for the chat model of this repository.
_TABLES = Path(__file__).parents[3] / "training/data/content"
# A role that is told to have no limits is no ordinary one.
_UNRULY = re.compile(
    r"jailbreak|\bDAN\b|uncensored|unfiltered|no restrictions|without (any )?restrictions|bypass"
    r"|ignore (all|any|the|previous)|nsfw|erotic|sexual",
    re.IGNORECASE,
)
# Old prose uses slurs as plain words; such passages are neither harmless nor attacks.
_SLUR = re.compile(r"nigg|darkie|half-breed|\bcoon\b|savages|\bjews?\b|negro", re.IGNORECASE)


def harmless_rows(data: Path, rng: random.Random) -> Iterator[Row]:
    """Ordinary prompts, turns of dialogues and prose."""
    for folder, file, field, count, kind in (
        ("clinc150-queries", "queries.jsonl.gz", "text", 4000, "ordinary"),
        ("banking77-queries", "queries.jsonl.gz", "text", 2200, "ordinary"),
        ("gsm8k-train", "train.jsonl.gz", "question", 1200, "ordinary"),
        ("fairytale-qa", "questions_train.jsonl.gz", "question", 1000, "ordinary"),
    ):
        rows = [row[field] for row in json_lines(data / folder / file)]
        for text in rng.sample(rows, min(count, len(rows))):
            yield harmless(text, folder, kind)
    for row in json_lines(data / "self-instruct-seeds" / "seed_tasks.jsonl.gz"):
        given = row["instances"][0]["input"]
        text = f"{row['instruction']}\n{given}".strip()
        yield harmless(text, "self-instruct", "ordinary")
    yield from _personas(data)
    yield from _turns(data, rng)
    yield from _commands(data, rng)
    yield from _prose(data, rng)


def everyday_rows() -> Iterator[Row]:
    """What the chat model is taught to answer: all wordings of one answer are a group.

    Facts, explanations, advice (sleep, weight, a burn: in the words of self-harm), look-alikes.
    """
    for table in ("facts", "explain", "advice", "lookalikes"):
        kind = "lookalike" if table == "lookalikes" else "everyday"
        for line in (_TABLES / f"{table}.tsv").read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                asked, answer, *_ = line.split("\t")
                for text in asked.split(" | "):
                    yield harmless(text, "tables", kind, group=f"tables-{answer}")


def _personas(data: Path) -> Iterator[Row]:
    """Whole prompts, and their later parts by themselves: a window shows no more than a part."""
    for row in json_lines(data / "persona-prompts" / "prompts.jsonl.gz"):
        text = row["prompt"]
        if _UNRULY.search(text):
            continue
        yield harmless(text, "persona", "persona")
        group = hashlib.sha256(text.encode()).hexdigest()[:16]
        for part in parts(text)[1:]:
            yield harmless(part, "persona", "persona_part", group=group)


def _turns(data: Path, rng: random.Random) -> Iterator[Row]:
    dialogues = list(json_lines(data / "self-dialogue" / "dialogues.jsonl.gz"))
    for row in rng.sample(dialogues, min(2500, len(dialogues))):
        yield harmless(rng.choice(row["turns"]), "self-dialogue", "ordinary", weight=0.8)
    for row in json_lines(data / "chatterbot-english" / "conversations.jsonl.gz"):
        if row["turns"] and rng.random() < 0.4 and "sex" not in row["topic"].lower():
            yield harmless(row["turns"][0], "chatterbot", "ordinary", weight=0.5)
    with lzma.open(data / "taskmaster-4" / "dialogues.jsonl.xz", "rt", encoding="utf-8") as file:
        for row in rng.sample(list(map(json.loads, file)), 900):
            turns = [text for speaker, text in row["turns"] if speaker == "U"]
            if turns:
                yield harmless(rng.choice(turns), "taskmaster", "ordinary")


def _commands(data: Path, rng: random.Random) -> Iterator[Row]:
    """Questions about command-line tools, many of which kill, abort, inject or execute."""
    pages = records(data / "text-tldr-pages" / "pages_en.txt.xz")
    for page in rng.sample(pages, min(1800, len(pages))):
        found = re.findall(r"^[-*]\s*(.+?):?\s*$", page, re.MULTILINE)
        name = page.strip().splitlines()[0].lstrip("# ").strip()
        if found and rng.random() < 0.7:
            step = rng.choice(found).rstrip(":").lower()
            text = rng.choice(
                (f"How do I {step} with {name}?", f"{name}: {step}", f"{step} ({name})")
            )
        else:
            text = page.strip()[:700]
        yield harmless(text, "tldr", "lookalike" if "kill" in text else "ordinary")


def _prose(data: Path, rng: random.Random) -> Iterator[Row]:
    for name, count, weight in (
        ("classic", 900, 0.5),
        ("stories", 700, 1.0),
        ("expository", 900, 0.8),
        ("recipes", 300, 1.0),
    ):
        for passage in passages(data, name, rng, count):
            yield harmless(passage, name, "prose", weight=weight)
            if rng.random() < 0.3:
                yield harmless(passage, name, "document", document=True, weight=weight)


_PROSE = {
    "classic": (
        "text-classic-books/children_and_simple.txt.xz",
        "text-classic-books/general_1.txt.xz",
    ),
    "stories": (
        "text-pratham-stories/stories_en.txt.xz",
        "text-african-storybook/stories_en.txt.xz",
    ),
    "expository": ("text-anthropology/anthropology.txt.xz", "text-world-factbook/factbook.txt.xz"),
    "recipes": ("text-recipes/recipes.txt.xz",),
}


def passages(data: Path, name: str, rng: random.Random, count: int) -> list[str]:
    """`count` passages of 80 to 900 characters, cut at sentence or line ends."""
    texts = [text for path in _PROSE[name] for text in records(data / path)]
    found: list[str] = []
    while len(found) < count:
        text = rng.choice(texts)
        start = rng.randrange(max(1, len(text) - 1000))
        cut = text[start : start + rng.randrange(200, 1000)]
        parts = re.split(r"(?<=[.!?\n])\s+", cut)
        passage = " ".join(parts[1:-1] if len(parts) > 2 else parts).strip()
        if len(passage) >= 80 and not _SLUR.search(passage):
            found.append(passage)
    return found


def records(path: Path) -> list[str]:
    """The records of a text file, which a line with 0x1E separates."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [record.strip() for record in file.read().split(_RECORD) if record.strip()]


def topics(data: Path) -> list[str]:
    """Names to write ordinary prompts about: countries, dishes, tools."""
    found = [
        text.splitlines()[0].strip("# ")
        for text in records(data / "text-world-factbook/factbook.txt.xz")
    ]
    found += [
        text.splitlines()[0].strip("# ") for text in records(data / "text-recipes/recipes.txt.xz")
    ]
    pages = records(data / "text-tldr-pages/pages_en.txt.xz")[::12]
    found += [text.splitlines()[0].strip("# ") for text in pages]
    return [name for name in found if 2 < len(name) < 40]


def commands(data: Path) -> list[str]:
    """Command lines, as code in prompts."""
    pages = records(data / "text-tldr-pages/pages_en.txt.xz")
    return [line for page in pages[::5] for line in re.findall(r"`([^`]{8,120})`", page)]


def dialogue_pairs(data: Path, rng: random.Random, count: int) -> list[list[str]]:
    """Openings of harmless dialogues, as earlier turns of a conversation."""
    rows: list[dict[str, Any]] = list(json_lines(data / "self-dialogue" / "dialogues.jsonl.gz"))
    return [row["turns"][:4] for row in rng.sample(rows, min(count, len(rows)))]
