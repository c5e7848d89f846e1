"""An engine with a timing model in the place of a network, for load, chaos and mesh tests.

Requests are queued, admitted by KV blocks, and end, exactly as on a real engine; the text is
deterministic. With `token_interval_ms` 0 it needs no time: each reader is handed a batch of tokens
whenever it comes for more. Otherwise one task hands every running request what is due by the clock.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import (
    BLOCK_TOKEN_COUNT,
    BadFormatError,
    EngineLoad,
    EngineRequest,
    Finish,
    FinishReason,
    QueueFullError,
    RequestTooLargeError,
    TokenLogprobs,
)
from inference_svc.engine.script import make_script, script_digest, script_key
from inference_svc.engine.stream import TokenStream
from inference_svc.engine.torch.block_manager import BlockManager, prefix_hashes
from inference_svc.engine.vocabulary import Vocabulary

TICK_S_MIN = 0.002  # hand-overs are not more frequent than this, however short the interval
# A higher priority overtakes who came less than this before it, so that the lower cannot starve.
PRIORITY_STEP_S = 10.0


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing model; 0 means that it needs no time."""

    prefill_tokens_per_s: float = 0.0
    token_interval_ms: float = 0.0
    batch_token_count: int = 32


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """How long answers are when nothing else ends them, in tokens (the last is end-of-sequence)."""

    token_count_min: int = 24
    token_count_max: int = 160
    ignore_eos: bool = False

    def __str__(self) -> str:
        if self.ignore_eos:
            return "unlimited"
        return f"{self.token_count_min}-{self.token_count_max}"


class _Running:
    """One request and where it stands."""

    def __init__(self, request: EngineRequest, answer: AnswerState, script_offset: int) -> None:
        self.request, self.answer, self.script_offset = request, answer, script_offset
        self.stream: TokenStream
        self.blocks: list[int] = []
        self.length = 0
        self.due_s = 0.0  # when the next token is due

    @property
    def over(self) -> bool:
        return self.stream.done


class SimulatedEngine:
    """An `Engine` of this process' event loop.

    Attributes:
        precision: the lengths of its answers and a digest of its script; it has no weights.
    """

    name = "simulated"
    draws_by_position = True
    weights_digest = ""

    def __init__(
        self,
        vocabulary: Vocabulary,
        eos_token_ids: frozenset[int],
        *,
        timing: Timing,
        length: AnswerLength,
        block_count: int,
        queue_depth_max: int,
        running_count_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocabulary, self._timing, self._length, self._clock = (
            vocabulary,
            timing,
            length,
            clock,
        )
        self._eos_id = min(eos_token_ids, default=None)
        self._blocks = BlockManager(block_count)
        self._queue_depth_max, self._running_count_max = queue_depth_max, running_count_max
        self._script = make_script(vocabulary) or [0]
        self.binds_calls = False
        self.precision = f"script {length} {script_digest(self._script, eos_token_ids)}"
        self._waiting: list[tuple[float, int, _Running]] = []  # heap: (rank in s, arrival, request)
        self._waiting_count = 0
        self._running: set[_Running] = set()
        self._arrivals = itertools.count()
        self._work = asyncio.Event()
        self.failed = asyncio.Event()  # never set
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the clock's task, where there is a clock."""
        if self._timing.token_interval_ms or self._timing.prefill_tokens_per_s:
            self._ticker = asyncio.create_task(self._tick_forever())

    async def stop(self) -> None:
        """Cancels everything."""
        for state in [*self._running, *(entry[2] for entry in self._waiting)]:
            self._cancel(state)
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker

    def submit(self, request: EngineRequest) -> TokenStream:
        """Queues a request; starts it at once when there is room.

        Raises:
            QueueFullError, RequestTooLargeError, BadFormatError: as in `Engine.submit`.
        """
        if request.response_format is not None:
            raise BadFormatError("The simulated engine cannot hold an answer to a format.")
        if request.block_count_max > self._blocks.block_count:
            raise RequestTooLargeError(request.block_count_max, self._blocks.block_count)
        state = self._stand(request)
        if state.answer.finish is not None:
            state.stream.end(state.answer.finish)
            return state.stream
        rank_s = self._clock() - PRIORITY_STEP_S * request.priority
        heapq.heappush(self._waiting, (rank_s, next(self._arrivals), state))
        self._waiting_count += 1
        self._admit()
        if state not in self._running and self._waiting_count > self._queue_depth_max:
            self._cancel(state)
            raise QueueFullError(self._queue_depth_max)
        return state.stream

    def _stand(self, request: EngineRequest) -> _Running:
        answer = AnswerState(request.stop, self._vocabulary)
        answer.replay(request.emitted_token_ids)
        key = script_key(request.prompt_token_ids, request.sampling.seed)
        state = _Running(request, answer, key % len(self._script))
        span = max(1, self._length.token_count_max - self._length.token_count_min + 1)
        state.length = self._length.token_count_min + (key >> 32) % span
        if self._eos_id not in request.stop.token_ids or self._length.ignore_eos:
            state.length = request.stop.max_token_count + 1  # no end of its own
        source = None if self._timed else lambda: self._hand_over(state)
        state.stream = TokenStream(
            len(request.emitted_token_ids), lambda: self._cancel(state), source
        )
        return state

    @property
    def _timed(self) -> bool:
        return bool(self._timing.token_interval_ms or self._timing.prefill_tokens_per_s)

    def load(self) -> EngineLoad:
        """The load now."""
        return EngineLoad(
            waiting_count=self._waiting_count,
            running_count=len(self._running),
            queue_depth_max=self._queue_depth_max,
            kv_block_count=self._blocks.block_count,
            kv_block_free_count=self._blocks.free_count,
            cached_prefix_hashes=self._blocks.recent_prefixes(),
        )

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._running_count_max:
            state = self._waiting[0][2]
            if state.over:  # cancelled while it waited
                heapq.heappop(self._waiting)
                continue
            if not self._give_blocks(state):
                return
            heapq.heappop(self._waiting)
            self._waiting_count -= 1
            self._running.add(state)
            prefill_s = 0.0
            if rate := self._timing.prefill_tokens_per_s:
                prefill_s = (state.stream.counts.prefilled - state.stream.counts.cached) / rate
            state.due_s = self._clock() + prefill_s
            self._work.set()
            state.stream.poke()

    def _give_blocks(self, state: _Running) -> bool:
        prompt = state.request.prompt_token_ids
        hashes = prefix_hashes(prompt, state.request.cache_salt)
        # At least one token of the prompt is always computed: its logits are needed.
        hits = self._blocks.match(hashes[: (len(prompt) - 1) // BLOCK_TOKEN_COUNT])
        adopted = self._blocks.adopt(hashes[:hits])
        fresh = self._blocks.allocate(state.request.block_count_max - hits)
        if fresh is None:
            self._blocks.release(adopted)
            return False
        state.blocks = adopted + fresh
        for block, digest in zip(state.blocks, hashes, strict=False):
            self._blocks.register(block, digest)
        counts = state.stream.counts
        counts.cached, counts.prefilled = hits * BLOCK_TOKEN_COUNT, len(prompt)
        return True

    def _hand_over(self, state: _Running, count: int = 0) -> None:
        if state not in self._running:
            return
        count = count or self._timing.batch_token_count
        position = state.answer.token_count
        count = min(count, state.request.stop.max_token_count - position)
        ids, text = state.answer.push_run(self._tokens(state, position, count))
        logprobs: tuple[TokenLogprobs, ...] = ()
        if state.request.logprobs or state.request.top_logprob_count:
            logprobs = tuple(TokenLogprobs((token_id, 0.0)) for token_id in ids)
        state.stream.feed(ids, text, logprobs)
        if state.answer.finish is not None:
            self._close(state, state.answer.finish)

    def _tokens(self, state: _Running, position: int, count: int) -> list[int]:
        """The script's tokens at [position, position + count), the end of the answer included."""
        script = self._script
        begin = (state.script_offset + position) % len(script)
        ids = script[begin : begin + count]
        while len(ids) < count:
            ids = ids + script[: count - len(ids)]
        last = state.length - 1 - position
        if self._eos_id is not None and last < count:
            ids = [*ids[: max(last, 0)], self._eos_id]
        return ids

    def _cancel(self, state: _Running) -> None:
        if state.over:
            return
        if state not in self._running:
            self._waiting_count -= 1
        self._close(state, Finish(FinishReason.CANCELLED))
        if len(self._waiting) > 2 * self._waiting_count + self._queue_depth_max:
            self._waiting = [entry for entry in self._waiting if not entry[2].over]
            heapq.heapify(self._waiting)

    def _close(self, state: _Running, finish: Finish) -> None:
        self._blocks.release(state.blocks)
        state.blocks = []
        self._running.discard(state)
        state.stream.end(finish)
        self._admit()

    async def _tick_forever(self) -> None:
        interval_s = self._timing.token_interval_ms / 1000
        while True:
            self._work.clear()
            self._tick(self._clock(), interval_s)
            due_s = min((state.due_s for state in self._running), default=None)
            wait_s = None if due_s is None else max(due_s - self._clock(), TICK_S_MIN)
            with suppress(TimeoutError):  # woken early by a newcomer
                await asyncio.wait_for(self._work.wait(), wait_s)

    def _tick(self, now_s: float, interval_s: float) -> None:
        """Hands every running request the tokens that are due at `now_s`."""
        for state in list(self._running):
            late_s = now_s - state.due_s
            if late_s < 0:
                continue
            count = self._timing.batch_token_count
            if interval_s:
                count = int(late_s / interval_s) + 1
                state.due_s += count * interval_s
            self._hand_over(state, count)
