"""Failures as OpenAI shapes them: the one table from reasons to HTTP."""

import json
import math
from dataclasses import dataclass

import grpc

from gateway import errors
from gateway.admission.rate import RateExceededError
from gateway.turn.domain import Failed
from mesh.chassis.errors import MeshError

# Reason -> (HTTP status, type). The code is the reason in lower case.
TABLE = {
    errors.INVALID_API_KEY: (401, "invalid_request_error"),
    errors.INVALID_TOKEN: (401, "invalid_request_error"),
    errors.INSUFFICIENT_SCOPE: (403, "permission_error"),
    errors.RATE_LIMIT_EXCEEDED: (429, "rate_limit_error"),
    errors.INSUFFICIENT_QUOTA: (429, "insufficient_quota"),
    errors.INVALID_PARAMETER: (400, "invalid_request_error"),
    errors.INVALID_BODY: (400, "invalid_request_error"),
    errors.MODEL_NOT_FOUND: (404, "invalid_request_error"),
    errors.CONTEXT_LENGTH_EXCEEDED: (400, "invalid_request_error"),
    errors.CONVERSATION_NOT_FOUND: (404, "invalid_request_error"),
    errors.CONTENT_FILTER: (400, "invalid_request_error"),
    errors.OVERLOADED: (503, "server_error"),
    errors.SERVICE_UNAVAILABLE: (503, "server_error"),
    errors.TIMEOUT: (504, "server_error"),
    errors.INTERNAL_ERROR: (500, "server_error"),
    errors.TURN_NOT_FOUND: (404, "invalid_request_error"),
    errors.CURSOR_INVALID: (400, "invalid_request_error"),
    errors.CURSOR_LOST: (416, "invalid_request_error"),
    errors.IDEMPOTENCY_KEY_REUSED: (409, "invalid_request_error"),
}
# OpenAI's SDKs repeat every 429; this header tells them not to, where no wait helps.
NO_RETRY = ("x-should-retry", "false")


@dataclass(frozen=True, slots=True)
class HttpError:
    """A failure as HTTP shows it."""

    status: int
    body: bytes
    # When to come again, with what, and hints to SDKs.
    headers: tuple[tuple[str, str], ...] = ()


def public_error(error: Exception) -> MeshError:
    """Any failure as one that a client may see; what is not public becomes INTERNAL_ERROR."""
    if isinstance(error, MeshError):
        if errors.is_public(error):
            return error
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.public(errors.TIMEOUT, "The request took too long; try a shorter one.")
    if isinstance(error, TimeoutError):
        return errors.public(errors.TIMEOUT, "The time for this request ran out; ask for less.")
    return errors.public(errors.INTERNAL_ERROR, "A fault of ours; try again shortly.")


def failure_error(event: Failed) -> MeshError:
    """The failure that ended a turn."""
    return errors.public(
        event.reason, event.message, retry_after_s=event.retry_after_s, **event.metadata
    )


def error_object(error: MeshError) -> dict[str, object]:
    """The value of "error" in a body or an event."""
    _, kind = TABLE[error.reason]
    shown: dict[str, object] = {
        "message": error.message,
        "type": kind,
        "param": error.metadata.get("param"),
        "code": error.reason.lower(),
    }
    extra = {key: value for key, value in error.metadata.items() if key != "param"}
    return shown | ({"metadata": extra} if extra else {})


def error_body(error: MeshError) -> bytes:
    """The JSON body."""
    return json.dumps({"error": error_object(error)}, ensure_ascii=False).encode()


def http_error(error: MeshError) -> HttpError:
    """The failure with its status and headers."""
    status, _ = TABLE[error.reason]
    headers = []
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    if error.reason == errors.INSUFFICIENT_QUOTA:
        headers.append(NO_RETRY)
    if error.code is grpc.StatusCode.UNAUTHENTICATED:
        headers.append(("www-authenticate", "Bearer"))
    if isinstance(error, RateExceededError):
        headers += error.allowance.headers().items()
    return HttpError(status, error_body(error), tuple(headers))
