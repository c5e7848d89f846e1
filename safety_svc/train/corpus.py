"""The whole corpus: rows of the data sets and of this repository, split, then composed."""

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safety_svc.detectors.base import Category
from safety_svc.train import compose
from safety_svc.train.augment import augmented
from safety_svc.train.row import Row, harmful, harmless, lines, spelled, variants
from safety_svc.train.sources_attacks import attack_rows
from safety_svc.train.sources_documents import documents
from safety_svc.train.sources_harm import harmful_rows
from safety_svc.train.sources_harmless import (
    commands,
    dialogue_pairs,
    everyday_rows,
    harmless_rows,
    topics,
)
from safety_svc.train.split import Split, groups, split_of

# Composed rows for training; the other splits get shares of them.
WRAPPED, PLANTED, TASKS, CONVERSATIONS = 4_000, 5_000, 3_000, 1_800
DOCUMENTS, FRAMED, QUESTIONED = 2_000, 1_800, 900
SHARE = {Split.TRAIN: 1.0, Split.DEV: 0.1, Split.TEST: 0.15}
AUGMENTED_SHARE = 0.12
# Changed copies of the kinds that are rare and matter most.
COPIES = {"blatant": 1, "own": 1, "harmful": 1, "foreign": 1, "probe": 1, "about": 1}
COPIES |= {"lookalike": 2, "triggers": 3}

# Shares of long or plentiful rows kept for training, by source and kind: they cost the most time
# and teach the least.
KEEP = {
    ("planted", "injection"): 0.6,
    ("cyberseceval", "lookalike"): 0.3,
    ("cyberseceval", "harmful"): 0.5,
    ("inthewild", "jailbreak"): 0.8,
    ("persona", "persona"): 0.75,
    ("persona", "persona_part"): 0.6,
    ("classic", "prose"): 0.5,
    ("expository", "prose"): 0.5,
    ("stories", "prose"): 0.5,
    ("recipes", "prose"): 0.5,
    ("ailuminate", "probe"): 0.7,
    ("davidson", "post"): 0.6,
    ("davidson", "hate"): 0.8,
    ("edos", "hate"): 0.7,
    ("edos", "post"): 0.7,
    ("tldr", "ordinary"): 0.6,
    ("gsm8k-train", "ordinary"): 0.5,
    ("tasks", "ordinary"): 0.8,
    ("harmfulqa", "harmful"): 0.7,
    ("tables", "everyday"): 0.4,
    ("tables", "lookalike"): 0.4,
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows by split."""

    rows: dict[Split, list[Row]]

    def counts(self) -> dict[str, Counter[str]]:
        """Number of rows by split and source."""
        return {split: Counter(row.source for row in rows) for split, rows in self.rows.items()}


def build(data: Path, seed: int) -> Corpus:
    """Reads `data`, a folder with the data sets, and makes the corpus; the same for each seed."""
    rng = random.Random(seed)
    base = [*harmful_rows(data, rng), *harmless_rows(data, rng), *attack_rows(data), *own_rows(rng)]
    base += everyday_rows()
    shapes = documents(data, random.Random(seed), DOCUMENTS)
    base += [harmless(text, "shapes", "document", document=True) for text in shapes]
    base = list({(row.text, row.document): row for row in base if row.text.strip()}.values())
    names = groups([row.text for row in base])
    base = [replace(row, group=row.group or name) for row, name in zip(base, names, strict=True)]
    divided: dict[Split, list[Row]] = {split: [] for split in Split}
    for row in base:
        divided[split_of(row.group)].append(row)
    return Corpus({split: _whole(data, split, rows, rng) for split, rows in divided.items()})


def _whole(data: Path, split: Split, rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """The rows of a split with the composed and, for training, the changed ones, in any order."""
    found = [*rows, *_composed(data, split, rows, rng)]
    if split is Split.TRAIN:
        found += list(_augmented(found, rng))
        found = [row for row in found if kept(row)]
    rng.shuffle(found)
    return found


def kept(row: Row) -> bool:
    """True when a row is among the share of its source that is trained on."""
    share = KEEP.get((row.source, row.kind.removesuffix("_turns")), 1.0)
    return zlib.crc32(row.text.encode()) / (1 << 32) < share


def own_rows(rng: random.Random) -> Iterator[Row]:
    """Rows written for this repository; all spellings of a line are one group."""
    for number, line in enumerate(lines("harmless.txt")):
        for text in variants(line, 7, rng):
            yield harmless(text, "own", "lookalike", group=f"own-harmless-{number}")
    for number, line in enumerate(lines("harmful.txt")):
        words, pattern, *language = line.split("\t")
        categories = [Category(word) for word in words.split(",")]
        kind = "foreign" if language else "own"
        for text in variants(pattern, 12, rng):
            yield harmful(text, "own", kind, *categories, group=f"own-harmful-{number}")
    for line in lines("about.txt"):
        for harm in rng.sample(lines("topics.txt"), 18):
            text = spelled(line, rng).replace(compose.HARM, harm)
            yield harmless(text[:1].upper() + text[1:], "own", "about", group=f"own-about-{line}")
    for number, line in enumerate(lines("triggers.txt")):
        for text in variants(line, 5, rng):
            group = f"own-triggers-{number}"
            for document in (True, False):
                yield harmless(text, "own", "triggers", document=document, group=group)


def _composed(data: Path, split: Split, rows: Sequence[Row], rng: random.Random) -> list[Row]:
    share = SHARE[split]
    kinds = {"blatant", "own", "harmful", "ordinary"}
    requests = [row for row in rows if row.kind in kinds and not row.document]
    parts = compose.Parts(
        wrappers=_of(lines("jailbreaks.txt"), split),
        injections=_of(lines("injections.txt"), split),
        tasks=_of(lines("tasks.txt"), split),
        ordinary=_of(lines("ordinary.txt"), split),
        passages=[row.text for row in rows if row.kind in ("prose", "document")],
        topics=topics(data),
        commands=commands(data),
        openings=dialogue_pairs(data, rng, 1000),
    )
    made = [
        *compose.wrapped(requests, parts, rng, int(WRAPPED * share)),
        *compose.planted(parts, rng, int(PLANTED * share)),
        *compose.tasks(parts, rng, int(TASKS * share)),
        *compose.framed(requests, _of(lines("frames.txt"), split), rng, int(FRAMED * share)),
        *compose.questioned(parts, requests, rng, int(QUESTIONED * share)),
    ]
    made += compose.conversations([*rows, *made], parts, rng, int(CONVERSATIONS * share))
    return made


def _of(found: Sequence[str], split: Split) -> list[str]:
    """The lines of a split: all where a split would have none."""
    return [line for line in found if split_of(line.lstrip(compose.SOFT)) is split] or list(found)


def _augmented(rows: Sequence[Row], rng: random.Random) -> Iterator[Row]:
    """Changed copies of a share of the rows; harmless ones too, or the change itself would tell."""
    for row in rows:
        for _ in range(COPIES.get(row.kind, 0) or rng.random() < AUGMENTED_SHARE):
            if len(row.text) < compose.WRAPPED_LENGTH_MAX:
                yield replace(row, text=augmented(row.text, rng), weight=row.weight * 0.8)
