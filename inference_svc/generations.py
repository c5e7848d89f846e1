"""The generations of one node: admitted, metered, and closed on every way out."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import structlog
from prometheus_client import Counter, Histogram

from inference_svc.engine.protocol import (
    BadFormatError,
    DeadlineUnreachableError,
    Engine,
    EngineError,
    EngineRequest,
    QueueFullError,
    RequestTooLargeError,
)
from inference_svc.engine.stream import TokenStream
from inference_svc.requests import bad_request
from inference_svc.usage import Meter, MeterLabel, UsageReporter
from mesh.chassis.errors import MeshError

QUEUE_FULL_RETRY_S = 1.0
BACKLOG_RETRY_S = 5.0
ENGINE_FAILED = "ENGINE_FAILED"

log = structlog.get_logger()
_requests = Counter(
    "chatmesh_inference_requests_total", "Generations by the way they ended", ["end"]
)
_tokens = Counter("chatmesh_inference_tokens_total", "Tokens by kind", ["kind"])
_cancel_seconds = Histogram(
    "chatmesh_inference_cancel_seconds",
    "From the caller's leaving to the engine having freed the request",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)


class Generations:
    """Opens and closes generations; the one place where a stream of tokens gets its meter."""

    def __init__(self, engine: Engine, usage: UsageReporter) -> None:
        self._engine, self._usage = engine, usage
        self._numbers = itertools.count(1)
        self._open = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def open_count(self) -> int:
        """Generations that are open or being closed."""
        return self._open

    def next_id(self) -> str:
        """A request id that is unique in this process."""
        return str(next(self._numbers))

    def drain(self) -> None:
        """Refuses new generations from now on. Repeatable."""
        self.draining = True

    async def idle(self) -> None:
        """Waits until nothing is open."""
        await self._idle.wait()

    @asynccontextmanager
    async def open(
        self, request: EngineRequest, label: MeterLabel | None
    ) -> AsyncIterator[TokenStream]:
        """Submits a request; on leaving, cancels what runs and meters exactly what was generated.

        Without a label nothing is metered.

        Raises:
            MeshError: DRAINING, QUEUE_FULL, REQUEST_TOO_LARGE, DEADLINE_UNREACHABLE, BAD_REQUEST;
                ENGINE_FAILED and BAD_REQUEST (a response format) from the body.
        """
        stream = self._submit(request)
        meter = self._usage.open(label, stream.counts) if label else None
        self._open += 1
        self._idle.clear()
        try:
            yield stream
        except EngineError as error:
            failure = _as_mesh_error(error, request)
            if failure.reason == ENGINE_FAILED:
                log.error("engine_failed", turn_id=request.group, error=str(error))
            raise failure from error
        finally:
            self._leave(stream, meter, len(request.emitted_token_ids))

    def _submit(self, request: EngineRequest) -> TokenStream:
        if self.draining:
            raise MeshError(
                grpc.StatusCode.UNAVAILABLE, "DRAINING", "This node is draining; use another one."
            )
        if self._usage.backlogged:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                "This node cannot account for more at the moment; use another one or try later.",
                retry_after_s=BACKLOG_RETRY_S,
            )
        try:
            return self._engine.submit(request)
        except EngineError as error:
            raise _as_mesh_error(error, request) from error

    def _leave(self, stream: TokenStream, meter: Meter | None, emitted_count: int) -> None:
        if stream.done:
            self._close(stream, meter, emitted_count)
            return
        begin = time.perf_counter()
        stream.cancel()

        async def wait() -> None:
            await stream.ended()
            _cancel_seconds.observe(time.perf_counter() - begin)
            self._close(stream, meter, emitted_count)

        # A task of its own: the call that is left here is being cancelled and may not wait.
        task = asyncio.create_task(wait())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _close(self, stream: TokenStream, meter: Meter | None, emitted_count: int) -> None:
        if meter:
            self._usage.close(meter)
        counts = stream.counts
        _requests.labels(stream.finish.reason.value if stream.finish else "failed").inc()
        _tokens.labels("output").inc(counts.output - emitted_count)
        _tokens.labels("input").inc(counts.prefilled - min(counts.cached, counts.prefilled))
        _tokens.labels("cached_input").inc(min(counts.cached, counts.prefilled))
        self._open -= 1
        if self._open == 0:
            self._idle.set()


def _as_mesh_error(error: EngineError, request: EngineRequest) -> MeshError:
    """What the caller gets for an engine's error."""
    text, exhausted = str(error), grpc.StatusCode.RESOURCE_EXHAUSTED
    match error:
        case QueueFullError():
            facts = {"queue_depth_max": str(error.queue_depth_max)}
            return MeshError(
                exhausted, "QUEUE_FULL", text, metadata=facts, retry_after_s=QUEUE_FULL_RETRY_S
            )
        case RequestTooLargeError():
            facts = {"limit": str(error.block_count_max), "count": str(error.block_count)}
            return MeshError(exhausted, "REQUEST_TOO_LARGE", text, metadata=facts)
        case DeadlineUnreachableError():
            late_s = error.first_token_s - error.time_left_s
            return MeshError(exhausted, "DEADLINE_UNREACHABLE", text, retry_after_s=late_s)
        case BadFormatError():
            wanted = request.response_format
            return bad_request("calls" if wanted and wanted.calls else "response_format", text)
    return MeshError(grpc.StatusCode.INTERNAL, ENGINE_FAILED, text)
