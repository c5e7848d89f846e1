"""From the data folders to the files that every later stage reads.

`prepare(data, out)` writes JSON Lines below `out`:

| file | a line |
|---|---|
| `pretrain.{train,held_out}.jsonl` | `{"text"}` or `{"messages"}`, with `kind` and `source` |
| `sft.{train,held_out}.jsonl` | `{"messages", "kind"}` |
| `preferences.{train,held_out}.jsonl` | `{"prompt", "chosen", "rejected", "kind"}` |
| `qa`, `harmful`, `harmless`, `prompts60` `.jsonl` | the bundled evaluation sets |
| `data_card.json` | sources with counts, and what was removed for which reason |

The same data and arguments give the same bytes. About a tenth of the prose is held out, chosen by
the hash of the text, so that a document stays on its side when others come or go.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.data import clean, conversations, documents, evaluation, material, preferences
from training.data.decontaminate import Decontaminator, resembles
from training.data.dedup import Deduplicator
from training.data.documents import Document
from training.data.skills.base import Material
from training.data.sources import SOURCES, present

SAMPLE = Path(__file__).with_name("sample")
HELD_OUT_SHARE = 0.1
COUNTS = {  # conversations and pairs at scale 1
    "pretrain": 70_000,
    "sft.train": 300_000,
    "sft.held_out": 1_000,
    "preferences.train": 12_000,
    "preferences.held_out": 1_000,
}
# The prose seldom needs all of a source: dialogues about films would drown the rest.
PROSE_BYTES_MAX = {"self-dialogue": 12_000_000}


def held_out(text: str) -> bool:
    """Whether a document belongs to the held-out tenth; depends on nothing but its text."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


class CorpusCounts:
    """What was kept and removed, for the data card."""

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()
        self.documents: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()

    def keep(self, source: str, text: str) -> None:
        """Counts one kept document."""
        self.documents[source] += 1
        self.characters[source] += len(text)

    def card(self, data: Path) -> dict[str, Any]:
        """`data_card.json`."""
        rows = [
            {
                "folder": folder,
                "licence": SOURCES[folder].licence,
                "origin": SOURCES[folder].origin,
                "use": SOURCES[folder].use,
                "documents": self.documents[folder],
                "characters": self.characters[folder],
            }
            for folder in present(data)
        ]
        rows.append(
            {
                "folder": "training/data/content",
                "licence": "Apache-2.0",
                "origin": "written for chatmesh",
                "use": "made conversations",
                "documents": self.documents["made"],
                "characters": self.characters["made"],
            }
        )
        removed = {reason: count for reason, count in sorted(self.removed.items()) if count}
        return {"sources": rows, "removed": removed}


def prose(
    data: Path, guard: Decontaminator, counts: CorpusCounts, share: float
) -> Iterator[Document]:
    """Cleaned documents without copies and without evaluation prompts; at most `share` of each."""
    lexicon, copies = clean.insults(data), Deduplicator()
    written: Counter[str] = Counter()
    for read in documents.ALL:
        for index, document in enumerate(read(data, lexicon, counts.removed)):
            text = document.plain()
            limit = PROSE_BYTES_MAX.get(document.source)
            if share < 1 and index % max(1, round(1 / share)):
                continue
            if limit is not None and written[document.source] >= limit:
                counts.removed[f"{document.source}: more than needed"] += 1
            elif copies.is_copy(text):
                counts.removed[f"{document.source}: copy"] += 1
            elif any(guard.hit(part) for part in _parts(document)):
                counts.removed[f"{document.source}: evaluation prompt"] += 1
            else:
                written[document.source] += len(text)
                yield document


def _parts(document: Document) -> list[str]:
    return [document.text] if document.text else [m["content"] for m in document.messages]


def clean_conversations(
    stuff: Material, seed: int, count: int, guard: Decontaminator, counts: CorpusCounts
) -> Iterator[dict[str, Any]]:
    """Made conversations of which no user message overlaps an evaluation prompt."""
    made = 0
    for conversation in conversations.stream(stuff, seed):
        asked = [m["content"] for m in conversation.messages if m["role"] == "user"]
        if any(guard.hit(text) for text in asked):
            counts.removed["made: evaluation prompt"] += 1
            continue
        yield conversation.row()
        made += 1
        if made >= count:
            return


def clean_pairs(
    stuff: Material, seed: int, count: int, guard: Decontaminator, counts: CorpusCounts
) -> Iterator[dict[str, Any]]:
    """Preference pairs of which no question overlaps an evaluation prompt."""
    made = 0
    for pair in preferences.stream(stuff, seed):
        if guard.hit(pair.ask):
            counts.removed["pairs: evaluation prompt"] += 1
            continue
        yield pair.row()
        made += 1
        if made >= count:
            return


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes JSON Lines whole: first beside, then in place."""
    beside = path.with_suffix(".part")
    with beside.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    beside.replace(path)


def prepare(data: Path | None, out: Path, *, seed: int = 0, scale: float = 1.0) -> dict[str, Any]:
    """Writes all files and returns the data card; `scale` below 1 makes everything smaller.

    Without `data`, or where that folder is missing, the bundled sample is read.
    """
    data = data if data is not None and data.is_dir() else SAMPLE
    out.mkdir(parents=True, exist_ok=True)
    counts = CorpusCounts()
    guard = Decontaminator(evaluation.prompts())
    found = list(prose(data, guard, counts, scale if data != SAMPLE else 1.0))
    kept = [document for document in found if not held_out(document.plain())]
    stories = (document.text for document in kept if document.kind in {"story", "fairy tale"})
    stuff = material.load(data, stories)
    judged = [row["messages"][-1]["content"] for row in evaluation.load("harmful")]
    before = len(stuff.harmful)
    stuff.harmful = [text for text in stuff.harmful if not resembles(text, judged)]
    counts.removed["refusals: like an evaluation prompt"] = before - len(stuff.harmful)

    def number(name: str) -> int:
        return max(20, round(COUNTS[name] * scale))

    made = clean_conversations(stuff, seed + 1, number("pretrain"), guard, counts)
    rows = [document.row() for document in kept]
    rows += [row | {"source": "made"} for row in made]
    for row in rows:
        text = row.get("text") or "".join(m["content"] for m in row["messages"])
        counts.keep(row["source"], text)
    random.Random(seed).shuffle(rows)
    write(out / "pretrain.train.jsonl", rows)
    aside = [document.row() for document in found if held_out(document.plain())]
    random.Random(seed).shuffle(aside)
    write(out / "pretrain.held_out.jsonl", aside)
    for index, name in enumerate(("sft.train", "sft.held_out")):
        talk = clean_conversations(stuff, seed + 2 + index, number(name), guard, counts)
        write(out / f"{name}.jsonl", talk)
    for index, name in enumerate(("preferences.train", "preferences.held_out")):
        pairs = clean_pairs(stuff, seed + 4 + index, number(name), guard, counts)
        write(out / f"{name}.jsonl", pairs)
    for name in evaluation.SETS:
        shutil.copyfile(evaluation.FOLDER / f"{name}.jsonl", out / f"{name}.jsonl")
    card = counts.card(data)
    (out / "data_card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return card
