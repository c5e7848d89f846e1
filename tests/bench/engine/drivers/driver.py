"""What every driver shares: one request a line on standard input, one reply a line on standard
output, both JSON. Plain standard library: it runs in the peers' own environments.

A request: {"concurrency", "prompt_tokens", "new_tokens", "seed"}: that many prompts at once, each
answered greedily with exactly so many tokens. A reply: the fields of `Timing`, "seconds" from the
submission to the last token.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

RESERVED_TOKENS = 300  # end-of-sequence and bytes: not used in prompts


class Timing(NamedTuple):
    """What a run tells of itself.

    Attributes:
        first_token_s: median time to a first token; None: the peer cannot tell.
        seconds: duration by the peer's own clock; None: the driver's clock counts.
        peak_mib: largest resident memory, MiB, where the peer is a process that has ended.
    """

    first_token_s: float | None = None
    seconds: float | None = None
    peak_mib: float | None = None


def prompts(vocabulary: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Random token ids that share no prefix."""
    draw = random.Random(seed)
    return [
        [draw.randrange(RESERVED_TOKENS, vocabulary) for _ in range(length)] for _ in range(count)
    ]


def reply_channel() -> Callable[[dict[str, object]], None]:
    """Keeps standard output for replies; what libraries print goes to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    out = os.fdopen(kept, "w")

    def send(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    return send


def serve(
    vocabulary: int,
    send: Callable[[dict[str, object]], None],
    generate: Callable[[list[list[int]], int], Timing],
) -> None:
    """Answers requests until the input ends; `generate(prompts, new_tokens)` does the work."""
    generate(prompts(vocabulary, 1, 16, 0), 2)  # lazy set-up is part of the start
    send({"ready": True})
    for line in sys.stdin:
        ask = json.loads(line)
        given = prompts(vocabulary, ask["concurrency"], ask["prompt_tokens"], ask["seed"])
        begin = time.perf_counter()
        timing = generate(given, ask["new_tokens"])
        seconds = time.perf_counter() - begin if timing.seconds is None else timing.seconds
        send({**timing._asdict(), "seconds": seconds})
