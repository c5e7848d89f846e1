"""`channel_to(service)`: an xDS channel whose calls carry exact deadlines and the trace.

The wrapper stands in for gRPC's client interceptors, which in grpc.aio put a task and a queue
between the caller and every message of a stream.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis import deadlines
from mesh.chassis.link.client import CallDetails
from mesh.chassis.link.kinds import KINDS
from mesh.chassis.link.links import Instances, Links

# Deadlines of the RDS route are 1-2 s short in C-core (grpc/grpc#34547), so that they are only a
# backstop: the exact one is the `timeout` that this wrapper sets.
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # The option that in fact ends a silent connection (keepalive_timeout alone took 60 s).
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_send_message_length", 8 << 20),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
# A call with a deadline up to this waits for a server that is being restarted; a longer one (a
# generation) is told at once, so that its caller can try another way.
WAIT_FOR_READY_S_MAX = 10.0

Policies = Mapping[str, mesh_pb2.MethodPolicy]
_propagator = TraceContextTextMapPropagator()


def open_xds_channel(
    service: str,
    policies: Callable[[], Policies],
    watch_instances: Callable[[], Instances] | None = None,
) -> "MeshChannel":
    """A channel to any healthy instance of a service; mTLS, retries and balancing from xDS.

    Args:
        watch_instances: gives the live instances; with it calls go over links where there are some.
    """
    # No fallback credentials: without an xDS security policy the channel speaks TLS and fails
    # against plaintext, it never speaks plaintext.
    channel = grpc.aio.secure_channel(
        f"xds:///{service}", grpc.xds_channel_credentials(), options=CHANNEL_OPTIONS
    )
    links = Links(service, channel, watch_instances) if watch_instances else None
    return MeshChannel(channel, policies, links)


class _Call:
    """A multi-callable that sets timeout, trace and readiness, then calls, by link or plainly."""

    def __init__(self, channel: "MeshChannel", kind: str, method: str, args: Any) -> None:
        self._channel, self._kind = channel, kind
        self._inner = getattr(channel.inner, kind)(method, *args)
        self._serialize, self._parse = (*args, None, None)[:2]
        self._method = method.lstrip("/")

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        wait_for_ready: bool | None = None,
        **rest: Any,
    ) -> Any:
        policy = self._channel.policies().get(self._method)
        default_s = policy.deadline_ms / 1000 if policy and policy.deadline_ms else None
        timeout = deadlines.timeout_for(self._method, timeout, default_s)
        if wait_for_ready is None:
            wait_for_ready = timeout is not None and timeout <= WAIT_FOR_READY_S_MAX
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        metadata = (*(metadata or ()), *carrier.items())
        links = self._channel.links
        if links is not None and not rest and (link := links.pick(metadata)) is not None:
            end_by = None if timeout is None else time.monotonic() + timeout
            is_repeatable = policy is not None and policy.repeatable
            details = CallDetails(self._method, metadata, end_by, wait_for_ready, is_repeatable)
            call = KINDS[self._kind](links, link, details, self._serialize, self._parse)
            call.begin(request)
            return call
        return self._inner(
            request,
            timeout=timeout,
            metadata=metadata,
            wait_for_ready=wait_for_ready,
            **rest,
        )


class MeshChannel(grpc.aio.Channel):
    """A grpc.aio.Channel for generated stubs; `links`: what calls go by where it can."""

    def __init__(
        self, inner: grpc.aio.Channel, policies: Callable[[], Policies], links: Links | None = None
    ) -> None:
        self.inner, self.policies, self.links = inner, policies, links

    def _wrap(self, kind: str, method: str, args: Any, kwargs: Any) -> Any:
        # Generated stubs name their arguments: request_serializer, response_deserializer.
        words = ("request_serializer", "response_deserializer", "_registered_method")
        given = dict(zip(words, args, strict=False)) | kwargs
        return _Call(self, kind, method, [given.get(word) for word in words])

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("unary_unary", method, args, kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("unary_stream", method, args, kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("stream_unary", method, args, kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("stream_stream", method, args, kwargs)

    async def __aenter__(self) -> "MeshChannel":
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self.links is not None:
            await self.links.close()
        await self.inner.__aexit__(*exc)

    async def close(self, grace: float | None = None) -> None:  # noqa: D102
        if self.links is not None:
            await self.links.close()
        await self.inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        return self.inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: Any) -> None:  # noqa: D102
        await self.inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self.inner.channel_ready()
