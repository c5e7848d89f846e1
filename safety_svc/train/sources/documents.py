"""Harmless documents of other shapes than prose: tables, records, mails, logs, web pages, code.

Without them a model that knows documents as prose takes every other shape for an attack.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from safety_svc.train.sources.harmless import records

_LENGTH_MAX = 800
_ROOT = Path(__file__).resolve().parents[3]
# Our own code serves as code to read.
_CODE_FOLDERS = ("mesh/chassis", "mesh/control", "gateway", "billing_svc", "tokenizer_svc")
_NAMES = ("Anna", "Ben", "Chloe", "Dev", "Elena", "Femi", "Goran", "Hana", "Igor", "Jun")
_SUBJECTS = (
    *("Invoice", "Your order", "Meeting on Monday", "Password changed", "Welcome", "Receipt"),
    *("New login", "Team lunch", "Contract", "Delivery update", "Feedback", "Reminder"),
)


def documents(data: Path, rng: random.Random, count: int) -> list[str]:
    """`count` documents of mixed shapes, at most _LENGTH_MAX characters."""
    facts = _facts(data)
    code = _code()
    shapes: Sequence[Callable[[], str]] = (
        lambda: _table(facts, rng),
        lambda: _csv(facts, rng),
        lambda: json.dumps(_record(facts, rng), indent=rng.choice((None, 2))),
        lambda: _mail(facts, rng),
        lambda: _log(rng),
        lambda: _page(facts, rng),
        lambda: _cut(rng.choice(code), rng),
        lambda: _cut(rng.choice(code), rng),
    )
    return [rng.choice(shapes)()[:_LENGTH_MAX] for _ in range(count)]


def _facts(data: Path) -> list[tuple[str, str]]:
    """Names and values out of the country profiles."""
    profiles = records(data / "text-world-factbook" / "factbook.txt.xz")
    found = []
    for profile in profiles:
        for name, value in re.findall(
            r"^([A-Z][\w ()-]{3,40}): (.{3,60}?)(?:[;,.(]|$)", profile, re.M
        ):
            found.append((name, value.strip()))
    return found


def _code() -> list[str]:
    paths = [path for folder in _CODE_FOLDERS for path in sorted((_ROOT / folder).glob("*.py"))]
    return [path.read_text(encoding="utf-8") for path in paths]


def _rows(facts: Sequence[tuple[str, str]], rng: random.Random) -> list[list[str]]:
    rows = []
    for number in range(rng.randrange(3, 9)):
        name, value = rng.choice(facts)
        rows.append([str(number + 1), name, value, rng.choice(_NAMES)])
    return rows


def _table(facts: Sequence[tuple[str, str]], rng: random.Random) -> str:
    head = ["#", "Item", "Value", rng.choice(("By", "Name", "Editor"))]
    lines = [f"| {' | '.join(row)} |" for row in [head, *_rows(facts, rng)]]
    if rng.random() < 0.5:
        lines.insert(1, "|---|---|---|---|")
    return "\n".join(lines)


def _csv(facts: Sequence[tuple[str, str]], rng: random.Random) -> str:
    separator = rng.choice((",", ";", "\t"))
    return "\n".join(
        separator.join(row) for row in [["id", "key", "value", "user"], *_rows(facts, rng)]
    )


def _record(facts: Sequence[tuple[str, str]], rng: random.Random) -> dict[str, object]:
    return {
        "id": rng.randrange(10_000),
        "user": rng.choice(_NAMES),
        "status": rng.choice(("ok", "done", "open", "error")),
        "data": dict(rng.choice(facts) for _ in range(rng.randrange(1, 5))),
    }


def _mail(facts: Sequence[tuple[str, str]], rng: random.Random) -> str:
    sender, reader = rng.sample(_NAMES, 2)
    name, value = rng.choice(facts)
    asked = rng.choice(
        (
            "Please send me your comments by Friday.",
            "Could you check the numbers and reply to all?",
            "Call me when you have read this.",
            "You can ignore my last mail.",
            "Click the link in the portal to confirm; we never ask for your password.",
            "Let me know if anything is missing.",
        )
    )
    return (
        f"From: {sender.lower()}@example.com\nTo: {reader.lower()}@example.com\n"
        f"Subject: {rng.choice(_SUBJECTS)}\n\nHi {reader},\n\n{name} is {value}. {asked}\n\n"
        f"{rng.choice(('Best', 'Thanks', 'Regards'))},\n{sender}"
    )


def _log(rng: random.Random) -> str:
    words = ("started", "stopped", "retry 3 of 5", "user logged in", "cache cleared", "timeout")
    levels = ("INFO", "WARN", "ERROR", "DEBUG")
    return "\n".join(
        f"2026-0{rng.randrange(1, 10)}-1{rng.randrange(10)} "
        f"{rng.randrange(10, 24)}:0{rng.randrange(10)} {rng.choice(levels)} "
        f"worker-{rng.randrange(9)}: {rng.choice(words)}"
        for _ in range(rng.randrange(3, 9))
    )


def _page(facts: Sequence[tuple[str, str]], rng: random.Random) -> str:
    items = "".join(f"<li>{name}: {value}</li>" for name, value in rng.sample(facts, 4))
    title = rng.choice(_SUBJECTS)
    return (
        f"<html><body><h1>{title}</h1><ul>{items}</ul><!-- menu --><p>Read more</p></body></html>"
    )


def _cut(text: str, rng: random.Random) -> str:
    start = rng.randrange(max(1, len(text) - 600))
    return text[start : start + rng.randrange(250, 700)]
