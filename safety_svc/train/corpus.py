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
from safety_svc.train.sources.attacks import attack_rows
from safety_svc.train.sources.documents import documents
from safety_svc.train.sources.folders import folder_rows, windowed
from safety_svc.train.sources.harm import harmful_rows
from safety_svc.train.sources.harmless import (
    commands,
    dialogue_pairs,
    everyday_rows,
    harmless_rows,
    topics,
)
from safety_svc.train.split import Split, groups, split_of

# Composed rows for training; the other splits get shares of them.
WRAPPED, PLANTED, TASKS, CONVERSATIONS = 3_600, 3_600, 1_600, 2_000
DOCUMENTS, FRAMED, QUESTIONED = 1_500, 1_600, 900
SHARE = {Split.TRAIN: 1.0, Split.DEV: 0.1, Split.TEST: 0.15, Split.HELD: 0.12}
AUGMENTED_SHARE = 0.08
# Of the kinds that are rare and matter most this share has a changed copy.
COPIES = dict.fromkeys(("blatant", "harmful", "foreign", "probe", "triggers"), 0.5)

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
    ("tables", "everyday"): 0.25,
    ("tables", "lookalike"): 0.4,
    ("clinc150-queries", "ordinary"): 0.3,
    ("banking77-queries", "ordinary"): 0.3,
    ("self-dialogue", "ordinary"): 0.3,
    ("fairytale-qa", "ordinary"): 0.4,
    ("identity", "hate"): 0.5,
    ("own", "lookalike"): 0.6,
    ("own", "own"): 0.8,
    ("hatemoji", "hate"): 0.8,
    ("hatemoji", "post"): 0.8,
    ("wrapped", "jailbreak"): 0.8,
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows by split."""

    rows: dict[Split, list[Row]]

    def counts(self) -> dict[str, Counter[str]]:
        """Number of rows by split and source."""
        return {split: Counter(row.source for row in rows) for split, rows in self.rows.items()}


def build(data: Path, seed: int, held: frozenset[str] = frozenset()) -> Corpus:
    """Reads `data`, a folder with the data sets, and makes the corpus; the same for each seed.

    The rows of the sources `held`, and what is composed of them, are the split HELD. What is like
    one of them elsewhere is left out.
    """
    rng = random.Random(seed)
    base = [*harmful_rows(data, rng), *harmless_rows(data, rng), *attack_rows(data), *own_rows(rng)]
    base += [*everyday_rows(), *folder_rows(data, rng)]
    shapes = documents(data, random.Random(seed), DOCUMENTS)
    base += [harmless(text, "shapes", "document", document=True) for text in shapes]
    base = list({(row.text, row.document): row for row in base if row.text.strip()}.values())
    names = groups([row.text for row in base])
    alike = {name for row, name in zip(base, names, strict=True) if row.source in held}
    divided: dict[Split, list[Row]] = {split: [] for split in Split}
    for row, name in zip(base, names, strict=True):
        if row.source in held:
            divided[Split.HELD].append(row)
        elif name not in alike:
            group = row.group or name
            divided[split_of(group)].append(replace(row, group=group))
    return Corpus({split: _whole(data, split, rows, rng) for split, rows in divided.items()})


def _whole(data: Path, split: Split, rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """The rows of a split with the composed and, for training, the changed ones, in any order."""
    found = [*rows, *_composed(data, split, rows, rng)] if rows else []
    if split is Split.TRAIN:
        found = [windowed(row, rng) for row in found]
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
    yield from _labelled_rows(rng)
    for line in lines("about.txt"):
        for harm in rng.sample(lines("topics.txt"), 18):
            text = spelled(line, rng).replace(compose.HARM, harm)
            yield harmless(text[:1].upper() + text[1:], "own", "about", group=f"own-about-{line}")
    for number, line in enumerate(lines("triggers.txt")):
        for text in variants(line, 5, rng):
            group = f"own-triggers-{number}"
            for document in (True, False):
                yield harmless(text, "own", "triggers", document=document, group=group)


def _labelled_rows(rng: random.Random) -> Iterator[Row]:
    """Rows of the files whose lines name their categories, or "-" for harmless."""
    named = [("foreign", *line.split("\t")[1:]) for line in lines("foreign.txt")]
    named += [("statement", *line.split("\t")) for line in lines("statements.txt")]
    for number, (name, words, pattern) in enumerate(named):
        more = {"group": f"own-{name}-{number}"}
        for text in variants(pattern, 8 if name == "foreign" else 24, rng):
            if words == "-":
                yield harmless(text, "own", f"{name}_harmless", **more)
            else:
                yield harmful(text, "own", name, *map(Category, words.split(",")), **more)


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
    """The lines of a split, for HELD those of TEST: all where a split would have none."""
    split = Split.TEST if split is Split.HELD else split
    return [line for line in found if split_of(line.lstrip(compose.SOFT)) is split] or list(found)


def _augmented(rows: Sequence[Row], rng: random.Random) -> Iterator[Row]:
    """Changed copies of a share of the rows; harmless ones too, or the change itself would tell."""
    for row in rows:
        share = COPIES.get(row.kind, AUGMENTED_SHARE)
        if len(row.text) < compose.WRAPPED_LENGTH_MAX and rng.random() < share:
            yield replace(row, text=augmented(row.text, rng), weight=row.weight * 0.8)
