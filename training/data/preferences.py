"""Preference pairs from the skills: a good reply against one that was spoilt in a known way."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from training.data.conversations import SKILLS, draw_skill
from training.data.skills import limits, numbers, safety, world
from training.data.skills.base import Draw, Exchange, Material

COMPLIANCE = (
    "Sure, here is how to do it. First you need to find the right tools.",
    "Of course! Here are the steps: 1. Make a plan. 2. Get what you need. 3. Do it.",
    "Yes, I can help you with that. The easiest way is the following.",
    "Sure! That is easy. Start by making sure that nobody sees you.",
    "Here is a guide. Step one: prepare everything at home.",
)
EVASIVE = (
    *limits.UNKNOWN,
    *limits.TOO_HARD,
    "I would rather talk about something else.",
    "Maybe. It depends.",
)


class Pair(NamedTuple):
    """A question and two replies; `kind` says how the second one was spoilt."""

    ask: str
    chosen: str
    rejected: str
    kind: str

    def row(self) -> dict[str, Any]:
        """As a line of `preferences.*.jsonl`."""
        return {
            "prompt": [{"role": "user", "content": self.ask}],
            "chosen": [{"role": "assistant", "content": self.chosen}],
            "rejected": [{"role": "assistant", "content": self.rejected}],
            "kind": self.kind,
        }


def _answered(draw: Draw) -> Exchange:
    """The first exchange of a skill that neither refuses nor declines."""
    while True:
        name, exchanges = draw_skill(draw)
        if name not in {"refusal", "crisis", "unknown", "too hard", "query", "large numbers"}:
            return exchanges[0]


def wrong_fact(draw: Draw) -> Pair:
    """The right answer against that of another country or word."""
    while True:
        if draw.chance(0.6):
            kind = draw.pick((world.capital, world.language, world.currency, world.continent))
            first, second = (kind(draw, c) for c in draw.rng.sample(world.countries(), 2))
        else:
            skill = draw.pick(("opposite", "word form", "translation", "definition"))
            first, second = SKILLS[skill][0](draw)[0], SKILLS[skill][0](draw)[0]
        if not first.answers or not second.answers:
            continue
        right, wrong = first.answers[0], second.answers[0]
        if (
            right != wrong
            and right in first.say
            and wrong.startswith("is ") == right.startswith("is ")
        ):
            return Pair(first.ask, first.say, first.say.replace(right, wrong), "wrong fact")


def wrong_sum(draw: Draw) -> Pair:
    """The right result against one that is off by a little."""
    skill = numbers.arithmetic if draw.chance(0.7) else numbers.tens
    exchange = skill(draw)[0]
    head, _, result = exchange.say.rpartition(" ")
    off = int(result) + draw.pick((-10, -3, -2, -1, 1, 2, 3, 10))
    return Pair(exchange.ask, exchange.say, f"{head} {off}", "wrong sum")


def evasive(draw: Draw) -> Pair:
    """An answer against not answering what the model knows."""
    exchange = _answered(draw)
    return Pair(exchange.ask, exchange.say, draw.pick(EVASIVE), "evasive")


def invented(draw: Draw) -> Pair:
    """Saying that it does not know against a confident answer to something else."""
    exchange = limits.unknown(draw)[0]
    return Pair(exchange.ask, exchange.say, _answered(draw).say, "invented")


def unsafe(draw: Draw) -> Pair:
    """A refusal against the beginning of compliance, or against an answer to something else.

    The second is what small models do; without it the pairs of `refused` alone would move them.
    """
    exchange = safety.refusal(draw)[0]
    rejected = draw.pick(COMPLIANCE) if draw.chance(0.4) else _answered(draw).say
    return Pair(exchange.ask, exchange.say, rejected, "unsafe")


def refused(draw: Draw) -> Pair:
    """An answer to a harmless question against a refusal."""
    exchange = safety.lookalike(draw)[0] if draw.chance(0.7) else _answered(draw)
    return Pair(exchange.ask, exchange.say, draw.pick(safety.REFUSALS), "refused")


def rambling(draw: Draw) -> Pair:
    """An answer that ends against one that repeats itself, goes astray or breaks off."""
    exchange = _answered(draw)
    say = exchange.say
    sentence = re.split(r"(?<=[.!?]) ", say)[-1]
    spoilt = [
        " ".join([say] + [sentence] * draw.rng.randint(2, 5)),
        f"{say} {_answered(draw).say}",
        " ".join(say.split()[: max(1, len(say.split()) * 2 // 3)]),
    ]
    rejected = draw.pick([text for text in spoilt if text != say])
    return Pair(exchange.ask, say, rejected, "rambling")


def shuffled(draw: Draw) -> Pair:
    """A sentence against its words in another order."""
    while True:
        exchange = _answered(draw)
        words = exchange.say.split()
        draw.rng.shuffle(words)
        if len(words) > 3 and " ".join(words) != exchange.say:
            return Pair(exchange.ask, exchange.say, " ".join(words), "shuffled")


def off_topic(draw: Draw) -> Pair:
    """The answer against that to another question."""
    while True:
        exchange, other = _answered(draw), _answered(draw)
        if exchange.say != other.say:
            return Pair(exchange.ask, exchange.say, other.say, "off topic")


KINDS: dict[Callable[[Draw], Pair], float] = {
    wrong_fact: 4,
    wrong_sum: 3,
    evasive: 2,
    invented: 2,
    unsafe: 2,
    refused: 3,
    rambling: 3,
    shuffled: 1,
    off_topic: 2,
}


def stream(material: Material, seed: int) -> Iterator[Pair]:
    """Endless pairs; the two replies always differ."""
    draw = Draw(random.Random(seed), material)
    while True:
        made = draw.rng.choices(list(KINDS), list(KINDS.values()))[0](draw)
        if made.chosen != made.rejected:
            yield made
