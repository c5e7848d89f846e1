"""Logs, metrics and traces of a process, set up once."""

import contextlib
import logging
import os
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog
from opentelemetry import trace
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import start_http_server

STANDARD_OUTPUT = 1


def configure(service: str, instance: str, log_level: str) -> None:
    """Sets up structured logs (JSON lines on standard output) and tracing.

    Spans leave the process only when OTEL_EXPORTER_OTLP_ENDPOINT is set; trace ids travel and are
    logged in any case.
    """
    structlog.configure(
        processors=[
            _with_trace_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[log_level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Output())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    _instance[0] = instance
    exporting = bool(os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT))
    provider = TracerProvider(
        # A span that nobody will see need not be recorded; its ids travel all the same.
        sampler=sampling.DEFAULT_ON if exporting else sampling.ALWAYS_OFF,
        resource=Resource.create({"service.name": service, "service.instance.id": instance}),
    )
    if exporting:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class _Output:
    """Standard output, onto which writing never raises and never waits for long.

    A log line that finds no room (a full disk, a reader that is held up) must not end the call that
    it is about.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(STANDARD_OUTPUT, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        pass


def serve_metrics(host: str) -> str:
    """Serves Prometheus metrics at http://<address>/metrics on a free port; returns the address."""
    server, _ = start_http_server(0, addr=host)
    return f"{host}:{server.server_port}"


_instance = [""]


def _with_trace_id(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["at"] = _instance[0]
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = f"{span.trace_id:032x}"
    return event
