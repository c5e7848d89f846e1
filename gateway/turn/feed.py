"""From the node to safety: as much as arrived in one message, at most one unanswered at a time.

Each message costs every hop some 50 µs of CPU, whatever it holds. While safety has not answered the
last one, what the node sends is gathered (Nagle's algorithm, RFC 896), so that a busy system sends
fewer and larger messages. A system that is not busy answers long before more text arrives.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway import errors
from gateway.errors import public
from gateway.turn.answer import Answer
from gateway.turn.domain import Frame
from gateway.upstreams.reply_screen import ReplyScreen
from mesh.chassis.cancellation import is_cancelled

# Safety may have nothing to say to a message, when it holds text back.
ANSWER_WAIT_S = 0.01
# Text that waits between node and client before the node is read no further. Far above what safety
# holds back (some hundred tokens), far below what would matter with a thousand slow readers.
WAITING_BYTES_MAX = 256 << 10


class Feed:
    """Reads one answer's frames, keeps the accounts, and feeds the screening."""

    def __init__(
        self, answer: Answer, frames: AsyncGenerator[Frame, None], screen: ReplyScreen
    ) -> None:
        self._answer, self._frames, self._screen = answer, frames, screen
        # It is known whether a node works at it.
        self.accepted = asyncio.Event()
        self.is_accepted = False
        self.failure: Exception | None = None
        self._arrived = asyncio.Event()
        self._answered = asyncio.Event()
        self._texts: list[str] = []
        self._token_count = 0
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether the node has nothing more to send."""
        return self._ended

    def answered(self) -> None:
        """Notes that safety decided something."""
        self._answered.set()

    async def run(self) -> None:
        """Feeds to the end, and closes the frames on every way out.

        A failure of the nodes is left in `failure`; what they had sent goes on to the client first.
        """
        sending = asyncio.create_task(self._send())
        try:
            await self._read()
            if self.is_accepted:
                self._ended = True
                self._arrived.set()
                self._answered.set()
                await sending
        finally:
            sending.cancel()
            self.accepted.set()

    async def _read(self) -> None:
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    if not self.is_accepted:
                        self.is_accepted = True
                        self.accepted.set()
                    await self._take(frame)
        except Exception as error:
            self.failure = error
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # Of a call below. To end silently would leave the turn waiting.
            self.failure = public(errors.INTERNAL_ERROR, "A fault of ours; try again shortly.")

    async def _take(self, frame: Frame) -> None:
        self._answer.receive(frame)
        self._token_count += len(frame.token_ids)
        if frame.text:
            self._texts.append(frame.text)
            self._arrived.set()
        while self._answer.unreleased_byte_count > WAITING_BYTES_MAX:
            self._answered.clear()
            await self._answered.wait()

    async def _send(self) -> None:
        await self._screen.open()  # while the node accepts and prefills
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._answered.clear()
            if self._texts:
                text, count = "".join(self._texts), self._token_count
                self._texts.clear()
                self._token_count = 0
                await self._screen.add(text, count)
            if self._ended and not self._texts:
                return await self._screen.end()
            await self._wait_for_answer()

    async def _wait_for_answer(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._answered.wait()
        except TimeoutError:
            return
