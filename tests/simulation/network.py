"""What lies between the processes: messages that are late, lost, repeated or overtaken, by a seed.

A request and its answer are messages of their own: an answer that is lost leaves its caller without
knowledge of what was done. A stream is in order and complete, or it breaks.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_status import rpc_status

from mesh.chassis.errors import MeshError
from tests.simulation.loop import Process, VirtualLoop

# A message takes about so long; a slow one up to SLOW_S more.
DELAY_S = 0.001
SLOW_S = 0.6
# How long until the other end of a stream that broke finds out.
BREAK_S = 0.2
TIMEOUT_S = 1.0


@dataclass
class Weather:
    """How likely it is that a message is lost, repeated, slow; that a message breaks its stream."""

    lost: float = 0.0
    repeated: float = 0.0
    slow: float = 0.0
    breaking: float = 0.0


def rpc_error(error: MeshError) -> grpc.aio.AioRpcError:
    """A failure as a caller gets it."""
    metadata = grpc.aio.Metadata()
    if error.reason:
        status = rpc_status.to_status(error.to_status())
        metadata = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(error.code, grpc.aio.Metadata(), metadata, error.message)


def unavailable(what: str) -> MeshError:
    return MeshError(grpc.StatusCode.UNAVAILABLE, "", what)


class Network:
    """Brings messages from process to process."""

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, note: Callable[..., None] | None
    ) -> None:
        self.loop, self._rng, self.note = loop, rng, note
        self.weather = Weather()
        # Pairs of machines that cannot hear each other.
        self.cuts: set[frozenset[str]] = set()
        self.streams: dict[Stream, None] = {}

    def is_cut(self, one: Process, other: Process) -> bool:
        return bool(self.cuts) and frozenset((one.machine, other.machine)) in self.cuts

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def delay_s(self) -> float:
        delay_s = DELAY_S * (0.2 + self._rng.random())
        return delay_s + SLOW_S * self._rng.random() if self.chance(self.weather.slow) else delay_s

    def send(
        self, source: Process, target: Process, what: str, deliver: Callable[..., None], *args: Any
    ) -> None:
        """One message; `deliver` runs in the target, never, once or twice."""
        if source.is_dead:
            return
        if self.is_cut(source, target) or self.chance(self.weather.lost):
            if self.note:
                self.note("lost", f"{source.name} → {target.name} {what}")
            return
        count = 2 if self.chance(self.weather.repeated) else 1
        for _ in range(count):
            when = self.loop.now + self.delay_s()
            self.loop.call_at(when, self._arrive, target, deliver, args, context=target.context)
        if count > 1 and self.note:
            self.note("repeated", f"{source.name} → {target.name} {what}")

    @staticmethod
    def _arrive(target: Process, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not target.is_dead:
            deliver(*args)

    def ask(
        self,
        source: Process,
        target: Process,
        what: str,
        work: Callable[[], Any],
        timeout_s: float = TIMEOUT_S,
    ) -> "asyncio.Future[Any]":
        """Has `work` done in the target; TimeoutError when no answer comes in time."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        timer = self.loop.call_later(timeout_s, _late, answer, context=source.context)
        answer.add_done_callback(lambda _: timer.cancel(), context=source.context)

        def reply(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        def serve() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            self.send(target, source, "answer to " + what, reply, result, failure)

        self.send(source, target, what, serve)
        return answer


def _late(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class _Inbox:
    """What came to one end of a stream; the last item is (ENDED, why)."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._end: Exception | None = None
        self._is_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        if not self._is_ended:
            self._items.append(item)
            self._wake()

    def end(self, error: Exception | None) -> None:
        if not self._is_ended:
            self._is_ended, self._end = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """The next; StopAsyncIteration or the failure at the end."""
        while not self._items:
            if self._is_ended:
                raise self._end or StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


class Stream:
    """A call with messages both ways, as `grpc.aio` shows it to the caller."""

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Process,
        serve: Callable[[Any, "Stream"], Coroutine[Any, Any, None]],
        request: Any,
    ) -> None:
        self._network, self.client, self.server = network, client, server
        self._serve = serve
        self._to_client, self._to_server = _Inbox(), _Inbox()
        self._client_at = self._server_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_over = self._is_cancelled = False
        network.streams[self] = None
        if server.is_dead:
            self.fail()
        else:
            self._post_to_server(self._begin, request)

    # -- the caller's end --------------------------------------------------------------------

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Any:
        if self._is_cancelled:
            raise asyncio.CancelledError
        return await self._to_client.get()

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            return grpc.aio.EOF

    def add_done_callback(self, callback: Callable[..., None]) -> None:
        """Never called: only a call that waits for its connection asks, and none waits here."""

    async def wait_for_connection(self) -> None:
        """Connections are there, or break later."""

    async def write(self, item: Any) -> None:
        """Sends to the server; quiet about what will be heard by reading."""
        if self._is_over or self._is_cancelled:
            raise asyncio.InvalidStateError
        self._post_to_server(self._to_server.put, item)

    def cancel(self) -> None:
        """Ends the call."""
        if not self._is_cancelled:
            self._is_cancelled = True
            if not self._is_over:
                self._post_to_server(self._cancel)

    # -- the server's end --------------------------------------------------------------------

    def send(self, item: Any) -> None:
        self._post_to_client(self._to_client.put, item)

    def receive(self) -> Awaitable[Any]:
        return self._to_server.get()

    # -- between -----------------------------------------------------------------------------

    def fail(self) -> None:
        """Breaks it: both ends find out."""
        if self._is_over:
            return
        self._is_over = True
        self._network.streams.pop(self, None)
        loop, error = self._network.loop, rpc_error(unavailable("the connection broke"))
        for process, end, args in (
            (self.client, self._to_client.end, (error,)),
            (self.server, self._cancel, ()),
        ):
            when = loop.now + BREAK_S * (0.05 + self._network._rng.random())
            loop.call_at(when, _unless_dead, process, end, args, context=process.context)

    def _begin(self, request: Any) -> None:
        if self._is_over:
            return
        self._task = asyncio.get_running_loop().create_task(
            self._run(request), name="serve", context=self.server.context.copy()
        )

    async def _run(self, request: Any) -> None:
        error: Exception | None = None
        try:
            await self._serve(request, self)
        except MeshError as failure:
            error = rpc_error(failure)
        except StopAsyncIteration:
            pass
        self._post_to_client(self._end, error)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._network.streams.pop(self, None)
        self._to_client.end(error)

    def _cancel(self) -> None:
        self._is_over = True
        self._network.streams.pop(self, None)
        if self._task:
            self._task.cancel()

    def _post_to_server(self, deliver: Callable[..., None], *args: Any) -> None:
        if self._may_pass(self.client, self.server):
            self._server_at = self._when(self._server_at)
            self._schedule(self._server_at, self.server, deliver, args)

    def _post_to_client(self, deliver: Callable[..., None], *args: Any) -> None:
        if self._may_pass(self.server, self.client):
            self._client_at = self._when(self._client_at)
            self._schedule(self._client_at, self.client, deliver, args)

    def _may_pass(self, source: Process, target: Process) -> bool:
        if self._is_over or source.is_dead:
            return False
        network = self._network
        if (
            target.is_dead
            or network.is_cut(source, target)
            or network.chance(network.weather.breaking)
        ):
            if network.note:
                network.note("broken", f"stream {self.client.name} ↔ {self.server.name}")
            self.fail()
            return False
        return True

    def _when(self, after: float) -> float:
        return max(self._network.loop.now + self._network.delay_s(), after + 1e-7)

    def _schedule(
        self, when: float, target: Process, deliver: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        loop = self._network.loop
        loop.call_at(when, _unless_dead, target, deliver, args, context=target.context)


def _unless_dead(process: Process, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
    if not process.is_dead:
        deliver(*args)


class Service:
    """What answers calls: `unary` at once, `stream` in a task of the process that serves it."""

    process: Process

    def unary(self, method: str, request: Any) -> Any:
        raise NotImplementedError

    async def stream(self, method: str, request: Any, stream: Stream) -> None:
        raise NotImplementedError


class Channel:
    """A process's way to a service, in the shape that generated stubs want."""

    def __init__(
        self, network: Network, source: Process, service_for: Callable[[str], Service | None]
    ) -> None:
        """`service_for` gives the instance of a name, "" any; None: none is there."""
        self._network, self._source, self._service_for = network, source, service_for

    def unary_unary(self, path: str, *_: Any, **__: Any) -> Callable[..., Any]:
        method = path.rsplit("/", 1)[-1]

        async def call(request: Any, metadata: Any = (), **_: Any) -> Any:
            service = self._service_for(_pinned(metadata))
            if service is None or service.process.is_dead:
                await asyncio.sleep(self._network.delay_s())
                raise rpc_error(unavailable("nobody listens"))
            asked = type(request)()
            asked.CopyFrom(request)
            try:
                return await self._network.ask(
                    self._source, service.process, method, lambda: service.unary(method, asked)
                )
            except MeshError as error:
                raise rpc_error(error) from None
            except TimeoutError:
                late = MeshError(grpc.StatusCode.DEADLINE_EXCEEDED, "", "no answer")
                raise rpc_error(late) from None

        return call

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Callable[..., Any]:
        method = path.rsplit("/", 1)[-1]

        def call(request: Any, metadata: Any = (), **_: Any) -> Stream:
            service = self._service_for(_pinned(metadata))
            process = service.process if service else Process("nobody")
            process.is_dead = process.is_dead or service is None

            async def serve(asked: Any, stream: Stream) -> None:
                assert service is not None
                await service.stream(method, asked, stream)

            return Stream(self._network, self._source, process, serve, request)

        return call

    stream_stream = unary_stream

    def stream_unary(self, path: str, *_: Any, **__: Any) -> None:
        return None


def _pinned(metadata: Any) -> str:
    return dict(metadata or ()).get("x-chatmesh-instance", "")
