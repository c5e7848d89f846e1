"""What waits for a model in this process: one queue, one thread.

    ask ──> waiting, by owner ──> batch ──> the thread ──> each one's future
                                  └ the limit runs from here

The owners (accounts) take turns: however much one of them asks, another waits for one batch more.

Who asks waits as long as it takes; whoever may not wait that long gives up by cancelling, and what
was given up is dropped before it reaches the model. A batch that is overdue fails what is in it and
nothing else: the thread that hangs is left to itself, and the next batch gets a new one.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from prometheus_client import Gauge

from safety_svc.backends.base import BackendError
from safety_svc.backends.fair import FairQueue
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
    """Asks a model in batches, the owners in turn; make it where a loop runs.

    Args:
        backend: the model's name.
        what: "look" or "conversation".
        answer: asks the model, in the thread; one answer for each that is asked.
        size: of what is asked.
        batch_count_max, batch_size_max: how many are asked at once, and how large they are
            together, if they are several.
        limit_s: seconds that the model may take for a batch.
    """

    def __init__(
        self,
        backend: str,
        what: str,
        answer: Callable[[Sequence[Asked]], Sequence[Answer]],
        *,
        size: Callable[[Asked], int],
        batch_count_max: int,
        batch_size_max: int,
        limit_s: float,
    ) -> None:
        self._backend, self._what, self._answer = backend, what, answer
        self._size = size
        self._batch_count_max, self._batch_size_max = batch_count_max, batch_size_max
        self._watch = Watch(backend, limit_s)
        self._waiting: FairQueue[tuple[Asked, asyncio.Future[Answer]]] = FairQueue()
        self._working: asyncio.Task[None] | None = None
        self._thread = self._new_thread()
        self._hanging: set[Future[Sequence[Answer]]] = set()
        _waiting.labels(backend, what).set_function(self._waiting.__len__)
        _hanging.labels(backend, what).set_function(self._hanging.__len__)

    async def ask(self, several: Sequence[Asked], owner: str) -> list[Answer]:
        """The model's answers, one for each; raises BackendError.

        When the caller is cancelled, or one of them fails, the others do not reach the model.
        """
        loop = asyncio.get_running_loop()
        answered: list[asyncio.Future[Answer]] = [loop.create_future() for _ in several]
        for one in zip(several, answered, strict=True):
            self._waiting.put(owner, one)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        try:
            return await asyncio.gather(*answered)
        finally:
            for future in answered:
                future.cancel()

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
        """The next that wait, without those who gave up."""
        batch: list[tuple[Asked, asyncio.Future[Answer]]] = []
        room = self._batch_size_max
        while self._waiting and len(batch) < self._batch_count_max:
            asked, answered = self._waiting.peek()
            if not answered.done():
                room -= self._size(asked)
                if batch and room < 0:
                    break
                batch.append((asked, answered))
            self._waiting.get()
        return batch

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
