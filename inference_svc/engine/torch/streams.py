"""The event loop's side of the torch engine: who reads which sequence, and who has not begun."""

from collections.abc import Callable, Iterable

from inference_svc.engine.protocol import (
    DeadlineUnreachableError,
    EngineError,
    EngineLoad,
    EngineRequest,
    QueueFullError,
    RequestTooLargeError,
)
from inference_svc.engine.stream import TokenStream
from inference_svc.engine.torch.core import Event
from inference_svc.engine.torch.forecast import Rates
from inference_svc.engine.torch.sequence import Sequence


class Streams:
    """The open streams. The loop's thread only.

    Attributes:
        load: as of the last step that was heard of.
    """

    def __init__(self, queue_depth_max: int, running_count_max: int) -> None:
        self._queue_depth_max, self._running_count_max = queue_depth_max, running_count_max
        self._streams: dict[Sequence, TokenStream] = {}
        self._unstarted: set[Sequence] = set()  # submitted, not seen running yet
        self.load = EngineLoad(0, 0, queue_depth_max, 0, 0)

    def check(self, request: EngineRequest, rates: Rates) -> None:
        """Raises QueueFullError, RequestTooLargeError, DeadlineUnreachableError."""
        if request.block_count_max > self.load.kv_block_count:
            raise RequestTooLargeError(request.block_count_max, self.load.kv_block_count)
        free_count = self._free_to_run()
        if len(self._unstarted) >= self._queue_depth_max + free_count:
            raise QueueFullError(self._queue_depth_max)
        if request.time_left_s is None:
            return
        ahead = [s for s in self._unstarted if s.request.priority >= request.priority]
        first_token_s = rates.first_token_s(
            len(request.prompt_token_ids) + len(request.emitted_token_ids),
            ahead_token_count=sum(len(s.token_ids) for s in ahead),
            ahead_count=max(len(ahead) + 1 - free_count, 0),
            running_count=self.load.running_count,
        )
        if first_token_s > request.time_left_s:
            raise DeadlineUnreachableError(request.time_left_s, first_token_s)

    def _free_to_run(self) -> int:
        """How many would not wait, as far as is known: none while others wait for blocks."""
        free = self._running_count_max - self.load.running_count
        return free if self.load.waiting_count == 0 else 0

    def open(self, sequence: Sequence, on_cancel: Callable[[], None]) -> TokenStream:
        """A stream for a sequence that will be computed."""
        stream = TokenStream(len(sequence.request.emitted_token_ids), on_cancel)
        self._streams[sequence] = stream
        self._unstarted.add(sequence)
        return stream

    def deliver(self, events: Iterable[Event], load: EngineLoad) -> None:
        """Hands on what a step did."""
        self.load = load
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

    def give_up(self, error: EngineError) -> None:
        """Nothing more will come."""
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        self._unstarted.clear()
