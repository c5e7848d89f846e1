"""Rows to evaluate on: JSON Lines, checked line by line.

ValueError
└── RowError    which file and line, what is wrong, what to write instead
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safety_svc.classifier.labels import CATEGORIES
from safety_svc.detectors.base import Audience, Category, Turn

_ROLES = {
    "system": Audience.SYSTEM,
    "developer": Audience.SYSTEM,
    "user": Audience.USER,
    "human": Audience.USER,
    "assistant": Audience.ASSISTANT,
    "tool": Audience.TOOL,
    "function": Audience.TOOL,
    "document": Audience.TOOL,
}
_NAMES = {category.value: category for category in CATEGORIES}


class RowError(ValueError):
    """A row that cannot be read; the text is `file:line: problem; remedy`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation with what is known about it.

    Attributes:
        turns: oldest first, at least one.
        unsafe: None when unknown.
        labels: what is known by category.
    """

    turns: Sequence[Turn]
    unsafe: bool | None
    labels: Mapping[Category, bool]


def read(path: Path) -> Iterator[Row]:
    """The rows of one file; blank lines do not count. Raises RowError, or OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield row(line, f"{path.name}:{number}")


def row(line: bytes | str, place: str) -> Row:
    """One row; raises RowError that begins with `place`."""
    try:
        value = json.loads(line)
    except ValueError as error:
        _fail(place, f"no JSON ({error})", "write one JSON object a line, in UTF-8")
    if not isinstance(value, dict):
        _fail(place, "the row is no object", 'write {"text": …} or {"messages": […]}')
    labels = _labels(value.get("labels"), place)
    unsafe = _truth(value.get("unsafe"), "unsafe", place)
    if unsafe is None and any(labels.values()):
        unsafe = True
    if unsafe is None and len(labels) == len(CATEGORIES):
        unsafe = False
    return Row(_turns(value, place), unsafe, labels)


def _turns(value: Mapping[str, Any], place: str) -> list[Turn]:
    text, messages = value.get("text"), value.get("messages")
    if (text is None) == (messages is None):
        _fail(place, "a row needs text or messages, one of them", 'write {"text": …}')
    if text is not None:
        if not isinstance(text, str):
            _fail(place, "text is no string", "put it in quotes")
        return [Turn(Audience.USER, text)]
    if not isinstance(messages, list) or not messages:
        _fail(place, "messages is no list of at least one message", "list them, oldest first")
    return [_turn(message, place) for message in messages]


def _turn(message: Any, place: str) -> Turn:
    if not isinstance(message, dict):
        _fail(place, "a message is no object", 'write {"role": "user", "content": "…"}')
    role = message.get("role")
    if role not in _ROLES:
        _fail(place, f"unknown role {role!r}", f"use one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):  # content parts as OpenAI has them
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    if content is None:  # an assistant message that only calls tools
        content = ""
    if not isinstance(content, str):
        _fail(place, "content is no string", "put the text in quotes")
    return Turn(_ROLES[role], content)


def _labels(value: Any, place: str) -> dict[Category, bool]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        _fail(place, "labels is no object", 'write {"hate": 0, "violence": 1}')
    found = {}
    for name, label in value.items():
        category = _NAMES.get(str(name).replace("/", "_").replace("-", "_").replace(" ", "_"))
        if category is None:
            _fail(place, f"unknown category {name!r}", f"use one of {', '.join(_NAMES)}")
        known = _truth(label, str(name), place)
        if known is not None:
            found[category] = known
    return found


def _truth(value: Any, name: str, place: str) -> bool | None:
    if value not in (0, 1, None):  # True and False are 1 and 0
        _fail(place, f"{name} is {value!r}", "write 0, 1 or leave it out")
    return None if value is None else bool(value)


def _fail(place: str, problem: str, remedy: str) -> NoReturn:
    raise RowError(f"{place}: {problem}; {remedy}")
