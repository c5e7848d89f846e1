"""One answer while it is made: generate ‖ screen, released piece by piece.

One task feeds what the node sends to safety (`feed.py`), the turn's own reads safety's clearances
and yields what may leave; no queue lies between them. When the client reads slowly the second
stops, then the first at its limit, and then the node coalesces.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import TracebackType

from gateway import metrics
from gateway.turn.answer import Answer
from gateway.turn.domain import ChoiceFinished, Delta, Frame
from gateway.turn.feed import Feed
from gateway.upstreams.reply_screen import ReplyScreen
from mesh.chassis.errors import MeshError

ChoiceEvent = Delta | ChoiceFinished
# Events of n > 1 answers that wait for the client.
MERGED_EVENT_COUNT_MAX = 8


class Choice:
    """An answer being generated and screened; leaving the context cancels both."""

    def __init__(
        self, answer: Answer, frames: AsyncGenerator[Frame, None], screen: ReplyScreen
    ) -> None:
        self._answer, self._screen = answer, screen
        self._feed = Feed(answer, frames, screen)

    async def __aenter__(self) -> "Choice":
        self._screen.begin()
        self._feeding = asyncio.create_task(self._feed.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        begin, running = time.perf_counter(), not self._feeding.done()
        self._screen.cancel()
        self._feeding.cancel()
        # Not awaited as such: a second cancellation of the turn must not leave it running.
        await asyncio.wait([self._feeding])
        if running and kind in (asyncio.CancelledError, GeneratorExit):
            metrics.CANCEL_SECONDS.observe(time.perf_counter() - begin)

    async def accepted(self) -> None:
        """Returns when a node works at it.

        Raises:
            MeshError: none would.
        """
        await self._feed.accepted.wait()
        if self._feed.failure and not self._feed.is_accepted:
            raise self._feed.failure

    async def events(self) -> AsyncGenerator[ChoiceEvent, None]:
        """What may be shown, to the end.

        Raises:
            MeshError: node or safety failed; what was yielded stays valid.
        """
        answer = self._answer
        async with aclosing(self._screen.clearances()) as clearances:
            async for clearance in clearances:
                if block := clearance.blocked:
                    self._feeding.cancel()
                    delta = answer.block(block.category, block.offset, block.safe_text)
                    if delta:
                        yield delta
                    break
                cleared, masks = clearance.cleared, clearance.masks
                offset = clearance.release_up_to_offset
                delta = answer.clear(masks) if cleared else answer.release(offset, masks)
                self._feed.answered()
                if delta:
                    yield delta
                if cleared and self._feed.failure:
                    raise self._feed.failure
        yield answer.finished


class Choices:
    """The n answers of a turn."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices

    async def accepted(self) -> None:
        """Returns when nodes work at all of them; raises MeshError when one is refused."""
        for choice in self._choices:
            await choice.accepted()

    def events(self) -> AsyncGenerator[ChoiceEvent, None]:
        """The events of all answers, each answer's in order."""
        if len(self._choices) == 1:
            return self._choices[0].events()
        return _merged([choice.events() for choice in self._choices])


@asynccontextmanager
async def choosing(choices: Sequence[Choice]) -> AsyncIterator[Choices]:
    """Runs the choices; leaving cancels what still runs."""
    async with AsyncExitStack() as stack:
        for choice in choices:
            await stack.enter_async_context(choice)
        yield Choices(choices)


async def _merged(
    streams: Sequence[AsyncGenerator[ChoiceEvent, None]],
) -> AsyncGenerator[ChoiceEvent, None]:
    queue: asyncio.Queue[ChoiceEvent | Exception | None] = asyncio.Queue(MERGED_EVENT_COUNT_MAX)

    async def drain(stream: AsyncGenerator[ChoiceEvent, None]) -> None:
        try:
            async with aclosing(stream):
                async for event in stream:
                    await queue.put(event)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(drain(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            event = await queue.get()
            if event is None:
                running -= 1
            elif isinstance(event, MeshError):
                raise event
            elif isinstance(event, Exception):
                raise RuntimeError("an answer failed") from event
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
