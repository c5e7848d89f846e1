"""The open data sets: where each comes from, its licence, and whether its text may train weights.

`SOURCES` is the table that the data card prints and that `open_source` enforces: a folder that is
not in it cannot be read, and a folder whose licence is share-alike or non-commercial is listed in
`LEFT_OUT` with the reason. A folder that is absent reads as empty.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD_SEPARATOR = "\x1e"
PERMISSIVE = frozenset(
    {
        "Apache-2.0",
        "BSD-3-Clause",
        "CC BY 3.0",
        "CC BY 4.0",
        "CC0 1.0",
        "MIT",
        "Unlicense",
        "public domain",
    }
)


@dataclass(frozen=True)
class Source:
    """A data set: its licence (an element of `PERMISSIVE`), its origin and what it is used for."""

    licence: str
    origin: str
    use: str


def _github(repository: str) -> str:
    return f"https://github.com/{repository}"


SOURCES: dict[str, Source] = {
    "text-african-storybook": Source(
        "CC BY 4.0", _github("global-asp/asp-source"), "picture-book stories"
    ),
    "text-pratham-stories": Source(
        "CC BY 4.0", _github("global-asp/pb-source"), "picture-book stories"
    ),
    "fairytale-qa": Source(
        "Apache-2.0", _github("uci-soe/FairytaleQAData"), "fairy tales, questions about them"
    ),
    "text-classic-books": Source(
        "public domain", _github("mlschmitt/classic-books-markdown"), "easy and children's books"
    ),
    "text-recipes": Source("Unlicense", _github("LukeSmithxyz/based.cooking"), "recipes"),
    "text-tldr-pages": Source("CC BY 4.0", _github("tldr-pages/tldr"), "help on commands"),
    "text-world-factbook": Source("CC0 1.0", _github("factbook/factbook.json"), "countries"),
    "text-anthropology": Source(
        "CC BY 4.0", _github("openstax/osbooks-introduction-anthropology"), "expository prose"
    ),
    "self-dialogue": Source(
        "BSD-3-Clause", _github("jfainberg/self_dialogue_corpus"), "human dialogues"
    ),
    "taskmaster-4": Source(
        "CC BY 4.0", _github("google-research-datasets/Taskmaster"), "short ordering dialogues"
    ),
    "chatterbot-english": Source(
        "BSD-3-Clause", _github("gunthercox/chatterbot-corpus"), "technical support exchanges"
    ),
    "clinc150-queries": Source("CC BY 3.0", _github("clinc/oos-eval"), "how users phrase things"),
    "gsm8k-train": Source("MIT", _github("openai/grade-school-math"), "worded sums"),
    "harmful-instructions": Source(
        "Apache-2.0", _github("andyrdt/refusal_direction"), "requests that are refused"
    ),
    "catqa-harmfulqa": Source(
        "Apache-2.0", _github("declare-lab/red-instruct"), "requests that are refused"
    ),
    "ailuminate-demo": Source(
        "CC BY 4.0", _github("mlcommons/ailuminate"), "requests that are refused"
    ),
    "profanity-list": Source(
        "MIT", _github("dsojevic/profanity-list"), "words whose paragraphs are removed"
    ),
}

LEFT_OUT: dict[str, str] = {
    "text-wordset-dictionary": "CC BY-SA 4.0: share-alike; the definitions here are our own",
    "open-trivia": "CC BY-SA 4.0: share-alike, and its answers are unverified",
    "text-wikisplit": "CC BY-SA 4.0: share-alike",
    "schema-guided-dialogues": "CC BY-SA 4.0: share-alike",
}


def open_source(data: Path, folder: str, name: str) -> Iterator[str]:
    """Lines of one file of an allowed data set; none if the folder is absent.

    `name` ends in `.gz` or `.xz`; a file of that name without the ending is read as it is. Raises
    KeyError for a folder that `SOURCES` does not allow.
    """
    if folder not in SOURCES:
        why = LEFT_OUT.get(folder, "add it with its licence to SOURCES first")
        raise KeyError(f"{folder} may not be read: {why}")
    path = data / folder / name
    raw = path.with_suffix("")
    if path.exists():
        packed = path.read_bytes()
        text = gzip.decompress(packed) if path.suffix == ".gz" else lzma.decompress(packed)
    else:
        text = raw.read_bytes() if raw.exists() else b""
    return iter(text.decode("utf-8").split("\n"))


def rows(data: Path, folder: str, name: str) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file."""
    return (json.loads(line) for line in open_source(data, folder, name) if line)


def records(data: Path, folder: str, name: str) -> Iterator[str]:
    """Records of a text file that the ASCII record separator divides, stripped."""
    text = "\n".join(open_source(data, folder, name))
    return (record.strip() for record in text.split(RECORD_SEPARATOR) if record.strip())


def present(data: Path) -> list[str]:
    """The allowed folders that lie below `data`."""
    return [folder for folder in SOURCES if (data / folder).is_dir()]
