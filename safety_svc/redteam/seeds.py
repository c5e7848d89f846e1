"""The requests that techniques wrap, harmful and harmless, out of `seeds.yaml`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from safety_svc.redteam.techniques.base import TWINS, Goal

SEEDS = Path(__file__).with_name("seeds.yaml")


@dataclass(frozen=True, slots=True)
class Seed:
    """One request.

    Attributes:
        words: the request by language; "en" is always there.
        category: of harm; "" where there is none.
        markers: stems, in lower case, of what an answer would have that does what is asked.
    """

    words: Mapping[str, str]
    category: str = ""
    markers: Sequence[str] = ()


def attacks(goal: Goal) -> Sequence[Seed]:
    """What an attack with this goal asks for."""
    return _read()[goal.value]


def twins(goal: Goal) -> Sequence[Seed]:
    """The harmless ones for the same frames."""
    return _read()[TWINS[goal]]


@cache
def _read() -> Mapping[str, Sequence[Seed]]:
    found = yaml.safe_load(SEEDS.read_text(encoding="utf-8"))
    return {name: tuple(map(_seed, rows)) for name, rows in found.items()}


def _seed(row: str | Mapping[str, Any]) -> Seed:
    if isinstance(row, str):
        return Seed({"en": row})
    words = {key: text for key, text in row.items() if key not in ("category", "markers")}
    return Seed(words, row.get("category", ""), tuple(row.get("markers", ())))
