"""A link's server end: begins calls, runs their servicers, ends with all of them.

The behaviours are those of plain calls, wrapped once by the same interceptor: who may call, with
what time, how failures are told, counted and traced is decided there for both.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import structlog

from chatmesh.mesh.v1 import link_pb2, link_pb2_grpc
from mesh.chassis.errors import MeshError
from mesh.chassis.link.context import LinkContext, PeerIdentity
from mesh.chassis.link.flow import Flow
from mesh.chassis.link.framing import (
    CALL_COUNT_MAX,
    METADATA_BYTES_MAX,
    bad_frame,
    code_of,
    end,
    link_full,
)
from mesh.chassis.link.mux import ServerMux
from mesh.chassis.link.traffic import Traffic

AGE_JITTER = 0.1
LATE = end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

log = structlog.get_logger()
_traffic = Traffic("server")


class LinkService(link_pb2_grpc.LinkServiceServicer):
    """Serves links to the methods of `handlers` (full name without "/" → wrapped handler).

    Args:
        instance: own name, such as "safety-1".
        handlers: may still be filled after this.
        age_s_max: links are drained at this age, give or take a tenth.
    """

    def __init__(self, instance: str, handlers: Mapping[str, Any], age_s_max: float) -> None:
        self._instance, self._handlers, self._age_s_max = instance, handlers, age_s_max
        self._links: set[ServerLink] = set()
        self._is_draining = False

    # Written to, not generated: batches leave as they gather.
    async def Open(  # type: ignore[override]  # noqa: N802
        self, _requests: Any, context: Any
    ) -> None:
        """See the contract."""
        link = ServerLink(self._handlers, context)
        self._links.add(link)
        if self._is_draining:
            link.drain()
        age_s = self._age_s_max * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)  # noqa: S311
        aging = asyncio.get_running_loop().call_later(age_s, link.drain)
        try:
            await context.write(link_pb2.OpenResponse(instance=self._instance))
            await link.run()
        finally:
            aging.cancel()
            self._links.discard(link)

    def drain(self) -> None:
        """Begins no more calls; each link ends when its calls have."""
        self._is_draining = True
        for link in self._links:
            link.drain()


class ServerLink:
    """One link, from the first frame to the last."""

    def __init__(self, handlers: Mapping[str, Any], context: Any) -> None:
        self._handlers, self._context, self._peer = handlers, context, PeerIdentity(context)
        self._ready = asyncio.Event()
        self.mux = ServerMux(self._ready.set, self._begin)
        self.tasks: set[asyncio.Task[None]] = set()
        self._is_draining = self._told_draining = False

    def drain(self) -> None:
        """Refuses new calls from now on; the caller closes the link when the others are over."""
        self._is_draining = True
        self._ready.set()

    async def run(self) -> None:
        """Until the caller closes the link.

        Raises:
            MeshError: BAD_FRAME, LINK_FULL.
        """
        writing = asyncio.create_task(self._write())
        try:
            while (request := await self._context.read()) is not grpc.aio.EOF:
                if request is None:  # so grpc.aio says that it does not parse
                    raise bad_frame("it does not parse")
                _traffic.count("in", len(request.frames))
                for frame in request.frames:
                    self.mux.receive(frame)
        finally:
            writing.cancel()
            self.mux.close(end(grpc.StatusCode.CANCELLED, "The link ended."))

    async def _write(self) -> None:
        # The reader hears how a broken stream ended.
        with contextlib.suppress(grpc.aio.BaseError):
            while True:
                await self._ready.wait()
                self._ready.clear()
                while (response := self._batch()) is not None:
                    await self._context.write(response)

    def _batch(self) -> link_pb2.OpenResponse | None:
        response = link_pb2.OpenResponse()
        self.mux.fill(response.frames)
        if self._is_draining and not self._told_draining:
            response.is_draining = self._told_draining = True
        elif not response.frames:
            return None
        _traffic.count("out", len(response.frames))
        return response

    def _begin(self, flow: Flow, begin: link_pb2.Begin) -> LinkContext | None:
        if self._is_draining:
            return None
        if len(self.tasks) >= CALL_COUNT_MAX:  # begun and cancelled faster than they end
            raise link_full()
        handler = self._handlers.get(begin.method)
        context = LinkContext(flow, begin, handler, self._peer)
        context.task = self._peer.loop.create_task(self._serve(begin, handler, context))
        self.tasks.add(context.task)  # the loop itself would let it be collected
        context.task.add_done_callback(self.tasks.discard)
        return context

    async def _serve(self, begin: link_pb2.Begin, handler: Any, context: LinkContext) -> None:
        timer = None
        remaining_s = context.time_remaining()
        if remaining_s is not None:
            timer = self._peer.loop.call_later(remaining_s, context.ended, LATE)
        code, message = grpc.StatusCode.OK, ""
        try:
            _check(begin, handler)
            await _behaviour(handler)(handler, context)
        except asyncio.CancelledError:
            code, message = grpc.StatusCode.CANCELLED, "The call was cancelled."
            if context.gone is not None:
                code, message = code_of(context.gone), context.gone.message
        except grpc.aio.AbortError:
            code = grpc.StatusCode.UNKNOWN  # the context knows better
        except MeshError as error:
            code, message = error.code, error.message
        except Exception as error:
            code, message = grpc.StatusCode.UNKNOWN, "A fault of ours; the log has it."
            log.error("link_call_crashed", method=begin.method, error=type(error).__name__)
        finally:
            if timer is not None:
                timer.cancel()
        context.finish(code, message)


def _check(begin: link_pb2.Begin, handler: Any) -> None:
    if handler is None:
        raise MeshError(grpc.StatusCode.UNIMPLEMENTED, "", f"There is no {begin.method} here.")
    size = sum(len(each.key) + len(each.value) for each in begin.metadata.entries)
    if size > METADATA_BYTES_MAX:
        raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "", "The metadata is over 16 KiB.")


def _behaviour(handler: Any) -> Callable[[Any, LinkContext], Any]:
    return _serve_stream if handler.response_streaming else _serve_unary


async def _serve_unary(handler: Any, context: LinkContext) -> None:
    behaviour = handler.stream_unary or handler.unary_unary
    await context.write(await behaviour(await _request(handler, context), context))


async def _serve_stream(handler: Any, context: LinkContext) -> None:
    behaviour = handler.stream_stream or handler.unary_stream
    async with aclosing(behaviour(await _request(handler, context), context)) as messages:
        async for message in messages:
            await context.write(message)


async def _request(handler: Any, context: LinkContext) -> Any:
    if handler.request_streaming:
        return context.requests()
    request = await context.read()
    if request is grpc.aio.EOF:
        raise MeshError(grpc.StatusCode.INTERNAL, "", "The call came without its request.")
    return request
