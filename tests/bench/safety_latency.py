"""How long the prompt screen takes for texts of a given length, on one core.

    OMP_NUM_THREADS=1 python -m tests.bench.safety_latency ROWS.jsonl… [--tokens 128 512]

Rows are those of `python -m safety_svc.evaluate`: single messages of users, of three quarters of
that length to all of it, in tokens of the encoder; where there are few of them, shorter ones strung
together and cut. Harmless and harmful ones are timed apart, in turn: traffic is mostly the former,
and the cascade lets most of it go after its first stage. Rules, policy and classifier run as in
`ScreenPrompt`, without audit and network. Prints a table; the last line of stdout is one JSON
object.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from safety_svc.classifier import weights
from safety_svc.classifier.model import shipped
from safety_svc.detectors.base import Audience, Turn
from safety_svc.evaluate import rows
from safety_svc.evaluate.screening import Screen
from safety_svc.policy_source import published
from safety_svc.settings import POLICY

WARM_UP_COUNT = 20
WHOLE_COUNT_MIN = 50
VERDICTS = {"harmless": False, "harmful": True}


def texts(given: Sequence[str], tokenizer: Tokenizer, token_count: int) -> list[str]:
    """Texts of 3/4 of `token_count` tokens to all of it: whole ones of `given`, or strung ones."""
    counts = {
        text: len(tokenizer.encode(text, add_special_tokens=False).ids)
        for text in dict.fromkeys(given)
    }
    whole = [text for text, count in counts.items() if 0.75 * token_count <= count <= token_count]
    return whole if len(whole) >= WHOLE_COUNT_MIN else list(strung(given, tokenizer, token_count))


def strung(given: Sequence[str], tokenizer: Tokenizer, token_count: int) -> Iterator[str]:
    """Texts of `token_count` tokens: `given` one after the other, cut."""
    text = ""
    for part in given:
        text = f"{text} {part}".lstrip()
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) >= token_count:
            yield text[: encoding.offsets[token_count - 1][1]]
            text = ""


def spoken(given: Sequence[rows.Row], unsafe: bool) -> list[str]:
    """The single messages of users with this verdict."""
    return [
        row.turns[0].text
        for row in given
        if row.unsafe is unsafe and len(row.turns) == 1 and row.turns[0].audience is Audience.USER
    ]


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokens", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--count", type=int, default=400, help="texts of each length and verdict")
    arguments = parser.parse_args()
    given = [row for path in arguments.files for row in rows.read(path)]
    tokenizer = Tokenizer.from_file(str(weights.SHIPPED / weights.TOKENIZER))
    screen = Screen(published(POLICY.read_text(encoding="utf-8"), str(POLICY)), shipped())
    found: dict[str, Any] = {}
    print(f"{'tokens':>7} {'':10}{'texts':>7}{'mean ms':>9}{'p50 ms':>9}{'p99 ms':>9}")
    for token_count in arguments.tokens:
        sets = {
            name: texts(spoken(given, unsafe), tokenizer, token_count)[: arguments.count]
            for name, unsafe in VERDICTS.items()
        }
        seconds = timed(screen, sets)
        for name, one in seconds.items():
            p50, p99 = (float(np.quantile(one, q)) * 1_000 for q in (0.5, 0.99))
            mean = float(np.mean(one)) * 1_000
            print(f"{token_count:>7} {name:10}{len(one):>7}{mean:>9.2f}{p50:>9.2f}{p99:>9.2f}")
            figures = {"texts": len(one), "mean_ms": mean, "p50_ms": p50, "p99_ms": p99}
            found.setdefault(str(token_count), {})[name] = figures
    print(json.dumps(found))


def timed(screen: Screen, sets: dict[str, list[str]]) -> dict[str, list[float]]:
    """Seconds of each text by verdict, the verdicts in turn."""
    turns = [
        (name, text)
        for index in range(max(map(len, sets.values())))
        for name, several in sets.items()
        for text in several[index : index + 1]
    ]
    found: dict[str, list[float]] = {name: [] for name in sets if sets[name]}
    for number, (name, text) in enumerate([*turns[:WARM_UP_COUNT], *turns]):
        row = rows.Row([Turn(Audience.USER, text)], None, {})
        begun = time.perf_counter()
        screen.screen(row)
        if number >= WARM_UP_COUNT:
            found[name].append(time.perf_counter() - begun)
    return found


if __name__ == "__main__":
    main()
