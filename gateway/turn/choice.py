"""One answer while it is made: generate ‖ screen, published piece by piece.

One task feeds what the node sends to safety (`feed.py`), the other reads safety's clearances and
publishes what may leave; no queue lies between them. When the readers are slow the second stops,
then the first at its limit, and then the node coalesces.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType

from gateway import metrics
from gateway.turn.answer import Answer
from gateway.turn.domain import ChoiceFinished, Frame, TextDelta
from gateway.turn.feed import Feed
from gateway.upstreams.reply_screen import ReplyScreen

# Takes an event in the same step in which the answer's accounts changed; awaited for room.
Publish = Callable[[TextDelta | ChoiceFinished], None]
Room = Callable[[], Awaitable[None]]


class Choice:
    """An answer being generated and screened; leaving the context cancels both."""

    def __init__(
        self, answer: Answer, frames: AsyncGenerator[Frame, None], screen: ReplyScreen
    ) -> None:
        self._answer, self._screen = answer, screen
        self._feed = Feed(answer, frames, screen)

    async def __aenter__(self) -> "Choice":
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
        if running and kind is asyncio.CancelledError:
            metrics.CANCEL_SECONDS.observe(time.perf_counter() - begin)

    @property
    def is_fed(self) -> bool:
        """Whether nothing more comes from the node: what is missing is safety's to decide."""
        return self._feed.is_over or self._feeding.done()

    async def accepted(self) -> None:
        """Returns when a node works at it.

        Raises:
            MeshError: none would.
        """
        await self._feed.accepted.wait()
        if self._feed.failure and not self._feed.is_accepted:
            raise self._feed.failure

    async def run(self, publish: Publish, room: Room) -> None:
        """Publishes what may be shown, to the end.

        Raises:
            MeshError: node or safety failed; what was published stays valid.
        """
        answer = self._answer
        async with aclosing(self._screen.clearances()) as clearances:
            async for clearance in clearances:
                if block := clearance.blocked:
                    self._feeding.cancel()
                    delta = answer.block(block.category, block.offset, block.safe_text)
                    if delta:
                        publish(delta)
                    break
                cleared, masks = clearance.cleared, clearance.masks
                offset = clearance.release_up_to_offset
                delta = answer.clear(masks) if cleared else answer.release(offset, masks)
                if delta:
                    publish(delta)
                self._feed.answered()
                if cleared and self._feed.failure:
                    raise self._feed.failure
                await room()
        publish(answer.finish())
