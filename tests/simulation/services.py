"""The services behind the gateway, small: nodes, safety, tokenizer, conversation."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc

from billing_svc.ledger import Kind, Usage
from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2
from chatmesh.inference.v1 import inference_pb2
from chatmesh.safety.v1 import safety_pb2
from chatmesh.tokenizer.v1 import tokenizer_pb2
from mesh.chassis.errors import MeshError
from tests.simulation import engine
from tests.simulation.loop import Process
from tests.simulation.network import Service, Stream, unavailable

BY_POSITION, OTHERWISE = "by-position", "otherwise"
# Safety holds back so many bytes, so that a bad word is seen before its first letter leaves.
WINDOW_BYTES = 8
REPORT_TOKEN_COUNT = 5
CACHED_TOKEN_COUNT = 2
CONTEXT = 4096

Report = Callable[[Process, Usage], None]


class Node(Service):
    """A node with both models."""

    def __init__(self, name: str, rng: random.Random, report: Report) -> None:
        self.name, self.life = name, 0
        self.process = Process(name)
        self._rng, self._report = rng, report

    def restart(self) -> None:
        self.life += 1
        self.process = Process(f"{self.name}.{self.life}", self.name)

    def unary(self, method: str, request: Any) -> Any:
        models = [
            inference_pb2.Model(
                id=model,
                context_token_count_max=CONTEXT,
                engine="simulated",
                tokenizer_digest="d",
                created_unix_s=1,
                draws_by_position=model == BY_POSITION,
            )
            for model in (BY_POSITION, OTHERWISE)
        ]
        return inference_pb2.ListModelsResponse(models=models)

    async def stream(self, method: str, request: Any, stream: Stream) -> None:
        process, rng = self.process, self._rng
        stream.send(
            inference_pb2.GenerateResponse(started=inference_pb2.Started(instance=self.name))
        )
        by_position = request.model == BY_POSITION
        nonce = None if by_position else rng.randrange(1 << 30)
        emitted = list(request.emitted_token_ids)
        tokens = engine.script(request.sampling.seed, emitted, nonce)
        position = reported = len(emitted)
        turn_id, choice, prompt = request.turn_id, request.choice_index, request.prompt_token_ids
        cached = min(CACHED_TOKEN_COUNT, len(prompt))
        self._report(process, Usage(turn_id, 0, Kind.CACHED_INPUT, 0, cached))
        if cached < len(prompt):
            self._report(process, Usage(turn_id, 0, Kind.INPUT, cached, len(prompt)))
        pace_s = rng.choice((0.005, 0.02, 0.06))
        fails_at = engine.fails_at(request.sampling.seed)
        tokens = tokens[:fails_at]
        try:
            while position < len(tokens):
                await asyncio.sleep(pace_s * (0.5 + rng.random()))
                end = min(len(tokens), position + rng.choice((1, 1, 1, 2, 4)))
                stream.send(_tokens(tokens, position, end))
                position = end
                if position - reported >= REPORT_TOKEN_COUNT:
                    self._report(process, Usage(turn_id, choice, Kind.OUTPUT, reported, position))
                    reported = position
        finally:
            if position > reported:
                self._report(process, Usage(turn_id, choice, Kind.OUTPUT, reported, position))
        if fails_at is not None:
            raise MeshError(grpc.StatusCode.INTERNAL, "ENGINE_FAILED", "it gave up")
        usage = inference_pb2.GenerationUsage(
            prompt_token_count=len(prompt),
            cached_token_count=cached,
            output_token_count=position,
        )
        finished = inference_pb2.Finished(finish_reason=content_pb2.FINISH_REASON_STOP, usage=usage)
        stream.send(inference_pb2.GenerateResponse(finished=finished))


def _tokens(tokens: list[int], first: int, end: int) -> inference_pb2.GenerateResponse:
    """Tokens with the characters that became whole with them."""
    data, before = engine.data_of(tokens[:end]), engine.data_of(tokens[:first])
    text = data[engine.whole(before) : engine.whole(data)].decode()
    sent = inference_pb2.Tokens(first_position=first, token_ids=tokens[first:end], text=text)
    return inference_pb2.GenerateResponse(tokens=sent)


class Safety(Service):
    """Masks SECRET, cuts at POISON; what it decides follows from the text alone, however cut."""

    def __init__(self) -> None:
        self.life = 0
        self.process = Process("safety")
        # (turn, choice) -> for each stream, the text that it let leave, as readers see it.
        self.released: dict[tuple[str, int], list[str]] = {}

    def restart(self) -> None:
        self.life += 1
        self.process = Process(f"safety.{self.life}", "safety")

    def unary(self, method: str, request: Any) -> Any:
        text = " ".join(each.content for each in request.messages)
        verdict = safety_pb2.Verdict(action=safety_pb2.ACTION_ALLOW)
        if "FORBIDDEN" in text:
            verdict.action = safety_pb2.ACTION_BLOCK
        elif "DELICATE" in text:
            verdict.action, verdict.message = safety_pb2.ACTION_SAFE_COMPLETE, engine.SAFE_TEXT
        return safety_pb2.ScreenPromptResponse(verdict=verdict)

    async def stream(self, method: str, request: Any, stream: Stream) -> None:
        start = (await stream.receive()).start
        judged = _Judged(start.released_text.encode())
        key = start.subject.turn_id, start.choice_index
        records = self.released.setdefault(key, [])
        records.append(engine.shown(judged.data, judged.released))
        index = len(records) - 1
        while True:
            said = await stream.receive()
            if said.WhichOneof("event") == "end":
                stream.send(judged.cleared())
                records[index] = engine.shown(judged.data, len(judged.data))
                return
            judged.data += said.delta.text.encode()
            at = judged.data.find(engine.BAD)
            border = judged.border() if at < 0 else at
            if border > judged.released:
                stream.send(judged.release(border))
                records[index] = engine.shown(judged.data, border)
            if at >= 0:
                stream.send(judged.block(at, int(start.subject.jurisdiction or "0")))
                return


class _Judged:
    """The text of one stream; offsets on the wire do not count what was released before it."""

    def __init__(self, released: bytes) -> None:
        self.data, self.base, self.released = released, len(released), len(released)

    def border(self) -> int:
        """Up to where it may leave: not the window, and no end inside a secret."""
        border = max(self.released, len(self.data) - WINDOW_BYTES)
        for first, last in engine.masks_in(self.data):
            if first < border < last:
                border = first
        return border

    def release(self, border: int) -> safety_pb2.ScreenReplyResponse:
        masks = self._masks(self.released, border)
        self.released = border
        release = safety_pb2.Release(release_up_to_offset=border - self.base, masks=masks)
        return safety_pb2.ScreenReplyResponse(release=release)

    def cleared(self) -> safety_pb2.ScreenReplyResponse:
        masks = self._masks(self.released, len(self.data))
        action = safety_pb2.ACTION_REDACT if masks else safety_pb2.ACTION_ALLOW
        verdict = safety_pb2.Verdict(action=action, masks=masks)
        return safety_pb2.ScreenReplyResponse(cleared=safety_pb2.Cleared(verdict=verdict))

    def block(self, at: int, safe: int) -> safety_pb2.ScreenReplyResponse:
        action = safety_pb2.ACTION_SAFE_COMPLETE if safe else safety_pb2.ACTION_BLOCK
        verdict = safety_pb2.Verdict(
            action=action, message=engine.SAFE_TEXT, category=safety_pb2.CATEGORY_VIOLENCE
        )
        block = safety_pb2.Block(verdict=verdict, offset=at - self.base)
        return safety_pb2.ScreenReplyResponse(block=block)

    def _masks(self, first: int, end: int) -> list[safety_pb2.Mask]:
        return [
            safety_pb2.Mask(
                start_offset=begin - self.base,
                end_offset=last - self.base,
                replacement=engine.MASK,
            )
            for begin, last in engine.masks_in(self.data)
            if first <= begin and last <= end
        ]


class Tokenizer(Service):
    """A token a word."""

    def __init__(self) -> None:
        self.process = Process("tokenizer")

    def unary(self, method: str, request: Any) -> Any:
        counts = [max(1, len(each.content.split())) for each in request.messages]
        return tokenizer_pb2.EncodeResponse(
            token_ids=range(1, sum(counts) + 1),
            answer_token_count_max=CONTEXT - sum(counts),
            context_token_count_max=CONTEXT,
            message_token_counts=counts,
        )


class Conversation(Service):
    """Keeps the messages of a turn once."""

    def __init__(self) -> None:
        self.process = Process("conversation")
        self.is_away = False
        # Turn -> what was kept first, and what came later instead.
        self.kept: dict[str, list[conversation_pb2.AppendMessagesRequest]] = {}

    def unary(self, method: str, request: Any) -> Any:
        if self.is_away:
            raise unavailable("conversation is away")
        if method != "AppendMessages":
            raise MeshError(grpc.StatusCode.NOT_FOUND, "THREAD_NOT_FOUND", "no such thread")
        self.kept.setdefault(request.request_id, []).append(request)
        return conversation_pb2.AppendMessagesResponse()
