"""The screening of one answer: text in, clearances out, across the death of a safety process.

A stream that breaks is opened anew with the text that was released, judged again as context, and
with the text that was not. Until then nothing leaves.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from chatmesh.safety.v1 import safety_pb2 as pb
from gateway import errors, metrics
from gateway.errors import public
from gateway.settings import TurnLimits
from gateway.turn.answer import Mask, whole_characters
from gateway.upstreams.failures import translate
from mesh.chassis.cancellation import is_cancelled
from mesh.chassis.errors import MeshError

# How a stream that broke may look. INTERNAL and CANCELLED are what grpc.aio says itself when one of
# our writes meets the end of the stream before its status is read.
BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}

log = structlog.get_logger()


# What is said when safety names no text of its own.
MESSAGE_DEFAULT = "The safety policy refuses this request; change it and try again."


@dataclass(frozen=True, slots=True)
class Block:
    """Why an answer is cut."""

    category: str
    # Where the offending text begins, in bytes of the answer.
    offset: int
    # What is said after what left; empty: nothing.
    safe_text: str = ""


@dataclass(frozen=True, slots=True)
class Clearance:
    """One decision about an answer."""

    # Bytes of the answer that may leave.
    release_up_to_offset: int = 0
    # All may leave, and nothing follows.
    cleared: bool = False
    # Nothing more may leave, and nothing follows but, perhaps, a safe text.
    blocked: Block | None = None
    # What to replace where it has not left; releases end between masks.
    masks: Sequence[Mask] = ()


class ReplyScreen:
    """One answer under screening."""

    def __init__(
        self,
        open_call: Callable[[], Any],
        start: pb.ReplyStart,
        limits: TurnLimits,
        text: bytes = b"",
        released_offset: int = 0,
    ) -> None:
        """`text`: what an earlier owner of the turn had of the answer; that much was released."""
        self._open_call, self._start, self._limits = open_call, start, limits
        self._call: Any = None
        # What a new stream hears first: all text, how much of it is released, whether it ended.
        self._text = bytearray(text)
        self._released_offset = released_offset
        self._unanswered_token_count = 0
        self._is_open = self._ended = False
        # A release brought masks: the service knows them.
        self._was_masked = False
        # Writes of `add` and of a reopening must not cross.
        self._writing = asyncio.Lock()
        # Of the response that is being waited for.
        self._patience: asyncio.Timeout | None = None

    async def open(self) -> None:
        """Opens the stream, so that it is there when the first text is; `cancel` ends it.

        Quiet when the stream is broken, for `clearances` opens it anew.
        """
        self._begin()
        async with self._writing:
            if not self._is_open:
                await self._begin_stream()

    async def add(self, text: str, token_count: int) -> None:
        """Sends more text; returns when the stream took it (back-pressure)."""
        async with self._writing:
            self._text += text.encode()
            self._unanswered_token_count += token_count
            delta = pb.ReplyDelta(text=text, token_count=max(1, token_count))
            await self._write(pb.ScreenReplyRequest(delta=delta))

    async def end(self) -> None:
        """Says that the answer is complete."""
        async with self._writing:
            self._ended = True
            await self._write(pb.ScreenReplyRequest(end=pb.ReplyEnd()))
        self._expect_decision()

    async def clearances(self) -> AsyncGenerator[Clearance, None]:
        """The decisions; the last one is `cleared` or `blocked`.

        Raises:
            MeshError: SERVICE_UNAVAILABLE, TIMEOUT: no decision, nothing more may leave.
        """
        attempt = 0
        self._begin()
        while True:
            try:
                async with aclosing(self._read()) as clearances:
                    async for clearance in clearances:
                        attempt = 0
                        yield clearance
                        if clearance.cleared or clearance.blocked:
                            return
                failure = _no_decision()
            except (grpc.aio.AioRpcError, MeshError) as error:
                failure = error if isinstance(error, MeshError) else MeshError.from_rpc(error)
            attempt += 1
            if failure.code not in BROKEN or attempt > self._limits.safety_attempt_count_max:
                raise translate("safety", failure)
            log.warning("screening_reopened", turn_id=self._start.subject.turn_id, attempt=attempt)
            await asyncio.sleep(self._limits.safety_backoff_s * 2 ** (attempt - 1))
            await self._reopen()

    def cancel(self) -> None:
        """Ends the stream if it is still open."""
        if self._call:
            self._call.cancel()

    def _begin(self) -> None:
        if self._call is None:
            self._call = self._open_call()

    async def _read(self) -> AsyncGenerator[Clearance, None]:
        base = self._released_offset  # offsets do not count what was released before the start
        while (response := await self._next_response()) is not grpc.aio.EOF:
            event = response.WhichOneof("event")
            if event == "release":
                offset = base + response.release.release_up_to_offset
                self._released_offset = whole_characters(self._text, offset)
                self._unanswered_token_count = 0
                masks = [_mask(each, base) for each in response.release.masks]
                self._was_masked = self._was_masked or bool(masks)
                yield Clearance(self._released_offset, masks=masks)
            elif event == "cleared":
                verdict = response.cleared.verdict
                yield Clearance(cleared=True, masks=_masks(verdict, base, self._was_masked))
            elif event == "block":
                yield Clearance(blocked=_block(response.block, base))

    async def _next_response(self) -> Any:
        """The next response, or EOF.

        Raises:
            MeshError: the stream was ended on our side, or has nothing to say to the whole answer.
            grpc.aio.AioRpcError: it broke.
        """
        try:
            async with asyncio.timeout(None) as patience:
                self._patience = patience
                self._expect_decision()
                return await self._call.read()
        except TimeoutError:
            metrics.SCREENINGS_STALLED.inc()
            log.warning("screening_stalled", turn_id=self._start.subject.turn_id)
            raise _no_decision() from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise _no_decision() from None
        finally:
            self._patience = None

    def _expect_decision(self) -> None:
        """Bounds the wait, from when safety has all of the answer: no turn stays without an end."""
        if self._ended and self._patience:
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(now + self._limits.safety_stall_s)

    async def _reopen(self) -> None:
        self._call.cancel()
        self._call = self._open_call()
        async with self._writing:
            await self._begin_stream()
            if self._ended:
                await self._write(pb.ScreenReplyRequest(end=pb.ReplyEnd()))

    async def _begin_stream(self) -> None:
        self._is_open = True
        await _writable(self._call)
        self._start.released_text = self._text[: self._released_offset].decode()
        await self._write(pb.ScreenReplyRequest(start=self._start))
        if waiting := self._text[self._released_offset :].decode():
            count = max(1, self._unanswered_token_count)
            delta = pb.ReplyDelta(text=waiting, token_count=count)
            await self._write(pb.ScreenReplyRequest(delta=delta))

    async def _write(self, request: pb.ScreenReplyRequest) -> None:
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over: `clearances` hears of it
        except asyncio.CancelledError:
            # A call that ends on our side under a write: grpc.aio then cancels whoever writes.
            if is_cancelled():
                raise


async def _writable(call: Any) -> None:
    """Returns when a call can be written to, or is over.

    grpc.aio never wakes the writer of a call that ended on this side before it was connected.
    """
    is_connected = False

    def over(_: Any) -> None:
        if not is_connected:
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            call.add_done_callback(over)
            await call.wait_for_connection()
            is_connected = True
    except (TimeoutError, grpc.aio.AioRpcError):
        return  # `clearances` hears of it
    except asyncio.CancelledError:
        if is_cancelled():
            raise


def category_of(verdict: pb.Verdict) -> str:
    """The category that decided, such as "violence"; empty when none did."""
    name = pb.Category.Name(verdict.category).removeprefix("CATEGORY_").lower()
    return "" if verdict.category == pb.CATEGORY_UNSPECIFIED else name


def _mask(mask: pb.Mask, base: int) -> Mask:
    return Mask(base + mask.start_offset, base + mask.end_offset, mask.replacement)


def _masks(verdict: pb.Verdict, base: int, was_masked: bool) -> list[Mask]:
    """What is masked of the text that had not left before the last decision."""
    if verdict.action != pb.ACTION_REDACT:
        return []
    if verdict.masks or verdict.knows_masks or was_masked:
        return [_mask(each, base) for each in verdict.masks]
    # A safety service that knows no masks: it held everything back. Some of the findings may only
    # have been flagged; it does not say which.
    spans = [(base + each.start_offset, base + each.end_offset) for each in verdict.findings]
    return [Mask(start, end) for start, end in spans]


def _block(block: pb.Block, base: int) -> Block:
    verdict = block.verdict
    safe = verdict.action == pb.ACTION_SAFE_COMPLETE
    safe_text = (verdict.message or MESSAGE_DEFAULT) if safe else ""
    return Block(category_of(verdict), base + block.offset, safe_text)


def _no_decision() -> MeshError:
    """An end without a decision: fails closed."""
    message = "The safety service ended without a decision; try again shortly."
    return public(errors.SERVICE_UNAVAILABLE, message, service="safety")
