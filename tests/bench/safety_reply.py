"""What the reply screen costs the safety service's process, in microseconds of CPU a token.

    OMP_NUM_THREADS=1 python -m tests.bench.safety_reply [--against FOLDER] [--rounds 3]

Distinct natural answers (the written ones of `training/data/content`, put together to some hundred
characters) go through `ReplySession`, 32 at once, in pieces of 4, 16 and 64 characters as the
gateway sends them; once with the rules alone, once with the classifier. Reading, writing and gRPC
are left out. `--against` names another checkout, such as the commit before: both are measured in
turn, and the medians compared. A token is 4 characters. The last line of stdout is one JSON object.
"""

import argparse
import asyncio
import inspect
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from chatmesh.safety.v1 import safety_pb2 as pb
from safety_svc.backends.threads import ThreadBackend
from safety_svc.classifier.model import shipped
from safety_svc.policy_source import published
from safety_svc.reply import ReplySession
from safety_svc.settings import POLICY

ROOT = Path(__file__).parents[2]
SIZES = (4, 16, 64)
STREAM_COUNT = 32
TOKEN_LENGTH = 4
LINE_LENGTH_MIN = 40
SUBJECT = pb.Subject(turn_id="01JCTURN", account_id="acct-1", tier="free")
Figures = dict[str, float]


def answers(count: int) -> list[str]:
    """Texts of 200 to 1,200 characters, each line in one of them."""
    chance, lines = random.Random(1), []
    for path in sorted((ROOT / "training/data/content").glob("*.tsv")):
        if path.stem != "harmful":
            cells = path.read_text(encoding="utf-8").replace("\n", "\t").split("\t")
            lines += [one for one in cells if len(one) > LINE_LENGTH_MIN and " | " not in one]
    chance.shuffle(lines)
    found: list[str] = []
    while lines and len(found) < count:
        text, length = "", chance.choice([200, 400, 800, 1_200])
        while lines and len(text) < length:
            text += lines.pop() + chance.choice([" ", " ", "\n\n"])
        found.append(text)
    return found


def requests(text: str, size: int) -> list[pb.ScreenReplyRequest]:
    """An answer as the gateway sends it."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    deltas = [
        pb.ReplyDelta(text=piece, token_count=max(1, len(piece) // TOKEN_LENGTH))
        for piece in pieces
    ]
    end = pb.ScreenReplyRequest(end=pb.ReplyEnd())
    return [*(pb.ScreenReplyRequest(delta=delta) for delta in deltas), end]


async def write(response: pb.ScreenReplyResponse) -> None:
    """Nobody reads."""


def backend() -> Any:
    """The shipped classifier, of this checkout or of an older one."""
    if "limit_s" in inspect.signature(ThreadBackend).parameters:
        return ThreadBackend(shipped(), 60)
    return ThreadBackend(shipped())  # type: ignore[call-arg]  # before the limit moved there


async def cpu_us_per_token(texts: Sequence[str], size: int, judge: Any) -> float:
    """Screens all answers, some at once."""
    rules = published(POLICY.read_text(encoding="utf-8"), str(POLICY))
    regime, places = rules.policy.regime("free"), asyncio.Semaphore(STREAM_COUNT)
    start = pb.ReplyStart(subject=SUBJECT, accepts_masks=True)

    async def screen(several: Sequence[pb.ScreenReplyRequest]) -> None:
        async def sent() -> AsyncIterator[pb.ScreenReplyRequest]:
            for one in several:
                yield one

        async with places:
            await ReplySession(start, regime, rules, judge, write).run(sent())

    streams = [requests(text, size) for text in texts]
    await screen(streams[0])  # warm
    begun = time.process_time()
    await asyncio.gather(*map(screen, streams))
    used_s = time.process_time() - begun
    return used_s * 1e6 / (sum(map(len, texts)) / TOKEN_LENGTH)


async def measured(count: int) -> Figures:
    texts, figures = answers(count), {}
    for name, judge in (("rules", None), ("classifier", backend())):
        for size in SIZES:
            figures[f"{name}, pieces of {size}"] = await cpu_us_per_token(texts, size, judge)
    return figures


def asked(folder: Path, count: int) -> Figures:
    """Figures of a checkout, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'proto/gen/python'}"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--count", str(count)]
    done = subprocess.run(
        command, env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=120, help="answers")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measured(options.count))))
        return
    folders = {"here": ROOT} | ({"there": options.against.resolve()} if options.against else {})
    rounds: dict[str, list[Figures]] = {name: [] for name in folders}
    for _ in range(options.rounds):
        for name, folder in folders.items():
            rounds[name].append(asked(folder, options.count))
    medians = {
        name: {key: round(statistics.median(one[key] for one in several), 1) for key in several[0]}
        for name, several in rounds.items()
    }
    for key, value in medians["here"].items():
        print(f"{key:26}{value:>9.1f}", *(medians["there"][key],) if options.against else ())
    print(json.dumps({"cpu_us_per_token": medians, "rounds": options.rounds}))


if __name__ == "__main__":
    main()
