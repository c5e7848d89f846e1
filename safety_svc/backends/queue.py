"""What waits for a model in this process: one queue, one thread.

    ask ──> waiting ──> batch ──> the thread ──> each one's future
                        └ the limit runs from here

Who asks waits as long as it takes; whoever may not wait that long gives up by cancelling, and what
was given up is dropped before it reaches the model. A batch that is overdue fails what is in it and
nothing else: the thread that hangs is left to itself, and the next batch gets a new one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from prometheus_client import Gauge

from safety_svc.backends.base import BackendError
from safety_svc.backends.watched import OverdueError, Watch

# Threads that hang. With so many of them the model is broken: what is asked fails at once.
HANGING_THREAD_COUNT_MAX = 4

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_waiting = Gauge(
    "chatmesh_safety_backend_waiting",
    "Looks and conversations that wait for the classifier.",
    ["backend", "what"],
)
_hanging = Gauge(
    "chatmesh_safety_backend_hanging_threads",
    "Threads of the classifier that work at an overdue batch.",
    ["backend", "what"],
)


class ModelQueue(Generic[Asked, Answer]):
    """Asks a model in batches, in the order of asking; make it where a loop runs.

    Args:
        backend: the model's name.
        what: "look" or "conversation".
        answer: asks the model, in the thread; one answer for each that is asked.
        batch_count_max: how many are asked at once.
        limit_s: seconds that the model may take for a batch.
    """

    def __init__(
        self,
        backend: str,
        what: str,
        answer: Callable[[Sequence[Asked]], Sequence[Answer]],
        *,
        batch_count_max: int,
        limit_s: float,
    ) -> None:
        self._backend, self._what, self._answer = backend, what, answer
        self._batch_count_max = batch_count_max
        self._watch = Watch(backend, limit_s)
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._thread = self._new_thread()
        self._hanging: set[Future[Sequence[Answer]]] = set()
        _waiting.labels(backend, what).set_function(self._waiting.__len__)
        _hanging.labels(backend, what).set_function(self._hanging.__len__)

    @property
    def waiting_count(self) -> int:
        """How many wait for their batch."""
        return len(self._waiting)

    async def ask(self, asked: Asked) -> Answer:
        """The model's answer; raises BackendError."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answered

    async def close(self) -> None:
        """Ends it; a batch in the thread is finished by itself."""
        if self._working:
            self._working.cancel()
            await asyncio.wait([self._working])
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        """Works until nothing waits."""
        # Who asks within this turn of the loop still gets into the first batch.
        await asyncio.sleep(0)
        while self._waiting:
            batch = self._next_batch()
            if not batch:
                continue
            try:
                answers = await self._asked([asked for asked, _ in batch])
            except BackendError as error:
                for _, answered in batch:
                    if not answered.done():
                        answered.set_exception(BackendError(str(error)))
                continue
            for (_, answered), answer in zip(batch, answers, strict=True):
                if not answered.done():
                    answered.set_result(answer)

    def _next_batch(self) -> list[tuple[Asked, "asyncio.Future[Answer]"]]:
        """The first that wait, without those who gave up."""
        count = min(len(self._waiting), self._batch_count_max)
        taken = [self._waiting.popleft() for _ in range(count)]
        return [one for one in taken if not one[1].done()]

    async def _asked(self, batch: Sequence[Asked]) -> Sequence[Answer]:
        if len(self._hanging) >= HANGING_THREAD_COUNT_MAX:
            raise BackendError(f"{self._backend}: {HANGING_THREAD_COUNT_MAX} threads hang")
        future = self._thread.submit(self._answer, batch)
        try:
            return await self._watch.over(asyncio.wrap_future(future), self._what, len(batch))
        except OverdueError:
            self._hanging.add(future)
            future.add_done_callback(self._hanging.discard)
            self._thread.shutdown(wait=False)
            self._thread = self._new_thread()
            raise

    def _new_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, f"classify-{self._what}")
