"""A trace collector (OTLP over gRPC) that keeps what it gets."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

SPANS_MAX = 200_000


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Spans by trace id: {trace id: {(instance, method)}}."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: dict[str, set[tuple[str, str]]] = {}
        self._count = 0
        self.endpoint = ""

    def Export(self, request, context):  # noqa: N802
        with self._changed:
            for resource in request.resource_spans:
                names = {a.key: a.value.string_value for a in resource.resource.attributes}
                instance = names.get("service.instance.id", "")
                for span in (s for scope in resource.scope_spans for s in scope.spans):
                    self._count += 1
                    if self._count <= SPANS_MAX:
                        trace = self._spans.setdefault(span.trace_id.hex(), set())
                        trace.add((instance, span.name))
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, trace_id: str, services: set[str], timeout_s: float = 20) -> set[str]:
        """Services seen in a trace, once all of `services` are among them or time is up."""

        def seen() -> set[str]:
            spans = self._spans.get(trace_id, ())
            return {instance.rsplit("-", 1)[0] for instance, _ in spans}

        with self._changed:
            self._changed.wait_for(lambda: services <= seen(), timeout_s)
            return seen()


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Runs a collector on a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()
