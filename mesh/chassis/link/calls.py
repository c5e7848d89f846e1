"""What a caller holds of a call on a link: the grpc.aio.Call of a plain one, and its second tries.

As gRPC does (gRFC A6): a call that was refused unseen is sent elsewhere, whatever it is; one that
may be repeated is made again when it failed with UNAVAILABLE or CANCELLED before its answer began.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc

from chatmesh.mesh.v1 import link_pb2
from mesh.chassis.link.client import CallDetails, ClientLink
from mesh.chassis.link.flow import Flow
from mesh.chassis.link.framing import (
    MESSAGE_BYTES_MAX,
    WINDOW_BYTES,
    Metadata,
    code_of,
    end,
    metadata_of,
)
from mesh.chassis.link.links import Links
from mesh.chassis.link.plain import PlainAttempt
from mesh.chassis.link.waiting import Waiting

# RETRY_COUNT and RETRY_BACK_OFF of mesh/xds.py, which plain calls follow.
RETRY_COUNT_MAX = 2
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.025, 0.25
RETRY_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
# What tells of an instance that fails. All others are answers about what was asked (NOT_FOUND of an
# unknown key, RESOURCE_EXHAUSTED of an empty budget): whoever asks for them must not take it out.
FAULTS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
ATTEMPTS_KEY = "grpc-previous-rpc-attempts"
# Servers that drain one after the other; then the caller hears of it.
REFUSAL_COUNT_MAX = 8
# A caller may be this far ahead of the link before its writes wait.
AHEAD_BYTES_MAX = WINDOW_BYTES // 2
# Of a stream of requests, kept to send it again; as gRPC's per_rpc_retry_buffer_size.
REPLAY_BYTES_MAX = 256 << 10
CANCELLED = end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
EXPIRED = end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
TOO_LARGE = end(grpc.StatusCode.RESOURCE_EXHAUSTED, "The request is over 8 MiB.")


class LinkCall(Waiting, grpc.aio.Call):
    """A call of any kind; the kinds below show of it what theirs has."""

    def __init__(
        self,
        links: Links,
        link: ClientLink,
        details: CallDetails,
        serialize: Callable[[Any], bytes] | None,
        parse: Callable[[bytes], Any] | None,
    ) -> None:
        super().__init__(links.loop)
        self._links, self._details, self._serialize, self._parse = links, details, serialize, parse
        self._name = link.name
        self._initial: Metadata | None = None
        self._end: link_pb2.End | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        # Of the server's: there is no second try.
        self._is_answered = False
        # What a second try sends again; None: too much to keep, there is none.
        self._sent: list[bytes] | None = []
        self._sent_bytes = self._retry_count = self._refusal_count = 0
        self._is_half_closed = False
        self._timer: asyncio.TimerHandle | None = None
        remaining_s = details.remaining_s()
        if remaining_s is not None:
            self._timer = self._loop.call_later(remaining_s, self._stop, EXPIRED)
        self._retry_timer: asyncio.TimerHandle | None = None
        self._attempt: Flow | PlainAttempt = link.begin(details, self)

    # Sink: what the link says.

    def began(self, metadata: Metadata) -> None:
        """See Sink."""
        self._initial = metadata
        self._note_answer()
        self.wake()

    def progressed(self) -> None:
        """See Sink."""
        if self._attempt.messages:
            self._note_answer()
        self.wake()

    def _note_answer(self) -> None:
        self._is_answered, self._sent = True, None

    def ended(self, ended: link_pb2.End) -> None:
        """See Sink: tries again, or tells the caller."""
        if self._end is not None:
            return
        self._links.note_end(self._name, code_of(ended) not in FAULTS)
        # The last message may have come in the same frame.
        if self._sent is None or self._attempt.messages or not ended.code:
            self._conclude(ended)
        elif ended.is_refused and self._refusal_count < REFUSAL_COUNT_MAX:
            self._refusal_count += 1
            self._retry_timer = self._loop.call_later(0, self._begin_again)
        elif self._is_repeatable(ended):
            backoff_s = min(BACKOFF_S_MIN * 2**self._retry_count, BACKOFF_S_MAX)
            self._retry_count += 1
            self._note_attempts()
            jitter = random.uniform(0.8, 1.2)  # noqa: S311
            self._retry_timer = self._loop.call_later(backoff_s * jitter, self._begin_again)
        else:
            self._conclude(ended)

    def _is_repeatable(self, ended: link_pb2.End) -> bool:
        return (
            self._details.repeatable
            and code_of(ended) in RETRY_CODES
            and self._retry_count < RETRY_COUNT_MAX
        )

    def _note_attempts(self) -> None:
        # gRFC A6: the server is told.
        others = [pair for pair in self._details.metadata if pair[0] != ATTEMPTS_KEY]
        metadata = (*others, (ATTEMPTS_KEY, str(self._retry_count)))
        self._details = replace(self._details, metadata=metadata)

    def _begin_again(self) -> None:
        self._retry_timer = None
        self._attempt, self._name = self._links.begin(self._details, self)
        for message in self._sent or ():
            self._attempt.send(message)
        if self._is_half_closed:
            self._attempt.half_close()

    def _conclude(self, ended: link_pb2.End) -> None:
        self._end, self._sent = ended, None
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry_timer = None
        self.wake()
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)
        self._callbacks.clear()

    def _stop(self, ended: link_pb2.End) -> None:
        """Ends the call from this side."""
        if self._end is None:
            if ended is EXPIRED:
                self._links.note_end(self._name, is_ok=False)
            self._attempt.cancel()
            self._attempt.messages.clear()
            self._conclude(ended)

    # What grpc.aio.Call has.

    def cancel(self) -> bool:
        """Ends the call; False when it was over."""
        was_running = self._end is None
        self._stop(CANCELLED)
        return was_running

    def cancelled(self) -> bool:
        """Whether it ended with CANCELLED."""
        return self._end is not None and code_of(self._end) is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Whether it is over."""
        return self._end is not None

    def time_remaining(self) -> float | None:
        """Seconds until its deadline; None: there is none."""
        return self._details.remaining_s()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls `callback(call)` when it is over."""
        if self._end is not None:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    async def wait_for_connection(self) -> None:
        """Returns when the request is on its way; raises AioRpcError when the call failed."""
        if self._end is not None:
            self._raise_failure()

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """What the server sent first; empty when it sent none before its first message or end."""
        while not self._is_answered and self._end is None:
            await self.wait()
        return grpc.aio.Metadata(*(self._initial or ()))

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What the server sent last; waits for it."""
        return grpc.aio.Metadata(*metadata_of((await self._ended()).trailing_metadata))

    async def code(self) -> grpc.StatusCode:
        """How it ended; waits for it."""
        return code_of(await self._ended())

    async def details(self) -> str:
        """How it ended, in words; waits for it."""
        return (await self._ended()).message

    async def _ended(self) -> link_pb2.End:
        while self._end is None:
            await self.wait()
        return self._end

    # What the kinds are made of.

    def _raise_failure(self) -> None:
        if self._end is not None and self._end.code:
            raise grpc.aio.AioRpcError(
                code_of(self._end),
                grpc.aio.Metadata(*(self._initial or ())),
                grpc.aio.Metadata(*metadata_of(self._end.trailing_metadata)),
                details=self._end.message,
            )

    async def _wait_as_owner(self) -> None:
        """Waits; the call ends with the task that waits, as with grpc.aio."""
        try:
            await self.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _next(self) -> Any:
        while (data := self._attempt.read()) is None:
            if self._end is not None:
                self._raise_failure()
                return grpc.aio.EOF
            await self._wait_as_owner()
        return self._parse(data) if self._parse else data

    def _put(self, request: Any) -> None:
        data = self._serialize(request) if self._serialize else request
        if len(data) > MESSAGE_BYTES_MAX:
            self._stop(TOO_LARGE)
            return
        if self._sent is not None:
            self._sent.append(data)
            self._sent_bytes += len(data)
        self._attempt.send(data)

    def begin(self, request: Any) -> None:
        """Sends the only request."""
        self._put(request)
        self._half_close()

    def _half_close(self) -> None:
        self._is_half_closed = True
        if self._end is None and self._retry_timer is None:
            self._attempt.half_close()
