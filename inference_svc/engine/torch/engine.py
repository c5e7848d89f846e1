"""The torch engine: one thread computes, the event loop stays outside.

loop ──inbox──> thread:  take → schedule → run → sample → emit  ──call_soon──> TokenStream
"""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog
import torch

from inference_svc.engine.answer import Answer
from inference_svc.engine.protocol import (
    EngineError,
    EngineLoad,
    EngineRequest,
    Finish,
    FinishReason,
    QueueFullError,
    RequestTooLargeError,
    TokenLogprobs,
)
from inference_svc.engine.stream import TokenStream
from inference_svc.engine.torch.block_manager import BlockManager
from inference_svc.engine.torch.model_runner import ModelRunner
from inference_svc.engine.torch.sampler import Draw, sample
from inference_svc.engine.torch.scheduler import Chunk, Scheduler
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.threads import engine_thread_count
from inference_svc.model_folder import ModelFolder

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Event:
    """What one step did for one sequence."""

    sequence: Sequence
    cached_count: int
    prefilled_count: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    error: EngineError | None = None


class TorchEngine:
    """An `Engine` with a thread of its own."""

    name = "torch"

    def __init__(
        self,
        model: ModelFolder,
        *,
        kv_cache_bytes: int,
        queue_depth_max: int,
        running_count_max: int,
        step_token_count_max: int,
        block_count: int = 0,
        thread_count: int = 0,
    ) -> None:
        self._model = model
        self._kv_cache_bytes, self._block_count = kv_cache_bytes, block_count
        self._queue_depth_max = queue_depth_max
        self._running_count_max = running_count_max
        # Every running sequence decodes in every step: the budget has room for all of them.
        self._step_token_count_max = max(step_token_count_max, running_count_max)
        self._thread_count = thread_count or engine_thread_count()
        self._arrivals = itertools.count()
        self._streams: dict[Sequence, TokenStream] = {}  # the loop's
        self._unstarted: set[Sequence] = set()  # the loop's: submitted, not seen running yet
        self._inbox: queue.SimpleQueue[tuple[str, Sequence | None]] = queue.SimpleQueue()
        self._load = EngineLoad(0, 0, queue_depth_max, 0, 0)
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Loads the model in the engine's thread. Raises EngineError when it cannot be served."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._main, args=(ready,), name="engine", daemon=True
        )
        self._thread.start()
        await ready

    async def stop(self) -> None:
        """Cancels what runs and ends the thread."""
        self._inbox.put(("stop", None))
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # lets the last events in

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request.

        Raises:
            QueueFullError, RequestTooLargeError: as in `Engine.submit`.
        """
        if request.block_count_max > self._load.kv_block_count:
            raise RequestTooLargeError(request.block_count_max, self._load.kv_block_count)
        answer = Answer(request.stop, self._model.vocabulary)
        answer.replay(request.emitted_token_ids)
        sequence = Sequence(request, answer, next(self._arrivals))
        stream = TokenStream(
            len(request.emitted_token_ids), lambda: self._inbox.put(("cancel", sequence))
        )
        if answer.finish is not None:
            stream.end(answer.finish)
            return stream
        if self.failed.is_set():
            raise EngineError("The engine has failed and is being restarted; use another node.")
        if len(self._unstarted) >= self._queue_depth_max + self._free_to_run():
            raise QueueFullError(self._queue_depth_max)
        self._streams[sequence] = stream
        self._unstarted.add(sequence)
        self._inbox.put(("add", sequence))
        return stream

    def _free_to_run(self) -> int:
        """How many would not wait, as far as is known: none while others wait for blocks."""
        free = self._running_count_max - self._load.running_count
        return free if self._load.waiting_count == 0 else 0

    def load(self) -> EngineLoad:
        """The load after the last step."""
        return self._load

    # ---- on the loop's thread

    def _deliver(self, events: list[_Event], load: EngineLoad) -> None:
        self._load = load
        for event in events:
            stream = self._streams.get(event.sequence)
            if stream is None:
                continue
            self._unstarted.discard(event.sequence)
            stream.counts.cached = event.cached_count
            stream.counts.prefilled = event.prefilled_count
            if event.token_ids:
                stream.feed(event.token_ids, event.text, event.logprobs)
            if event.error is not None:
                stream.fail(event.error)
            elif event.finish is not None:
                stream.end(event.finish)
            if stream.done:
                del self._streams[event.sequence]

    def _give_up(self, error: EngineError) -> None:
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        self.failed.set()

    # ---- on the engine's thread

    def _main(self, ready: "asyncio.Future[None]") -> None:
        torch.set_num_threads(self._thread_count)
        try:
            self._runner = ModelRunner(self._model, self._kv_cache_bytes, self._block_count)
        except Exception as error:  # handed to who waits for the start
            told = error if isinstance(error, EngineError) else EngineError(f"{error!r}")
            self._post(ready.set_exception, told)
            return
        self._blocks = BlockManager(self._runner.block_count)
        self._scheduler = Scheduler(
            self._blocks,
            step_token_count_max=self._step_token_count_max,
            running_count_max=self._running_count_max,
        )
        self._load = self._load_now()
        self._post(ready.set_result, None)
        try:
            while (events := self._take()) is not None:
                events += self._step()
                self._post(self._deliver, events, self._load_now())
        except Exception as error:  # a fault of ours: nobody may hang on a thread that is gone
            log.critical("engine_failed", error=repr(error))
            self._post(self._give_up, EngineError(f"the engine failed: {error!r}"))

    def _post(self, call: "Callable[..., object]", *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop has ended: nobody listens
            log.debug("engine_event_unheard")

    def _take(self) -> list[_Event] | None:
        """What came in: waits while there is nothing to compute; None: the engine ends."""
        events: list[_Event] = []
        while True:
            try:
                word, sequence = self._inbox.get(block=not (self._scheduler.busy or events))
            except queue.Empty:
                return events
            if sequence is None:
                self._post(self._deliver, [self._cancel(s) for s in self._alive()], self._load)
                return None
            if word == "add":
                self._scheduler.add(sequence)
            elif sequence in self._scheduler:
                events.append(self._cancel(sequence))

    def _alive(self) -> list[Sequence]:
        return self._scheduler.sequences()

    def _step(self) -> list[_Event]:
        """schedule → run → sample → emit."""
        chunks = self._scheduler.plan()
        if not chunks:
            return []
        try:
            result = self._runner.step(chunks)
        except Exception as error:  # its requests fail, the engine goes on
            log.error("engine_step_failed", error=repr(error))
            return [self._fail(chunk.sequence, f"the step failed: {error!r}") for chunk in chunks]
        rows = iter(result.logits)
        events = []
        for chunk, sound in zip(chunks, result.sound, strict=True):
            logits = next(rows) if chunk.samples else None
            if not sound:
                events.append(self._fail(chunk.sequence, "the model computed no numbers (NaN)"))
                continue
            self._scheduler.commit(chunk)
            if logits is None:
                events.append(_event(chunk.sequence))
            else:
                events.append(self._sample(chunk, logits))
        return events

    def _sample(self, chunk: Chunk, logits: npt.NDArray[np.float32]) -> _Event:
        sequence, request = chunk.sequence, chunk.sequence.request
        draw = Draw(
            request.sampling,
            sequence.position,
            request.prompt_token_ids,
            sequence.token_ids[sequence.prompt_count :],
            request.logprobs,
            request.top_logprob_count,
        )
        try:
            token_id, logprobs = sample(logits, draw)
        except FloatingPointError as error:
            return self._fail(sequence, str(error))
        sequence.token_ids.append(token_id)
        text = sequence.answer.push(token_id)
        if sequence.answer.finish is not None:
            self._scheduler.remove(sequence)
        return _event(
            sequence,
            token_ids=(token_id,),
            text=text,
            logprobs=(logprobs,) if logprobs else (),
            finish=sequence.answer.finish,
        )

    def _cancel(self, sequence: Sequence) -> _Event:
        self._scheduler.remove(sequence)
        return _event(sequence, finish=Finish(FinishReason.CANCELLED))

    def _fail(self, sequence: Sequence, message: str) -> _Event:
        """Gives one request up; what it wrote into the cache must reach nobody else."""
        self._runner.wipe(self._blocks.owned_alone(sequence.blocks))
        self._scheduler.remove(sequence)
        return _event(sequence, error=EngineError(message))

    def _load_now(self) -> EngineLoad:
        return EngineLoad(
            waiting_count=self._scheduler.waiting_count,
            running_count=self._scheduler.running_count,
            queue_depth_max=self._queue_depth_max,
            kv_block_count=self._blocks.block_count,
            kv_block_free_count=self._blocks.free_count,
            cached_prefix_hashes=self._blocks.recent_prefixes(),
        )


def _event(
    sequence: Sequence,
    *,
    token_ids: tuple[int, ...] = (),
    text: str = "",
    logprobs: tuple[TokenLogprobs, ...] = (),
    finish: Finish | None = None,
    error: EngineError | None = None,
) -> _Event:
    return _Event(
        sequence,
        sequence.cached_count or 0,
        sequence.prefilled_count,
        token_ids,
        text,
        logprobs,
        finish,
        error,
    )
