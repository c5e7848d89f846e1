"""The four kinds of calls on a link: who writes, who reads, and how."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Generator
from typing import Any

import grpc

from mesh.chassis.link.calls import AHEAD_BYTES_MAX, REPLAY_BYTES_MAX, LinkCall


class _Requests(LinkCall):
    """A call whose caller writes."""

    _consumer: "asyncio.Task[None] | None" = None

    def begin(self, request: Any) -> None:
        """Sends what an iterator gives; without one the caller writes."""
        if request is None:
            return
        self._consumer = self._loop.create_task(self._consume(request))
        self.add_done_callback(self._stop_consuming)

    def _stop_consuming(self, _call: Any) -> None:
        if self._consumer is not None and self._consumer is not asyncio.current_task():
            self._consumer.cancel()

    async def write(self, request: Any) -> None:
        """Sends a request; waits while the server or the link is far behind.

        Raises:
            asyncio.InvalidStateError: the call is over, or `done_writing` was called.
            grpc.aio.AioRpcError: it failed meanwhile.
        """
        if self._end is not None or self._is_half_closed:
            raise asyncio.InvalidStateError("the call is over, or writing is done")
        self._put(request)
        if self._sent_bytes > REPLAY_BYTES_MAX:
            self._sent = None
        while self._end is None and self._attempt.queued_bytes > AHEAD_BYTES_MAX:
            await self._wait_as_owner()
        self._raise_failure()

    async def done_writing(self) -> None:
        """Says that there are no more requests; again: nothing."""
        if not self._is_half_closed:
            self._half_close()

    async def _consume(self, requests: Any) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # who reads hears of it
        except BaseException:
            self.cancel()
            raise


class _Response(LinkCall):
    """A call with one answer, to be awaited."""

    _answer: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._respond().__await__()

    async def _respond(self) -> Any:
        while self._end is None:
            await self._wait_as_owner()
        self._raise_failure()
        if self._answer is None:
            self._answer = await self._next()
        if self._answer is grpc.aio.EOF:
            code, empty = grpc.StatusCode.INTERNAL, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, empty, empty, details="The call has no answer.")
        return self._answer


class _Responses(LinkCall):
    """A call with any number of answers."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._next()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        """The next answer, or grpc.aio.EOF behind the last.

        Raises:
            grpc.aio.AioRpcError: the call failed.
        """
        return await self._next()


class UnaryUnary(_Response):
    """One request, one answer."""


class UnaryStream(_Responses):
    """One request, any number of answers."""


class StreamUnary(_Requests, _Response):
    """Any number of requests, one answer."""


class StreamStream(_Requests, _Responses):
    """Any number of both."""


KINDS = {
    "unary_unary": UnaryUnary,
    "unary_stream": UnaryStream,
    "stream_unary": StreamUnary,
    "stream_stream": StreamStream,
}
