"""What one account's long prompts do to another's short ones, in ScreenPrompt without gRPC.

    OMP_NUM_THREADS=1 python -m tests.bench.safety_fairness [--against FOLDER] [--rounds 3]

Twelve clients of one account send 16 tool results of 4 KB again and again, all different; a client
of another account sends a question of 800 characters every 20 ms and notes how long its verdict
takes (what is shorter needs no thread), once alone and once beside them. `--against` names another
checkout: both are measured in turn. The last line of stdout is one JSON object: milliseconds,
medians of the rounds.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chatmesh.content.v1 import content_pb2
from chatmesh.safety.v1 import safety_pb2 as pb
from mesh.chassis.errors import MeshError
from safety_svc.audit import Audit, Decision
from safety_svc.backends.threads import ThreadBackend
from safety_svc.classifier.model import shipped
from safety_svc.policy_source import PolicySource
from safety_svc.service import SafetyService
from safety_svc.settings import POLICY

ROOT = Path(__file__).parents[2]
CLIENT_COUNT, RESULT_COUNT, RESULT_LENGTH = 12, 16, 4_096
INTERVAL_S = 0.02
LINE = "Row {}: the café by the river was open from nine to five, said the guide & 3 others. "
NO_CONTEXT: Any = None
Figures = dict[str, float]


class NoStore:
    """Accepts every row at once."""

    async def insert(self, rows: Sequence[Decision]) -> None:
        return


def subject(account: str) -> pb.Subject:
    return pb.Subject(turn_id="01JCTURN", account_id=account, tier="free")


def long_prompt(number: int) -> pb.ScreenPromptRequest:
    texts = [
        "".join(LINE.format(f"{number}.{index}.{n}") for n in range(60))[:RESULT_LENGTH]
        for index in range(RESULT_COUNT)
    ]
    messages = [content_pb2.Message(role=content_pb2.ROLE_TOOL, content=text) for text in texts]
    return pb.ScreenPromptRequest(subject=subject("busy"), messages=messages)


def short_prompt(number: int) -> pb.ScreenPromptRequest:
    text = LINE.format(number) * 9 + "What is the name of the river?"
    message = content_pb2.Message(content=text)
    return pb.ScreenPromptRequest(subject=subject("other"), messages=[message])


async def waits(service: SafetyService, seconds: float) -> list[float]:
    """Milliseconds of the short prompts."""
    found, end, number = [], time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await service.ScreenPrompt(short_prompt(number), NO_CONTEXT)
        found.append((time.perf_counter() - begun) * 1e3)
        number += 1
        await asyncio.sleep(INTERVAL_S)
    return sorted(found)


async def measured(seconds: float) -> Figures:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(POLICY.read_text(encoding="utf-8"), encoding="utf-8")
        policies = PolicySource(path)
        policies.refresh()
        done = 0

        async def busy(client: int) -> None:
            nonlocal done
            for number in range(client, 1_000_000, CLIENT_COUNT):
                with contextlib.suppress(MeshError):
                    await service.ScreenPrompt(long_prompt(number), NO_CONTEXT)
                    done += 1

        async with Audit(NoStore(), 5) as audit:
            service = SafetyService(policies, audit, ThreadBackend(shipped(), 60))
            await waits(service, 0.3)  # warm
            alone = await waits(service, seconds / 4)
            clients = [asyncio.create_task(busy(client)) for client in range(CLIENT_COUNT)]
            await asyncio.sleep(0.5)
            beside = await waits(service, seconds)
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)
    return {
        "alone_p95_ms": alone[int(len(alone) * 0.95)],
        "beside_p50_ms": statistics.median(beside),
        "beside_p95_ms": beside[int(len(beside) * 0.95)],
        "beside_max_ms": beside[-1],
        "long_prompts_per_s": done / (seconds + 0.5),
    }


def asked(folder: Path, seconds: float) -> Figures:
    """Figures of a checkout, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'proto/gen/python'}"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", "--seconds", str(seconds)]
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
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measured(options.seconds))))
        return
    folders = {"here": ROOT} | ({"there": options.against.resolve()} if options.against else {})
    rounds: dict[str, list[Figures]] = {name: [] for name in folders}
    for _ in range(options.rounds):
        for name, folder in folders.items():
            rounds[name].append(asked(folder, options.seconds))
    medians = {
        name: {key: round(statistics.median(one[key] for one in several), 2) for key in several[0]}
        for name, several in rounds.items()
    }
    for key in medians["here"]:
        print(f"{key:20}", *(f"{several[key]:>10.2f}" for several in medians.values()))
    print(json.dumps({"medians": medians, "rounds": options.rounds}))


if __name__ == "__main__":
    main()
