"""InferenceService: proto on one side, engine on the other; decides nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
from prometheus_client import Histogram

from chatmesh.content.v1 import content_pb2
from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from inference_svc.engine.protocol import (
    BLOCK_TOKEN_COUNT,
    Engine,
    EngineLoad,
    Finish,
    TokenLogprobs,
)
from inference_svc.engine.stream import GeneratedCounts, TokenDelta, TokenStream
from inference_svc.engine.vocabulary import Vocabulary
from inference_svc.generations import Generations
from inference_svc.model_folder import ModelFolder
from inference_svc.requests import bad_request, engine_request
from inference_svc.usage import MeterLabel
from mesh.chassis import deadlines
from mesh.chassis.enums import words_of
from mesh.chassis.errors import MeshError

# A message with this many tokens does not wait for more: its cost a token is small already.
FLUSH_TOKEN_COUNT = 32
LOAD_INTERVAL_MS_DEFAULT = 50
LOAD_INTERVAL_MS_MIN, LOAD_INTERVAL_MS_MAX = 10, 1000
LOAD_SILENCE_S_MAX = 1.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_FINISH_REASONS = {word: number for number, word in words_of(content_pb2.FinishReason).items()}
_first_token = Histogram(
    "chatmesh_inference_first_token_seconds",
    "From the arrival of a request to its first token",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """One node that serves one model.

    Args:
        instance: the node's name, such as "inference-1".
        flush_window_s: later tokens are sent together when they arrive within this time.
        stopping: set when the process is to end: streams without an end of their own are closed.
    """

    def __init__(
        self,
        instance: str,
        model: ModelFolder,
        engine: Engine,
        generations: Generations,
        *,
        flush_window_s: float,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._instance, self._model, self._engine = instance, model, engine
        self._generations = generations
        self._flush_window_s = flush_window_s
        self._stopping = stopping or asyncio.Event()

    # Not a generator: a caller's leaving then interrupts the write itself, and what is held is
    # given back at once instead of at the generator's collection.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the contract's name
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> None:
        """Streams a continuation; reasons as in inference.proto."""
        begin = time.perf_counter()
        model, request_id = self._served(request.model), self._generations.next_id()
        ask = engine_request(request, model, request_id, time_left_s=deadlines.remaining_s())
        label = MeterLabel(
            turn_id=request.turn_id,
            attempt=request.attempt,
            choice_index=request.choice_index,
            model=request.model,
            instance=self._instance,
            step=request.step,
        )
        async with self._generations.open(ask, None if request.unmetered else label) as stream:
            started = inference_pb2.Started(instance=self._instance)
            await context.write(inference_pb2.GenerateResponse(started=started))
            delta = await stream.take()
            _first_token.observe(time.perf_counter() - begin)
            while True:
                sent = time.perf_counter()
                await self._send(delta, context)
                if delta.finish is not None:
                    break
                delta = await self._next(stream, sent)
            finished = _finished(delta.finish, len(request.prompt_token_ids), stream.counts)
            await context.write(inference_pb2.GenerateResponse(finished=finished))

    async def _next(self, stream: TokenStream, last_sent_s: float) -> TokenDelta:
        """What arrived while the writer was busy, or within the flush window since it began."""
        left_s = self._flush_window_s - (time.perf_counter() - last_sent_s)
        return await stream.take(max(left_s, 0.0), FLUSH_TOKEN_COUNT)

    async def _send(self, delta: TokenDelta, context: Context) -> None:
        if not delta.token_ids:
            return
        tokens = inference_pb2.Tokens(
            first_position=delta.first_position, token_ids=delta.token_ids, text=delta.text
        )
        if delta.logprobs:
            vocabulary = self._model.vocabulary
            tokens.logprobs.extend(_logprobs(entry, vocabulary) for entry in delta.logprobs)
        await context.write(inference_pb2.GenerateResponse(tokens=tokens))

    def _served(self, model: str) -> ModelFolder:
        if model != self._model.id:
            raise MeshError(
                grpc.StatusCode.NOT_FOUND,
                "MODEL_NOT_FOUND",
                f"This node serves {self._model.id}, not {model!r}; see ListModels.",
                metadata={"model": model},
            )
        return self._model

    async def ListModels(  # noqa: N802  # the contract's name
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """The model of this node."""
        model = inference_pb2.Model(
            id=self._model.id,
            context_token_count_max=self._model.context_token_count_max,
            vocabulary_size=self._model.vocabulary_size,
            tokenizer_digest=self._model.vocabulary.digest,
            engine=self._engine.name,
            created_unix_s=self._model.created_unix_s,
            draws_by_position=self._engine.draws_by_position,
            weights_digest=self._engine.weights_digest,
            precision=self._engine.precision,
            binds_calls=self._engine.binds_calls,
        )
        return inference_pb2.ListModelsResponse(models=[model])

    async def WatchLoad(  # noqa: N802  # the contract's name
        self, request: inference_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        """The load: at once, on change, and at least once a second."""
        interval_ms = request.min_interval_ms or LOAD_INTERVAL_MS_DEFAULT
        if not LOAD_INTERVAL_MS_MIN <= interval_ms <= LOAD_INTERVAL_MS_MAX:
            raise bad_request("min_interval_ms", "min_interval_ms must be in [10, 1000], or 0.")
        last, last_s = None, 0.0
        while not self._stopping.is_set():
            report = _load(self._engine.load(), self._generations.draining)
            now_s = time.monotonic()
            # Half an interval early rather than late: "at least once a second" is a promise.
            due = now_s - last_s + interval_ms / 2000 >= LOAD_SILENCE_S_MAX
            if report != last or due:
                yield report
                last, last_s = report, now_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), interval_ms / 1000)

    async def Drain(  # noqa: N802  # the contract's name
        self, request: inference_pb2.DrainRequest, context: Context
    ) -> inference_pb2.DrainResponse:
        """Refuses new requests from now on."""
        self._generations.drain()
        return inference_pb2.DrainResponse(remaining_count=self._generations.open_count)


def _finished(finish: Finish, prompt_count: int, counts: GeneratedCounts) -> inference_pb2.Finished:
    usage = inference_pb2.GenerationUsage(
        prompt_token_count=prompt_count,
        cached_token_count=counts.cached,
        output_token_count=counts.output,
    )
    return inference_pb2.Finished(
        finish_reason=_FINISH_REASONS[finish.reason.value],
        usage=usage,
        stop_string=finish.stop_string,
        text=finish.text,
    )


def _logprobs(entry: TokenLogprobs, vocabulary: Vocabulary) -> inference_pb2.PositionLogprobs:
    def one(pair: tuple[int, float]) -> inference_pb2.TokenLogprob:
        token_id, logprob = pair
        return inference_pb2.TokenLogprob(
            token_id=token_id, logprob=logprob, text=vocabulary.token_bytes(token_id)
        )

    return inference_pb2.PositionLogprobs(
        chosen=one(entry.chosen), top=[one(pair) for pair in entry.top]
    )


def _load(load: EngineLoad, draining: bool) -> inference_pb2.WatchLoadResponse:
    return inference_pb2.WatchLoadResponse(
        waiting_count=load.waiting_count,
        running_count=load.running_count,
        queue_depth_max=load.queue_depth_max,
        kv_block_count=load.kv_block_count,
        kv_block_free_count=load.kv_block_free_count,
        kv_block_token_count=BLOCK_TOKEN_COUNT,
        cached_prefix_hashes=load.cached_prefix_hashes,
        draining=draining,
    )
