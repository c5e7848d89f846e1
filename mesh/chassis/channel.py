"""`channel_to(service)`: an xDS channel whose calls carry exact deadlines and the trace.

The wrapper stands in for gRPC's client interceptors, which in grpc.aio put a task and a queue
between the caller and every message of a stream.
"""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis import deadlines

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


def open_xds_channel(service: str, policies: Callable[[], Policies]) -> "MeshChannel":
    """A channel to any healthy instance of a service; mTLS, retries and balancing from xDS."""
    # No fallback credentials: without an xDS security policy the channel speaks TLS and fails
    # against plaintext, it never speaks plaintext.
    channel = grpc.aio.secure_channel(
        f"xds:///{service}", grpc.xds_channel_credentials(), options=CHANNEL_OPTIONS
    )
    return MeshChannel(channel, policies)


class _Call:
    """A multi-callable that sets timeout, trace and readiness, then calls the real one."""

    def __init__(self, inner: Any, method: str, policies: Callable[[], Policies]) -> None:
        self._inner = inner
        self._method = method.lstrip("/")
        self._policies = policies

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        wait_for_ready: bool | None = None,
        **rest: Any,
    ) -> Any:
        policy = self._policies().get(self._method)
        default_s = policy.deadline_ms / 1000 if policy and policy.deadline_ms else None
        timeout = deadlines.timeout_for(self._method, timeout, default_s)
        if wait_for_ready is None:
            wait_for_ready = timeout is not None and timeout <= WAIT_FOR_READY_S_MAX
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return self._inner(
            request,
            timeout=timeout,
            metadata=(*(metadata or ()), *carrier.items()),
            wait_for_ready=wait_for_ready,
            **rest,
        )


class MeshChannel(grpc.aio.Channel):
    """A grpc.aio.Channel for generated stubs."""

    def __init__(self, inner: grpc.aio.Channel, policies: Callable[[], Policies]) -> None:
        self._inner = inner
        self._policies = policies

    def _wrap(self, kind: str, method: str, args: Any, kwargs: Any) -> Any:
        return _Call(getattr(self._inner, kind)(method, *args, **kwargs), method, self._policies)

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("unary_unary", method, args, kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("unary_stream", method, args, kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("stream_unary", method, args, kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self._wrap("stream_stream", method, args, kwargs)

    async def __aenter__(self) -> "MeshChannel":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._inner.__aexit__(*exc)

    async def close(self, grace: float | None = None) -> None:  # noqa: D102
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: Any) -> None:  # noqa: D102
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self._inner.channel_ready()
