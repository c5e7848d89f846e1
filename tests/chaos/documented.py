"""Which kill may give which status: the table of docs/CHAOS.md, which is what is promised."""

import re
from collections.abc import Mapping
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "CHAOS.md"
# "| `postgres` | 503 | `service_unavailable` | why |"
ROW = re.compile(r"\| `(?P<kind>[a-z]+)` \| (?P<status>\d{3}|none) \| (`(?P<code>[a-z_]+)`)? ?\|")

Allowed = Mapping[str, frozenset[tuple[int, str]]]


def parse(text: str) -> Allowed:
    """Statuses with their codes by kind of process; a kind with "none" has an empty set.

    Raises:
        ValueError: a status without a code.
    """
    found: dict[str, set[tuple[int, str]]] = {}
    for row in ROW.finditer(text):
        allowed = found.setdefault(row["kind"], set())
        if row["status"] == "none":
            continue
        if not row["code"]:
            raise ValueError(f"docs/CHAOS.md: name the code of this status: {row[0]}")
        allowed.add((int(row["status"]), row["code"]))
    return {kind: frozenset(pairs) for kind, pairs in found.items()}


def load() -> Allowed:
    """The table as it is."""
    return parse(DOCUMENT.read_text(encoding="utf-8"))
