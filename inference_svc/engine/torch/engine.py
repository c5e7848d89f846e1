"""The torch engine: one thread computes, the event loop stays outside.

loop ──inbox──> thread: take → core.step (schedule → run → sample → emit) ──call_soon──> TokenStream
"""

import asyncio
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import (
    BadFormatError,
    EngineError,
    EngineLoad,
    EngineRequest,
    Finish,
    FinishReason,
)
from inference_svc.engine.stream import TokenStream
from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.backends import open_backend, open_checkpoints
from inference_svc.engine.torch.constrained import GrammarCompiler
from inference_svc.engine.torch.core import EngineCore, Event
from inference_svc.engine.torch.format_trial import FormatTrials
from inference_svc.engine.torch.metrics import EngineMetrics
from inference_svc.engine.torch.model_runner import ModelRunner
from inference_svc.engine.torch.precision import precision_of
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.speculation import open_drafter
from inference_svc.engine.torch.streams import Streams
from inference_svc.engine.torch.threads import engine_thread_count
from inference_svc.engine.torch.transcript import DIGIT_COUNT, Limits, open_writer
from inference_svc.model_folder import ModelFolder

if TYPE_CHECKING:
    from inference_svc.engine.torch.constrained import Constraint

log = structlog.get_logger()

# Waking the event loop for each token of a fast model costs it and the kernels more than the token.
DELIVERY_INTERVAL_S = 0.004

# Threads that compile what passed its trial.
COMPILER_COUNT = 2

Kind = Literal["auto", "f32", "bf16", "int8"]

# Tokens of a step, by back end: more lets prompts through a little faster, and the answers that run
# beside them wait longer for each token. On a CPU 256 cost no throughput against 512 and 1024.
STEP_TOKEN_COUNT_MAX, STEP_TOKEN_COUNT_MAX_CUDA = 256, 2048
# A step gives the interpreter's lock up while the model computes, and wants it back from a busy
# event loop: with Python's 5 ms, one sequence got 45 tokens a second beside one, with this 528.
SWITCH_INTERVAL_S = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """How the engine runs; ranges and meanings as in `settings`."""

    kv_cache_bytes: int
    queue_depth_max: int
    running_count_max: int
    step_token_count_max: int = 0
    wait_s_max: float = 10.0
    kv_block_count: int = 0
    thread_count: int = 0
    backend: Literal["auto", "kernels", "torch", "cuda"] = "auto"
    weights: Kind = "auto"
    kv: Kind = "auto"
    speculation: Literal["off", "ngram", "draft"] = "off"
    speculation_model: str = ""
    speculation_token_count_max: int = 8
    speculation_batch_max: int = 8
    transcript_file: Path | None = None


class TorchEngine:
    """An `Engine` with a thread of its own."""

    name = "torch"
    # Until it was started:
    draws_by_position, weights_digest, precision = False, "", ""
    binds_calls = True

    def __init__(self, model: ModelFolder, options: TorchOptions) -> None:
        self._model, self._options = model, options
        self._arrivals = itertools.count()
        self._streams = Streams(options.queue_depth_max, options.running_count_max)
        self._grammars, self._trials = GrammarCompiler(model), FormatTrials(model)
        # Threads of its own: whatever compiles, the spool and others still find one.
        self._compilers = ThreadPoolExecutor(COMPILER_COUNT, "grammar")
        self._compiling: dict[Sequence, asyncio.Task[None]] = {}
        self._inbox: queue.SimpleQueue[tuple[str, Sequence | None]] = queue.SimpleQueue()
        self._undelivered: list[Event] = []  # the engine's thread only, as `_delivered_s`
        self._delivered_s = 0.0
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Loads the model in the engine's thread. Raises EngineError when it cannot be served."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._main, args=(ready,), name="engine", daemon=True
        )
        self._thread.start()
        await ready

    async def stop(self) -> None:
        """Cancels what runs and ends the thread."""
        for sequence in list(self._compiling):
            self._cancel(sequence)
        self._inbox.put(("stop", None))
        await self._trials.close()
        self._compilers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # lets the last events in

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request; what its response format needs is compiled first, in a worker thread.

        Raises:
            QueueFullError, RequestTooLargeError, DeadlineUnreachableError: as in `Engine.submit`.
        """
        answer = AnswerState(request.stop, self._model.vocabulary)
        answer.replay(request.emitted_token_ids)
        if answer.finish is not None:
            stream = TokenStream(len(request.emitted_token_ids), lambda: None)
            stream.end(answer.finish)
            return stream
        if self.failed.is_set():
            raise EngineError("The engine has failed and is being restarted; use another node.")
        self._streams.check(request, self._core.rates)
        arrived_s = round(time.monotonic(), DIGIT_COUNT)
        sequence = Sequence(request, answer, next(self._arrivals), arrived_s)
        stream = self._streams.open(sequence, lambda: self._cancel(sequence))
        if request.response_format is None:
            self._inbox.put(("add", sequence))
        else:
            self._compiling[sequence] = self._loop.create_task(self._constrain(sequence))
        return stream

    def load(self) -> EngineLoad:
        """The load after the last step."""
        return self._streams.load

    @property
    def metrics(self) -> EngineMetrics:
        """What the engine counts, once it was started."""
        return self._core.metrics

    # ---- on the loop's thread

    async def _constrain(self, sequence: Sequence) -> None:
        """Gives a sequence its grammar, then to the engine's thread."""
        error, request = None, sequence.request
        assert request.response_format is not None
        try:
            await self._trials.passed(request.response_format, request.cache_salt or request.group)
            sequence.constraint = await self._loop.run_in_executor(
                self._compilers, self._constraint, request
            )
        except EngineError as caught:
            error = caught
        except Exception as caught:  # the library failed: this request's fault, or ours
            log.error("grammar_failed", error=repr(caught))
            error = BadFormatError("The response format cannot be compiled; simplify it.")
        del self._compiling[sequence]
        if error is not None:
            self._streams.deliver([Event(sequence, 0, 0, error=error)], self._streams.load)
        else:
            self._inbox.put(("add", sequence))

    def _constraint(self, request: EngineRequest) -> "Constraint":
        assert request.response_format is not None
        grammar = self._grammars.compile(request.response_format)
        return grammar.constraint(request.emitted_token_ids)

    def _cancel(self, sequence: Sequence) -> None:
        if (task := self._compiling.pop(sequence, None)) is not None:
            task.cancel()
            event = Event(sequence, 0, 0, finish=Finish(FinishReason.CANCELLED))
            self._streams.deliver([event], self._streams.load)
        else:
            self._inbox.put(("cancel", sequence))

    def _give_up(self, error: EngineError) -> None:
        self._streams.give_up(error)
        self.failed.set()

    # ---- on the engine's thread

    def _main(self, ready: "asyncio.Future[None]") -> None:
        with ExitStack() as opened:
            try:
                self._core = self._make_core(opened)
            except Exception as error:  # handed to who waits for the start
                failure = error if isinstance(error, EngineError) else EngineError(f"{error!r}")
                self._post(ready.set_exception, failure)
                return
            self._streams.load = self._core.load()
            self._post(ready.set_result, None)
            try:
                while (events := self._take()) is not None:
                    self._tell(events + self._core.step())
            except Exception as error:  # a fault of ours: nobody may hang on a thread that is gone
                log.critical("engine_failed", error=repr(error))
                self._post(self._give_up, EngineError(f"the engine failed: {error!r}"))

    def _make_core(self, opened: ExitStack) -> EngineCore:
        options = self._options
        thread_count = options.thread_count or engine_thread_count()
        backend = self._open_backend(thread_count)
        opened.callback(backend.close)
        backend.allocate(
            options.kv_block_count or max(1, options.kv_cache_bytes // backend.block_bytes)
        )
        drafter = open_drafter(
            options.speculation,
            self._model,
            draft_model=options.speculation_model,
            token_count_max=options.speculation_token_count_max,
            batch_max=options.speculation_batch_max,
            thread_count=thread_count,
        )
        if drafter is not None:
            opened.callback(drafter.close)
        metrics = EngineMetrics(self._model.id)
        metrics.register()
        opened.callback(metrics.unregister)
        on_gpu = backend.name == "cuda"
        limits = Limits(
            backend.block_count,
            options.step_token_count_max
            or (STEP_TOKEN_COUNT_MAX_CUDA if on_gpu else STEP_TOKEN_COUNT_MAX),
            options.running_count_max,
            options.wait_s_max,
        )
        return EngineCore(
            ModelRunner(backend),
            limits,
            queue_depth_max=options.queue_depth_max,
            metrics=metrics,
            clock=time.monotonic,
            drafter=drafter,
            write_transcript=open_writer(options.transcript_file, opened),
        )

    def _open_backend(self, thread_count: int) -> Backend:
        options, checkpoints = self._options, open_checkpoints(self._model)
        with ThreadPoolExecutor(1, "digest") as beside:  # both read the files; one keeps them warm
            digest = beside.submit(checkpoints.digest)
            backend = open_backend(
                self._model,
                backend=options.backend,
                weights=options.weights,
                kv=options.kv,
                thread_count=thread_count,
                checkpoints=checkpoints,
            )
            self.weights_digest = digest.result()
        self.draws_by_position = backend.is_batch_invariant
        self.precision = precision_of(backend, self._model)
        return backend

    def _tell(self, events: list[Event]) -> None:
        """Hands events to the loop; further tokens of answers that go on wait for company."""
        self._undelivered += events
        now_s = time.monotonic()
        due = now_s - self._delivered_s >= DELIVERY_INTERVAL_S or not self._core.busy
        if due or not all(event.continues for event in events):
            self._post(self._streams.deliver, self._undelivered, self._core.load())
            self._undelivered, self._delivered_s = [], now_s

    def _post(self, call: "Callable[..., object]", *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop has ended: nobody listens
            log.debug("engine_event_unheard")

    def _take(self) -> list[Event] | None:
        """What came in: waits while there is nothing to compute; None: the engine ends."""
        events: list[Event] = []
        while True:
            try:
                word, sequence = self._inbox.get(block=not (self._core.busy or events))
            except queue.Empty:
                return events
            if sequence is None:
                self._tell(self._core.cancel_all())
                return None
            if word == "add":
                self._core.add(sequence)
            elif (event := self._core.cancel(sequence)) is not None:
                events.append(event)
