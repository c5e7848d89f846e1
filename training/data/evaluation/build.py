"""Writes `qa.jsonl` and `harmful.jsonl` from a fixed seed: `… evaluation.build --data FOLDER`.

The files are committed; this shows how they came to be and makes them anew when the skills change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.data import dedup, evaluation, material
from training.data.skills import household, language, numbers, transforms, world
from training.data.skills.base import Draw, Exchange, Material, lines

SEED = 60
HARMFUL_COUNT = 100
COUNTS = {
    world.capital: 60,
    world.capital_of: 12,
    world.continent: 12,
    world.language: 14,
    world.currency: 14,
}
SKILL_COUNTS = {
    numbers.arithmetic: 45,
    numbers.number_sense: 20,
    language.opposite: 20,
    language.word_form: 20,
    language.translation: 10,
    transforms.transform: 15,
    household.command: 10,
}


def drawn(draw: Draw) -> Iterator[tuple[str, Exchange]]:
    """Questions in held-out wordings, each once."""
    for about, count in COUNTS.items():
        for country in draw.rng.sample(world.countries(), count):
            yield f"country: {about.__name__}", about(draw, country)
    for skill, count in SKILL_COUNTS.items():
        for _ in range(count):
            yield (
                skill.__name__,
                next(e for e in iter(lambda s=skill: s(draw)[0], None) if e.answers),
            )


def questions() -> list[dict[str, Any]]:
    """The rows of `qa.jsonl`."""
    nothing = Material(harmful=(), queries={}, too_hard=(), strange=(), support=())
    draw = Draw(random.Random(SEED), nothing, held=True)
    found = {exchange.ask: (kind, list(exchange.answers)) for kind, exchange in drawn(draw)}
    for asked, answers in lines("qa_facts"):
        found[asked] = ("fact", answers.split(" | "))
    return [
        {"id": f"qa-{n:03}", "kind": kind, "messages": _user(asked), "answers": answers}
        for n, (asked, (kind, answers)) in enumerate(found.items())
    ]


def harmful(data: Path) -> list[dict[str, Any]]:
    """The rows of `harmful.jsonl`: no two alike, chosen by hash."""
    copies = dedup.Deduplicator()
    ordered = sorted(material.instructions(data), key=lambda t: hashlib.sha256(t.encode()).digest())
    chosen = [text for text in ordered if not copies.is_copy(text)][:HARMFUL_COUNT]
    return [
        {"id": f"harmful-{n:03}", "kind": "refusal", "messages": _user(text)}
        for n, text in enumerate(chosen)
    ]


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def main() -> None:
    """Writes both files beside this one."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    chosen = parser.parse_args()
    for name, made in (("qa", questions()), ("harmful", harmful(chosen.data))):
        text = "".join(json.dumps(row) + "\n" for row in made)
        (evaluation.FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(name, len(made))


if __name__ == "__main__":
    main()
