"""Readers of the data sets with attacks on the model: jailbreaks and prompt injections."""

import gzip
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from safety_svc.detectors.base import Category
from safety_svc.train.row import Row, attack, harmless, unasked
from safety_svc.train.sources.harm import json_lines

# Long attacks are learned in parts of about one window; the first ones tell most.
PART_LENGTH, PART_COUNT_MAX = 480, 5


def attack_rows(data: Path) -> Iterator[Row]:
    """All rows of data sets that name attacks."""
    for row in json_lines(data / "jailbreak-inthewild" / "jailbreaks.jsonl.gz"):
        for number, part in enumerate(parts(row["text"])):
            labels = {Category.JAILBREAK: 1}
            group = f"wild-{row['text'][:60]}"
            weight = 1.0 if number == 0 else 0.5
            yield attack(part, "inthewild", "jailbreak", labels, weight=weight, group=group)
    for row in json_lines(data / "giskard-injections" / "prompt_injections.jsonl.gz"):
        label = Category.JAILBREAK if row["group"] == "Jailbreak" else Category.PROMPT_INJECTION
        kind = "jailbreak" if label is Category.JAILBREAK else "user_injection"
        yield attack(row["prompt"][:PART_LENGTH], "giskard", kind, {label: 1})
    for row in json_lines(data / "deepset-injections-train" / "train.jsonl.gz"):
        if row["label"]:
            labels = {Category.PROMPT_INJECTION: 1}
            yield attack(row["text"], "deepset", "user_injection", labels)
        else:
            yield harmless(row["text"], "deepset", "ordinary")
    yield from _indirect(data)


def parts(text: str) -> list[str]:
    """The first parts of a long text, cut at word ends."""
    words = re.split(r"(?<=\s)", text)
    found, part = [], ""
    for word in words:
        if len(part) + len(word) > PART_LENGTH and part:
            found.append(part.strip())
            part = ""
        part += word
    return [*found, part.strip()][:PART_COUNT_MAX] if part.strip() else found[:PART_COUNT_MAX]


def _indirect(data: Path) -> Iterator[Row]:
    """Attack strings of BIPIA in its e-mails (MIT); the e-mails alone are harmless documents."""
    folder = data / "bipia-train"
    mails = [row["context"] for row in json_lines(folder / "email_train.jsonl.gz")]
    for mail in mails:
        yield harmless(mail[:900], "bipia", "document", document=True)
    for name, kind in (("text_attack_train", "injection"), ("code_attack_train", "injection")):
        with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            attacks = list(itertools.chain.from_iterable(json.load(file).values()))
        for number, order in enumerate(attacks):
            for mail in (mails[number % len(mails)], mails[(number * 7 + 3) % len(mails)]):
                cut = mail[:350]
                text = f"{cut} {order}" if number % 2 else f"{order} {cut}"
                labels = unasked(order) | {Category.PROMPT_INJECTION: 1}
                group = f"bipia-{order[:40]}"
                yield Row(text, "bipia", kind, labels, 1, document=True, group=group)
