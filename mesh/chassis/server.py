"""The server side of every service: who may call, how long it may take, how failures are reported.

One interceptor wraps each method once. Around the servicer's own code it does, in this order:
admit the caller (SPIFFE id, deadline) → enter deadline and trace → run → translate the failure.
"""

import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any, TypeAlias

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Gauge, Histogram

from chatmesh.mesh.v1 import link_pb2_grpc
from mesh.chassis import deadlines
from mesh.chassis.channel import Policies
from mesh.chassis.errors import MeshError, abort
from mesh.chassis.identity import Identity
from mesh.chassis.link.server import LinkService
from mesh.chassis.wire import Parse, parsed

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Registration = tuple[Callable[[Any, grpc.aio.Server], None], Any]

SERVER_OPTIONS = [
    # Two servers on one port would share it silently.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    # Clients ping every 10 s: less is answered with GOAWAY "too_many_pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # gRPC's own are 8 and 16 KiB, and between them it refuses at random. The edge lets 16 pass.
    ("grpc.max_metadata_size", 24 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_send_message_length", 8 << 20),
    # Calls that came and were not looked at yet. From 1,000 on gRPC itself ends some of them with
    # CANCELLED, at random, and nobody is told why: a burst must come to where it is refused with a
    # reason. The connection bounds them (Envoy's circuit breaker, HTTP/2 streams).
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
    # Nothing compressed: 4 MB can stand for 4 GB, and all of it is unpacked before it is refused.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
# What every server of the mesh offers besides its own services: health to all identities of the
# mesh; reflection to the operator and, for clients with a key, through the edge.
OPEN_TO_MESH = "grpc.health.v1.Health/"
REFLECTION = "grpc.reflection."
REFLECTION_CALLERS = ("operator", "edge")
# For all identities of the mesh but those that pass strangers' calls on: what the edge takes off a
# call's metadata it would not find in the frames of a link.
LINK = "chatmesh.mesh.v1.LinkService/Open"
RELAYS = ("edge",)
# Of the age at which a connection takes no more calls, the part that remains to the links on it: a
# call goes by an identity as new as without links.
LINK_AGE_FRACTION = 0.2
# Codes that are a fault of ours, not of the call.
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}

log = structlog.get_logger()
_tracer = trace.get_tracer("chatmesh.chassis")
_propagator = TraceContextTextMapPropagator()
_seconds = Histogram(
    "chatmesh_rpc_server_seconds",
    "Time from the arrival of a call to its end",
    ["method", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
)
_in_flight = Gauge("chatmesh_rpc_server_in_flight", "Calls being served", ["method"])
# Finding a child by its labels costs 2 µs; methods and codes are few.
_seconds_of, _in_flight_of = cache(_seconds.labels), cache(_in_flight.labels)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Translates failures into statuses; also counts, times and traces the calls."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Gives the handler of the method, wrapped; the wrapping is done once a method."""
        wrapped = self._wrapped.get(details.method)
        if wrapped is None:
            handler = await continuation(details)
            if handler is None:
                return None
            wrapped = self._wrapped[details.method] = self.wrap(details.method.lstrip("/"), handler)
        return wrapped

    async def admit(self, method: str, context: Context) -> None:
        """Raises MeshError when the call must not be served; here: lets everything in."""

    def wrap(self, method: str, handler: Any) -> Any:
        """The handler of a method with all that comes around it."""
        kind = {
            (False, False): "unary_unary",
            (False, True): "unary_stream",
            (True, False): "stream_unary",
            (True, True): "stream_stream",
        }[handler.request_streaming, handler.response_streaming]
        behaviour = getattr(handler, kind)
        wrap = self._stream if handler.response_streaming else self._unary
        parse = None if handler.request_streaming else handler.request_deserializer
        wrapped = handler._replace(**{kind: wrap(method, behaviour, parse)})
        # Parsed inside, once the caller is admitted, so that it fails as everything else does.
        return wrapped._replace(request_deserializer=None) if parse else wrapped

    def _unary(
        self, method: str, behaviour: Callable[..., Awaitable[Any]], parse: Parse | None
    ) -> Any:
        async def serve(request: Any, context: Context) -> Any:
            call = _Call(method, context)
            try:
                await self.admit(method, context)
                return await behaviour(parsed(request, parse) if parse else request, context)
            except Exception as error:
                await call.fail(error)
            finally:
                call.end()

        return serve

    def _stream(
        self, method: str, behaviour: Callable[..., AsyncIterator[Any]], parse: Parse | None
    ) -> Any:
        generates = inspect.isasyncgenfunction(behaviour)

        async def serve(request: Any, context: Context) -> AsyncIterator[Any]:
            call = _Call(method, context)
            try:
                await self.admit(method, context)
                if parse:
                    request = parsed(request, parse)
                if generates:
                    # A generator that is left open would hold what it holds until collected.
                    async with aclosing(behaviour(request, context)) as messages:  # type: ignore[type-var]
                        async for message in messages:
                            yield message
                else:
                    await behaviour(request, context)  # type: ignore[misc]
            except Exception as error:
                await call.fail(error)
            finally:
                call.end()

        return serve


class PolicyInterceptor(ErrorInterceptor):
    """Also admits only the callers that the topology names, and only calls with a deadline."""

    def __init__(self, policies: Callable[[], Policies], trust_domain: str = "chatmesh") -> None:
        super().__init__()
        self._policies = policies
        self._reflectors = [f"spiffe://{trust_domain}/{name}" for name in REFLECTION_CALLERS]
        self._mesh_prefix = f"spiffe://{trust_domain}/"
        self._relays = [f"spiffe://{trust_domain}/{name}" for name in RELAYS]

    async def admit(self, method: str, context: Context) -> None:
        """Raises MeshError: CALLER_NOT_ALLOWED, DEADLINE_REQUIRED or DEADLINE_TOO_SHORT."""
        policy = self._policies().get(method)
        peers = spiffe_ids(context)
        if not self._may_call(method, peers, policy.allowed_spiffe_ids if policy else ()):
            raise MeshError(
                grpc.StatusCode.PERMISSION_DENIED,
                "CALLER_NOT_ALLOWED",
                f"{', '.join(peers) or 'A caller without identity'} may not call {method}; "
                "the topology names who may.",
                metadata={"method": method, "peer": ",".join(peers)},
            )
        remaining_s = context.time_remaining()
        if remaining_s is None:
            if policy is None or policy.deadline_optional:
                remaining_s = policy.deadline_ms / 1000 if policy and policy.deadline_ms else None
            else:
                raise MeshError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "DEADLINE_REQUIRED",
                    f"A call of {method} must carry a deadline.",
                    metadata={"method": method},
                )
        elif remaining_s < deadlines.REMAINING_S_MIN:
            raise MeshError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "DEADLINE_TOO_SHORT",
                f"Too little time is left for {method}; allow the request more time.",
                metadata={"method": method},
            )
        deadlines.enter(remaining_s)

    def _may_call(self, method: str, peers: Sequence[str], allowed: Sequence[str]) -> bool:
        if method.startswith(OPEN_TO_MESH):
            return any(peer.startswith(self._mesh_prefix) for peer in peers)
        if method == LINK:
            ours = [peer for peer in peers if peer.startswith(self._mesh_prefix)]
            return bool(ours) and not any(peer in self._relays for peer in peers)
        if method.startswith(REFLECTION):
            allowed = self._reflectors
        return any(peer in allowed for peer in peers)


class _Call:
    """One call: its span, its clock, its end."""

    def __init__(self, method: str, context: Context) -> None:
        self._method, self._context = method, context
        self._begin = time.perf_counter()
        self._code = grpc.StatusCode.CANCELLED  # until something else is known
        carrier = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in _propagator.fields
        }
        parent = _propagator.extract(carrier)
        self._span = _tracer.start_span(method, parent, kind=trace.SpanKind.SERVER)
        # Never detached: the task of this call, and with it its context, ends with the call.
        otel_context.attach(trace.set_span_in_context(self._span, parent))
        _in_flight_of(method).inc()
        self._failed = False

    async def fail(self, error: Exception) -> None:
        """Ends the call with the status that `error` stands for; always raises."""
        self._failed = True
        if isinstance(error, grpc.aio.AbortError):
            self._code = self._context.code() or grpc.StatusCode.UNKNOWN
            raise error
        failure = _as_mesh_error(self._method, error)
        self._code = failure.code
        report = log.error if failure.code in FAULTS else log.info
        report("rpc_failed", method=self._method, code=failure.code.name, reason=failure.reason)
        await abort(self._context, failure)

    def end(self) -> None:
        """Records the end, however it came."""
        if not self._failed and not self._context.cancelled():
            self._code = grpc.StatusCode.OK
        self._span.set_attribute("rpc.grpc.status_code", self._code.value[0])
        self._span.end()
        _in_flight_of(self._method).dec()
        _seconds_of(self._method, self._code.name).observe(time.perf_counter() - self._begin)


def _as_mesh_error(method: str, error: Exception) -> MeshError:
    if isinstance(error, MeshError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        # A failed upstream call that the service did not translate: the code tells the caller
        # whether a retry helps, the text may hold what is not theirs to see.
        passing = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        code = error.code() if error.code() in passing else grpc.StatusCode.INTERNAL
        log.warning("upstream_failed", method=method, code=error.code().name)
        return MeshError(code, "", "A part of the system does not answer; try again soon.")
    # Type and place only: the text of an unknown error may hold a prompt.
    log.error("rpc_crashed", method=method, error=type(error).__name__, at=_place(error))
    return MeshError(grpc.StatusCode.INTERNAL, "", "A fault of ours; the log has it.")


def _place(error: BaseException) -> str:
    trail = error.__traceback__
    place = ""
    while trail:
        code = trail.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{trail.tb_lineno} {code.co_name}"
        trail = trail.tb_next
    return place


def spiffe_ids(context: Context) -> list[str]:
    """SPIFFE ids of the peer's certificate; empty without one."""
    names = (context.auth_context() or {}).get("x509_subject_alternative_name", [])
    return [name.decode() for name in names if name.startswith(b"spiffe://")]


def server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """mTLS credentials that follow the identity's files: every handshake sees the newest."""
    # grpc.aio has no xDS server: xds_server_credentials would silently serve its fallback.
    served = [_version(identity)]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        version = _version(identity)
        if version == served[0]:
            return None
        served[0] = version
        return _configuration(identity)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(identity),
        fetch,  # type: ignore[arg-type]  # None: unchanged
        require_client_authentication=True,
    )


def _version(identity: Identity) -> str:
    return os.readlink(identity.folder) if identity.folder.is_symlink() else ""


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    # Resolved once, so that the pair comes from one version.
    pinned = Identity(identity.folder.resolve())
    return grpc.ssl_server_certificate_configuration(
        [(pinned.key.read_bytes(), pinned.certificate.read_bytes())],
        pinned.trust_bundle.read_bytes(),
    )


class MeshServer:
    """A grpc.aio server with identity, policy, health and reflection.

    Args:
        instance: own name, such as "safety-1"; with it links are offered.
    """

    def __init__(
        self,
        identity: Identity,
        policies: Callable[[], Policies],
        connection_age_max_s: float,
        instance: str = "",
    ) -> None:
        link_age_s = connection_age_max_s * LINK_AGE_FRACTION if instance else 0.0
        age = [
            ("grpc.max_connection_age_ms", int((connection_age_max_s - link_age_s) * 1000)),
            # Longer than the longest stream: an old connection ends when its streams have.
            ("grpc.max_connection_age_grace_ms", 3_600_000),
        ]
        self._interceptor = PolicyInterceptor(policies)
        self._server = grpc.aio.server(
            interceptors=[self._interceptor], options=[*SERVER_OPTIONS, *age]
        )
        self._credentials = server_credentials(identity)
        self._health = health_aio.HealthServicer()
        self._handlers: dict[str, Any] = {}
        self._links = LinkService(instance, self._handlers, link_age_s) if instance else None

    async def start(self, registrations: Sequence[Registration], bind_host: str) -> str:
        """Serves on a free port; returns the address."""
        recorder = _Recorder(self._server)
        for add, servicer in registrations:
            add(servicer, recorder)  # type: ignore[arg-type]
        if self._links is not None:
            for method, handler in recorder.handlers.items():
                self._handlers[method] = self._interceptor.wrap(method, handler)
            link_pb2_grpc.add_LinkServiceServicer_to_server(self._links, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*recorder.names, "grpc.health.v1.Health", reflection.SERVICE_NAME), self._server
        )
        port = self._server.add_secure_port(f"{bind_host}:0", self._credentials)
        await self._server.start()
        for name in ("", *recorder.names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return f"{bind_host}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls and waits at most grace_s seconds for the running ones."""
        await self._health.enter_graceful_shutdown()
        if self._links is not None:
            self._links.drain()
        await self._server.stop(grace_s)


class _Recorder:
    """Notes the names and methods of the services that generated code registers."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.names: list[str] = []
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self.names += [handler.service_name() for handler in handlers]
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        for name, handler in handlers.items():
            self.handlers[f"{service}/{name}"] = handler
        self._server.add_registered_method_handlers(service, handlers)
