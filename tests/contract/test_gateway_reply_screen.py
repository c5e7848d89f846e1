"""The screening of one answer while its streams break under it, with real streams."""

import asyncio
import random
from contextlib import aclosing

import grpc

from chatmesh.safety.v1 import safety_pb2 as pb
from chatmesh.safety.v1 import safety_pb2_grpc
from gateway.settings import TurnLimits
from gateway.upstreams.reply_screen import ReplyScreen
from tests.support.fakes import failure
from tests.support.loopback import loopback

ANSWERS_AT_ONCE = 16
ANSWER_COUNT = 1_000
PIECES = [f"piece {index} " for index in range(12)]
TEXT = "".join(PIECES)
PATIENCE_S = 20.0
LIMITS = TurnLimits(safety_backoff_s=0, safety_attempt_count_max=32)


class BreakingSafety(safety_pb2_grpc.SafetyServiceServicer):
    """Breaks each stream at a random message, in a random way; the last tries it lets through."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.stream_count = 0
        # What the stream that cleared an answer heard of it.
        self.cleared: dict[str, str] = {}

    async def ScreenReply(self, requests, context):  # noqa: N802 - the contract's name
        self.stream_count += 1
        break_at = self._random.randrange(2 * len(PIECES))
        heard, turn_id, count = "", "", 0
        async for request in requests:
            count += 1
            event = request.WhichOneof("event")
            if event == "start":
                heard, turn_id = request.start.released_text, request.start.subject.turn_id
            elif event == "delta":
                heard += request.delta.text
                yield pb.ScreenReplyResponse(release=pb.Release(release_up_to_offset=count - 1))
            else:
                self.cleared[turn_id] = heard
                verdict = pb.Verdict(action=pb.ACTION_ALLOW)
                yield pb.ScreenReplyResponse(cleared=pb.Cleared(verdict=verdict))
                return
            if count > break_at:
                if self._random.random() < 0.5:
                    return  # an end without a decision
                raise failure(grpc.StatusCode.UNAVAILABLE)


class Calls:
    """Opens streams, and ends some of them on this side: under a read, a write, or neither."""

    def __init__(self, stub, seed: int) -> None:
        self._stub, self._random = stub, random.Random(seed)
        self.ended_count = 0

    def open(self):
        call = self._stub.ScreenReply(None)
        if self._random.random() < 0.5:
            delay_s = self._random.uniform(0, 0.01)
            asyncio.get_running_loop().call_later(delay_s, self._end, call)
        return call

    def _end(self, call) -> None:
        self.ended_count += call.cancel()


async def screened(calls: Calls, turn_id: str) -> None:
    """Writes the answer as fast as it is taken, and reads to the decision."""
    start = pb.ReplyStart(subject=pb.Subject(turn_id=turn_id))
    screen = ReplyScreen(calls.open, start, LIMITS)

    async def write() -> None:
        await screen.open()
        for piece in PIECES:
            await screen.add(piece, 1)
        await screen.end()

    writing = asyncio.create_task(write())
    try:
        async with aclosing(screen.clearances()) as clearances:
            decisions = [clearance async for clearance in clearances]
        assert decisions[-1].cleared
        await writing
    finally:
        screen.cancel()
        writing.cancel()


async def test_streams_that_break_under_a_write_neither_hang_nor_lose_text():
    safety = BreakingSafety(seed=1)
    servicers = [(safety_pb2_grpc.add_SafetyServiceServicer_to_server, safety)]
    turn_ids = iter([f"turn-{index}" for index in range(ANSWER_COUNT)])
    async with loopback(servicers) as channel:
        calls = Calls(safety_pb2_grpc.SafetyServiceStub(channel), seed=2)

        async def client() -> None:
            for turn_id in turn_ids:
                async with asyncio.timeout(PATIENCE_S):
                    await screened(calls, turn_id)

        # Not a task group: it would take a client that was cancelled by a call for one that ended.
        clients = [asyncio.create_task(client()) for _ in range(ANSWERS_AT_ONCE)]
        await asyncio.wait(clients)
        for each in clients:
            each.result()
    assert safety.stream_count > 1.5 * ANSWER_COUNT  # it did break them
    assert calls.ended_count > 0.2 * ANSWER_COUNT
    assert len(safety.cleared) == ANSWER_COUNT
    assert set(safety.cleared.values()) == {TEXT}
