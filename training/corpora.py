"""Reads the open data sets of the tiny model; each loader skips a folder that is absent.

Only data sets without a share-alike or non-commercial condition are read, so that the weights may
ship under this repository's licence. `SOURCES` is the table that the model card prints.
"""

from __future__ import annotations

import gzip
import html
import json
import lzma
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD_SEPARATOR = "\x1e"

SOURCES: dict[str, tuple[str, str]] = {
    # folder: (licence, what it is used for)
    "text-african-storybook": ("CC BY 4.0", "pretraining: picture-book stories"),
    "text-pratham-stories": ("CC BY 4.0", "pretraining: picture-book stories"),
    "fairytale-qa": ("Apache-2.0", "pretraining: fairy tales"),
    "self-dialogue": ("BSD-3-Clause", "pretraining and a little tuning: conversations"),
    "chatterbot-english": ("BSD-3-Clause", "tuning: trivia and technical support"),
    "text-world-factbook": ("CC0 1.0", "tuning: capitals, regions, languages, currencies"),
    "clinc150-queries": ("CC BY 3.0", "tuning: user queries, answered by our templates"),
    "gsm8k-train": ("MIT", "tuning: questions that the model must decline"),
    "persona-prompts": ("CC0 1.0", "tuning: prompts that the model must decline"),
    "harmful-instructions": ("Apache-2.0", "tuning: requests to refuse"),
    "catqa-harmfulqa": ("Apache-2.0", "tuning: requests to refuse"),
}


@dataclass(frozen=True)
class Country:
    """A country and what the factbook says about it; empty where it says nothing short."""

    name: str
    capital: str
    region: str
    language: str
    currency: str


@dataclass(frozen=True)
class Corpora:
    """All raw material, read into memory (about 30 MB)."""

    stories: list[str]
    dialogues: list[list[str]]
    exchanges: list[tuple[str, str]]
    countries: list[Country]
    queries: dict[str, list[str]]
    too_hard: list[str]
    harmful: list[str]
    folders: list[str]


def read_text(path: Path) -> str:
    """The decompressed text of a `.gz` or `.xz` file; empty if there is none."""
    if not path.exists():
        return ""
    opener: Callable[..., bytes] = _gz if path.suffix == ".gz" else _xz
    return opener(path).decode()


def _gz(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def _xz(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def _rows(path: Path) -> Iterator[dict[str, object]]:
    for line in read_text(path).splitlines():
        yield json.loads(line)


def _records(path: Path) -> list[str]:
    return [record.strip() for record in read_text(path).split(RECORD_SEPARATOR) if record.strip()]


def _stories(data: Path) -> list[str]:
    stories = _records(data / "text-african-storybook/stories_en.txt.xz")
    stories += _records(data / "text-pratham-stories/stories_en.txt.xz")
    for row in _rows(data / "fairytale-qa/stories_train.jsonl.xz"):
        sections = row["sections"]
        assert isinstance(sections, list)
        stories.append(f"# {row['story']}\n" + "\n".join(sections))
    unwrapped = (re.sub(r"(?<![.!?\"”\n])\n(?=[a-zA-Z])", " ", story) for story in stories)
    return [re.sub(r"\n{2,}", "\n", story) for story in unwrapped]


def _dialogues(data: Path) -> list[list[str]]:
    """Two-sided talks with an even number of turns; sentences start with a capital letter."""
    kept = []
    for row in _rows(data / "self-dialogue/dialogues.jsonl.gz"):
        turns = row["turns"]
        assert isinstance(turns, list)
        clean = [turn.strip()[:1].upper() + turn.strip()[1:] for turn in turns if turn.strip()]
        clean = clean[: len(clean) // 2 * 2]
        if clean and max(map(len, clean)) < 300:
            kept.append(clean)
    return kept


def _exchanges(data: Path) -> list[tuple[str, str]]:
    topics = {"trivia", "tech support", "computers", "health"}
    pairs = set()
    for row in _rows(data / "chatterbot-english/conversations.jsonl.gz"):
        turns = row["turns"]
        assert isinstance(turns, list)
        if row["topic"] in topics and len(turns) == 2 and max(map(len, turns)) < 200:
            pairs.add((turns[0].strip(), turns[1].strip()[:1].upper() + turns[1].strip()[1:]))
    return sorted(pairs)


def _field(record: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}: (.*)", record, re.MULTILINE)
    text = html.unescape(found.group(1)) if found else ""
    return re.split(r"[(;,:\[]| per US| in Romanian| bordering|\d", text)[0].strip()


def _countries(data: Path) -> list[Country]:
    countries = []
    for record in _records(data / "text-world-factbook/factbook.txt.xz"):
        name = html.unescape(record.splitlines()[0].lstrip("# ").split("(")[0]).strip()
        language = _field(record, "Languages - Languages")
        capital, region = _field(record, "Capital - name"), _field(record, "Location")
        currency = _field(record, "Exchange rates - Currency")
        region = "Western Europe" if name == "France" else region
        if not (capital and region and name[:1].isupper() and max(len(name), len(region)) < 45):
            continue
        language = language if language.istitle() and len(language) < 20 else ""
        currency = currency if len(currency) < 30 else ""
        countries.append(Country(name, capital, region, language, currency))
    return countries


def _queries(data: Path) -> dict[str, list[str]]:
    by_intent: dict[str, list[str]] = {}
    for row in _rows(data / "clinc150-queries/queries.jsonl.gz"):
        by_intent.setdefault(str(row["intent"]), []).append(str(row["text"]))
    return by_intent


def read_corpora(data: Path) -> Corpora:
    """All data sets found below `data`."""
    too_hard = [str(r["question"]) for r in _rows(data / "gsm8k-train/train.jsonl.gz")][:2000]
    prompts = (str(r["prompt"]) for r in _rows(data / "persona-prompts/prompts.jsonl.gz"))
    too_hard += [prompt for prompt in prompts if len(prompt) < 700 and prompt.isascii()]
    harmful = [str(r["text"]) for r in _rows(data / "harmful-instructions/instructions.jsonl.gz")]
    harmful += [
        str(row["text"])
        for row in _rows(data / "catqa-harmfulqa/questions.jsonl.gz")
        if row["source"] == "catqa"
        and row["category"] not in {"Political Campaigning", "Tailored Financial Advice"}
    ]
    return Corpora(
        stories=_stories(data),
        dialogues=_dialogues(data),
        exchanges=_exchanges(data),
        countries=_countries(data),
        queries=_queries(data),
        too_hard=too_hard,
        harmful=harmful,
        folders=[folder for folder in SOURCES if (data / folder).is_dir()],
    )
