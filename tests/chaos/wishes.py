"""What the clients ask for. Pure: the same seed gives the same requests.

Every request has a seed of its own, so that an undisturbed run of it gives the same bytes. A wish
is one request, or two of which the second goes on with the conversation of the first.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS = tuple(Path(__file__).with_name("prompts.txt").read_text().splitlines())
MODEL = "chatmesh-tiny"
LENGTHS = (16, 48, 120, 240, 400)
STOPS = ([" the"], [" and", "."], ["\n", " was"])
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "likes": {"type": "array", "items": {"enum": ["sea", "sky"]}, "maxItems": 3},
    },
    "required": ["name", "likes"],
    "additionalProperties": False,
}
FORMATS = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"guided_regex": "[A-Z][a-z]{2,8}( [a-z]{2,8}){3,12}\\."},
)
SHAPES = (
    "stream",
    "choices",
    "stops",
    "logprobs",
    "whole",
    "conversation",
    "background",
    "typed",
)
# The simulated engine cannot hold an answer to a form.
SHAPES_BY_ENGINE = {"simulated": SHAPES, "torch": (*SHAPES, "formats")}
# Whose clients see a stream: only of those a silence means something.
STREAMED = frozenset(SHAPES) - {"whole", "background"} | {"formats"}


@dataclass(frozen=True)
class Wish:
    """What one client asks for.

    Attributes:
        number: place in the plan.
        shape: one of SHAPES_BY_ENGINE: how it is asked for and read.
        bodies: bodies of the requests, as POST /v1/chat/completions takes them; without `stream`.
    """

    number: int
    shape: str
    bodies: tuple[Mapping[str, Any], ...]


def plan(seed: int, count: int, shapes: Sequence[str]) -> tuple[Wish, ...]:
    """`count` wishes; the shapes take turns, lengths and prompts are drawn."""
    rng = random.Random(f"wishes {seed}")
    prompts = _distinct(rng)
    return tuple(
        Wish(number, shape, tuple(_bodies(shape, prompts, rng)))
        for number, shape in zip(range(count), _in_turn(shapes), strict=False)
    )


def _in_turn(shapes: Sequence[str]) -> Iterator[str]:
    while True:
        yield from shapes


def _distinct(rng: random.Random) -> Iterator[str]:
    """Prompts in a drawn order; a second round asks for another manner."""
    manner = ""
    for round_number in range(1, 1_000_000):
        for prompt in rng.sample(PROMPTS, len(PROMPTS)):
            yield prompt + manner
        manner = f" Say it in {round_number + 2} sentences."


def _bodies(shape: str, prompts: Iterator[str], rng: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(2 if shape == "conversation" else 1):
        yield {
            "model": MODEL,
            "messages": [{"role": "user", "content": next(prompts)}],
            "max_tokens": rng.choice(LENGTHS),
            "temperature": rng.choice((0.3, 0.8, 1.0)),
            "seed": rng.randrange(1 << 31),
            **_extras(shape, rng),
        }


def _extras(shape: str, rng: random.Random) -> dict[str, Any]:
    drawn = {
        "choices": {"n": 2},
        "stops": {"stop": rng.choice(STOPS)},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "conversation": {"store": True},
        "background": {"background": True},
        "formats": dict(rng.choice(FORMATS)),
        "typed": {"n": rng.choice((1, 2))},
    }
    return drawn.get(shape, {})
