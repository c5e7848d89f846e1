"""What screening adds to a streamed answer: through the service's own code, 64 streams at once.

    python -m tests.bench.safety_stream [--streams 64] [--rate 20] [--backend classifier|rules]

Each stream sends a token (4 characters on average) every 1/rate seconds to `ScreenReply` over
gRPC on loopback and notes when it was cleared. `floor` is the same with a servicer that clears at
once: what gRPC itself costs. The last line of stdout is one JSON object: milliseconds from a token
to its clearance (tokens that wait for the next one counted apart), and CPU time a token.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import structlog
import uvloop

from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1 import safety_pb2_grpc
from safety_svc.audit import Audit, Decision
from safety_svc.backends.threads import ThreadBackend
from safety_svc.policy_source import PolicySource
from safety_svc.service import SafetyService
from safety_svc.settings import POLICY

TEXT = (
    "The bridge over the river was built in the spring of that year, when the water stood low and "
    "the masons could reach the old foundations. They worked from dawn until the bells rang, and "
    "by the autumn the first carts went over it. People from both towns came to see it opened. "
)
SUBJECT = pb.Subject(turn_id="01JCTURN", account_id="acct-1", tier="free")


class NoStore:
    """Accepts every row at once."""

    async def insert(self, rows: Sequence[Decision]) -> None:
        return


class Floor(safety_pb2_grpc.SafetyServiceServicer):
    """Clears what it gets."""

    async def ScreenReply(  # noqa: N802 - the contract's name
        self, requests: AsyncIterator[pb.ScreenReplyRequest], context: object
    ) -> AsyncIterator[pb.ScreenReplyResponse]:
        offset = 0
        async for request in requests:
            if request.HasField("delta"):
                offset += len(request.delta.text)
                yield pb.ScreenReplyResponse(release=pb.Release(release_up_to_offset=offset))
        yield pb.ScreenReplyResponse(cleared=pb.Cleared())


def tokens(count: int) -> list[str]:
    """Words with the space before them, longer ones cut: as tokenizers do."""
    words = itertools.cycle(TEXT.split(" "))
    pieces = (f" {word}"[at : at + 6] for word in words for at in range(0, len(word) + 1, 6))
    return list(itertools.islice(pieces, count))


async def stream(
    stub: safety_pb2_grpc.SafetyServiceStub, texts: Sequence[str], rate: float, delay_s: float
) -> list[float]:
    """Seconds from each token to the release that covers it."""
    call = stub.ScreenReply()
    start = pb.ReplyStart(subject=SUBJECT, accepts_masks=True)
    await call.write(pb.ScreenReplyRequest(start=start))
    sent: list[tuple[int, float]] = []
    waited: list[float] = []

    async def write() -> None:
        await asyncio.sleep(delay_s)
        offset, begin = 0, time.perf_counter()
        for number, text in enumerate(texts):
            await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            offset += len(text)
            sent.append((offset, time.perf_counter()))
            delta = pb.ReplyDelta(text=text, token_count=1)
            await call.write(pb.ScreenReplyRequest(delta=delta))
        await call.write(pb.ScreenReplyRequest(end=pb.ReplyEnd()))
        await call.done_writing()

    writing = asyncio.create_task(write())
    while (response := await call.read()) is not grpc.aio.EOF:
        now = time.perf_counter()
        upto = response.release.release_up_to_offset if response.HasField("release") else 1 << 62
        while len(waited) < len(sent) and sent[len(waited)][0] <= upto:
            waited.append(now - sent[len(waited)][1])
    await writing
    return waited


async def measure(which: str, options: argparse.Namespace) -> dict[str, float]:
    """Figures of one servicer, which runs in a process of its own, as the service does."""
    texts = tokens(options.tokens)
    command = [sys.executable, "-m", __spec__.name, "--serve", which, "--backend", options.backend]
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    target = (await server.stdout.readline()).decode().strip()
    async with grpc.aio.insecure_channel(target) as channel:
        stub = safety_pb2_grpc.SafetyServiceStub(channel)
        await stream(stub, texts, 1e6, 0)  # warm
        delays = [number / options.rate / options.streams for number in range(options.streams)]
        every = await asyncio.gather(
            *(stream(stub, texts, options.rate, delay_s) for delay_s in delays)
        )
    server.stdin.close()
    cpu_s = float(await server.stdout.readline())
    await server.wait()
    waits = sorted(wait * 1e3 for waits in every for wait in waits)
    # A token that waits for the next one (an unfinished word that may begin a finding).
    held = [wait for wait in waits if wait >= 0.9e3 / options.rate]
    at_once = waits[: len(waits) - len(held)]
    return {
        "p50_ms": round(statistics.median(waits), 3),
        "p99_ms": round(waits[int(len(waits) * 0.99)], 3),
        "p99_ms_of_those_not_held": round(at_once[int(len(at_once) * 0.99)], 3),
        "held_for_the_next_token": round(len(held) / len(waits), 4),
        "cpu_us_per_token": round(cpu_s * 1e6 / len(waits), 1),
    }


async def serve(which: str, backend_name: str) -> None:
    """Serves until stdin ends: prints its address first and the CPU seconds it used last."""
    backend = None
    if which == "screened" and backend_name == "classifier":
        from safety_svc.classifier.model import shipped

        backend = ThreadBackend(shipped(), 30)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(POLICY.read_text(encoding="utf-8"), encoding="utf-8")
        policies = PolicySource(path)
        policies.refresh()
        async with Audit(NoStore(), 5) as audit:
            service = SafetyService(policies, audit, backend) if which == "screened" else Floor()
            server = grpc.aio.server()
            safety_pb2_grpc.add_SafetyServiceServicer_to_server(service, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            print(f"127.0.0.1:{port}", flush=True)
            before = time.process_time()
            await asyncio.to_thread(sys.stdin.read)
            print(time.process_time() - before, flush=True)
            await server.stop(0)


async def run(options: argparse.Namespace) -> None:
    """Measures both servicers in turn, several times; medians."""
    rounds: dict[str, list[dict[str, float]]] = {"floor": [], "screened": []}
    for _ in range(options.rounds):
        for which, several in rounds.items():
            several.append(await measure(which, options))
    results = {
        which: {key: statistics.median(one[key] for one in several) for key in several[0]}
        for which, several in rounds.items()
    }
    for name, figures in results.items():
        print(f"{name:10} {figures}")
    added = {
        key: round(results["screened"][key] - results["floor"][key], 3)
        for key in ("p50_ms", "p99_ms_of_those_not_held", "cpu_us_per_token")
    }
    print(json.dumps({**vars(options), **results, "added": added}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second, each stream")
    parser.add_argument("--backend", choices=("classifier", "rules"), default="classifier")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=("floor", "screened"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        uvloop.run(serve(options.serve, options.backend))
    else:
        uvloop.run(run(options))


if __name__ == "__main__":
    main()
