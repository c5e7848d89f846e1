"""Natural prompts: `prompts.txt`, each as somebody might type it.

The file's prompts are separated by lines of `%%`. All are our own; no two are alike.
"""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("prompts.txt")
SEPARATOR = "\n%%\n"


@cache
def natural() -> tuple[str, ...]:
    """All of them, in the order of the file."""
    return tuple(part.strip("\n") for part in FILE.read_text(encoding="utf-8").split(SEPARATOR))


def endless(seed: int) -> Iterator[str]:
    """All of them in an order that comes from the seed, again and again, each time another one.

    The same seed gives every contender the same prompts.
    """
    order = random.Random(seed)
    while True:
        yield from order.sample(natural(), len(natural()))
