"""Rows put together from parts: wrapped requests, planted instructions, conversations, tasks.

The parts of one split never meet those of another, so that a wrapper, a carrier or a request seen
in training does not come back in a test.
"""

import base64
import codecs
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from safety_svc.detectors.base import Category
from safety_svc.train.row import Row, harmless, spelled, unasked

REQUEST, TASK, TOPIC, PASSAGE, CODE = "<request>", "<task>", "<topic>", "<passage>", "<code>"
ENCODED, HARM = "<encoded>", "<harm>"
# Begins a wrapper that is an attack only around a harmful request.
SOFT = "~"
# Separates the turns of a conversation in one text, as the screen does it.
TURN = "\n\n"
WRAPPED_LENGTH_MAX = 600
FRAMED_LENGTH_MAX = 200
_OVERRIDING = re.compile(
    "ignor|disregard|system|im_start|override|(forget|drop|replace|above|previous|earlier|prior)"
    ".{0,40}(rule|instruction|prompt|line|told|said|message)|(hidden|initial|your|secret)"
    ".{0,20}(prompt|instruction|message)|vergiss|oublie|olvid|esquec|dimentic|forget everything"
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What rows of one split are made of."""

    wrappers: Sequence[str]
    injections: Sequence[str]
    tasks: Sequence[str]
    ordinary: Sequence[str]
    passages: Sequence[str]
    topics: Sequence[str]
    commands: Sequence[str]
    openings: Sequence[Sequence[str]]


def wrapped(requests: Sequence[Row], parts: Parts, rng: random.Random, count: int) -> Iterator[Row]:
    """Jailbreaks: a wrapper around a harmful request, seldom around a harmless one."""
    bad = [row for row in requests if row.unsafe == 1 and len(row.text) < WRAPPED_LENGTH_MAX]
    good = [row for row in requests if row.unsafe == 0 and len(row.text) < WRAPPED_LENGTH_MAX]
    for _ in range(count if bad and good and parts.wrappers else 0):
        line = rng.choice(parts.wrappers)
        wrapper, soft = spelled(line.lstrip(SOFT), rng), line.startswith(SOFT)
        inner = rng.choice(good if rng.random() < (0.5 if soft else 0.12) else bad)
        text = wrapper.replace(REQUEST, inner.text)
        if soft and inner.unsafe == 0:
            yield harmless(text, "wrapped", "framed")
            continue
        labels = unasked(wrapper)
        if REQUEST in wrapper:
            both = {one: 0 for one in labels if inner.labels.get(one) == 0}
            labels = both | {one: 1 for one, value in inner.labels.items() if value == 1}
        overrides = {Category.PROMPT_INJECTION: 1} if _overrides(wrapper) else {}
        yield Row(text, "wrapped", "jailbreak", {**labels, **overrides, Category.JAILBREAK: 1}, 1)


def _overrides(text: str) -> bool:
    """True when a text sets former instructions aside or asks for hidden ones."""
    return _OVERRIDING.search(text.lower()) is not None


def planted(parts: Parts, rng: random.Random, count: int) -> Iterator[Row]:
    """Documents with instructions for the assistant, and user texts that carry them."""
    for _ in range(count if parts.injections and parts.passages else 0):
        task = spelled(rng.choice(parts.tasks), rng)
        order = spelled(rng.choice(parts.injections), rng).replace(TASK, task)
        carrier = rng.choice(parts.passages)
        labels = unasked(order) | {Category.PROMPT_INJECTION: 1}
        # Of a person, an order is an attack only when it sets something aside.
        if rng.random() < 0.4 and _overrides(order):
            question = spelled(rng.choice(parts.ordinary), rng)
            before = f"{_filled(question, parts, rng)[:400]} " if rng.random() < 0.7 else ""
            yield Row(before + order, "planted", "user_injection", labels, 1)
            continue
        at = rng.choice((0, len(carrier), carrier.find(". ") + 2))
        text = f"{carrier[:at]} {order} {carrier[at:]}".strip()
        yield Row(text, "planted", "injection", labels, 1, document=True)


def framed(
    requests: Sequence[Row], lines: Sequence[str], rng: random.Random, count: int
) -> Iterator[Row]:
    """Harmless requests in frames that attackers use too: translated, told, encoded, as code."""
    good = [row.text for row in requests if row.unsafe == 0 and len(row.text) < FRAMED_LENGTH_MAX]
    for _ in range(count if good and lines else 0):
        request = rng.choice(good)
        text = spelled(rng.choice(lines), rng).replace(ENCODED, encoded(request, rng))
        yield harmless(text.replace(REQUEST, request), "framed", "framed")


def questioned(
    parts: Parts, requests: Sequence[Row], rng: random.Random, count: int
) -> Iterator[Row]:
    """Documents with a harmless question in their midst, which is no instruction."""
    good = [row.text for row in requests if row.unsafe == 0 and row.text.endswith("?")]
    for _ in range(count if good and parts.passages else 0):
        carrier, question = rng.choice(parts.passages), rng.choice(good)
        at = rng.choice((0, len(carrier), carrier.find(". ") + 2))
        text = f"{carrier[:at]} {question} {carrier[at:]}".strip()
        yield harmless(text, "questioned", "document", document=True)


def encoded(text: str, rng: random.Random) -> str:
    """`text` in one of the encodings that the screen decodes."""
    kind = rng.randrange(5)
    if kind == 0:
        return base64.b64encode(text.encode()).decode()
    if kind == 1:
        return text.encode().hex()
    if kind == 2:
        return codecs.encode(text, "rot13")
    return text[::-1] if kind == 3 else " ".join(text)


def tasks(parts: Parts, rng: random.Random, count: int) -> Iterator[Row]:
    """Ordinary instructions, many of them with a text to work on."""
    for _ in range(count if parts.ordinary else 0):
        line = spelled(rng.choice(parts.ordinary), rng)
        yield harmless(_filled(line, parts, rng), "tasks", "ordinary")


def _filled(line: str, parts: Parts, rng: random.Random) -> str:
    while TOPIC in line:
        line = line.replace(TOPIC, rng.choice(parts.topics), 1)
    line = line.replace(CODE, rng.choice(parts.commands))
    return line.replace(PASSAGE, rng.choice(parts.passages))


def conversations(
    rows: Sequence[Row], parts: Parts, rng: random.Random, count: int
) -> Iterator[Row]:
    """A last turn after harmless earlier ones, and a request spread over two turns."""
    users = [row for row in rows if not row.document and len(row.text) < WRAPPED_LENGTH_MAX]
    for _ in range(count if users and parts.openings else 0):
        row = rng.choice(users)
        words = row.text.split()
        if row.unsafe == 1 and len(words) > 8 and rng.random() < 0.3:
            half = len(words) // 2
            text = " ".join(words[:half]) + TURN + " ".join(words[half:])
        else:
            text = TURN.join([rng.choice(parts.openings)[0], row.text])
        yield replace(row, text=text, kind=f"{row.kind}_turns", weight=row.weight * 0.7)
