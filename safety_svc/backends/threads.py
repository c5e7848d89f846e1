"""A model in this process, asked by everybody at once.

Looks at streamed answers gather while the model works, and go to it together: one batch costs far
less than its texts one by one. Conversations have a thread of their own, so that a long prompt does
not hold up the streams.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from safety_svc.backends.base import BackendError, Model
from safety_svc.detectors.base import Audience, Finding, PromptFinding, Turn

BATCH_TEXT_COUNT_MAX = 64
WAITING_TEXT_COUNT_MAX = 4_096
WAITING_CONVERSATION_COUNT_MAX = 256

T = TypeVar("T")
_Asked = tuple[str, Audience, "asyncio.Future[Sequence[Finding]]"]


class ThreadBackend:
    """Asks `model` in worker threads; make it where a loop runs."""

    def __init__(self, model: Model, stride_min: int = 1) -> None:
        self.name, self.digest, self.stride_min = model.name, model.digest, stride_min
        self._model = model
        self._streams = ThreadPoolExecutor(1, "classify-streams")
        self._prompts = ThreadPoolExecutor(1, "classify-prompts")
        self._waiting: list[_Asked] = []
        self._batching: asyncio.Task[None] | None = None
        self._conversation_count = 0

    async def inspect(self, text: str, audience: Audience) -> Sequence[Finding]:
        """See `Backend.inspect`."""
        if len(self._waiting) >= WAITING_TEXT_COUNT_MAX:
            raise BackendError(f"{WAITING_TEXT_COUNT_MAX} texts wait for {self.name}")
        found: asyncio.Future[Sequence[Finding]] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, audience, found))
        if self._batching is None or self._batching.done():
            self._batching = asyncio.create_task(self._batches())
        return await found

    async def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """See `Backend.conversation`."""
        if self._conversation_count >= WAITING_CONVERSATION_COUNT_MAX:
            raise BackendError(f"{WAITING_CONVERSATION_COUNT_MAX} prompts wait for {self.name}")
        self._conversation_count += 1
        try:
            return await self._in(self._prompts, lambda: self._model.conversation(turns))
        finally:
            self._conversation_count -= 1

    async def close(self) -> None:
        """See `Backend.close`."""
        if self._batching:
            self._batching.cancel()
            await asyncio.wait([self._batching])
        self._streams.shutdown(wait=False, cancel_futures=True)
        self._prompts.shutdown(wait=False, cancel_futures=True)

    async def _batches(self) -> None:
        """Works until nothing waits."""
        # Who asks within this turn of the loop still gets into the first batch.
        await asyncio.sleep(0)
        while self._waiting:
            audience = self._waiting[0][1]
            batch = [one for one in self._waiting if one[1] is audience][:BATCH_TEXT_COUNT_MAX]
            taken = set(map(id, batch))
            self._waiting = [one for one in self._waiting if id(one) not in taken]
            await self._answer([one for one in batch if not one[2].done()], audience)

    async def _answer(self, batch: Sequence[_Asked], audience: Audience) -> None:
        if not batch:
            return
        texts = [text for text, _, _ in batch]
        try:
            found = await self._in(self._streams, lambda: self._model.inspect_many(texts, audience))
        except BackendError as error:
            for _, _, future in batch:
                if not future.done():
                    future.set_exception(BackendError(str(error)))
            return
        for (_, _, future), findings in zip(batch, found, strict=True):
            if not future.done():
                future.set_result(findings)

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except Exception as error:  # whatever a model raises, nothing was judged
            raise BackendError(f"{self.name}: {type(error).__name__}") from error
