"""What a failed call of an upstream means to a client: one table."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import grpc
import structlog

from gateway import errors, metrics
from gateway.errors import public
from mesh.chassis.errors import MeshError

T = TypeVar("T")
RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0

log = structlog.get_logger()

# (service, its reason) -> the public reason. What is not here is a fault of ours.
REASONS = {
    ("billing", "BUDGET_EXHAUSTED"): errors.INSUFFICIENT_QUOTA,
    ("billing", "TOKEN_RATE_EXCEEDED"): errors.RATE_LIMIT_EXCEEDED,
    ("billing", "PARALLEL_EXCEEDED"): errors.RATE_LIMIT_EXCEEDED,
    ("billing", "ACCOUNT_NOT_FOUND"): errors.INVALID_API_KEY,
    ("billing", "ACCOUNT_CLOSED"): errors.INVALID_API_KEY,
    ("billing", "KEY_NOT_FOUND"): errors.INVALID_API_KEY,
    ("billing", "KEY_REVOKED"): errors.INVALID_API_KEY,
    ("billing", "KEY_EXPIRED"): errors.INVALID_API_KEY,
    ("billing", "STORE_UNAVAILABLE"): errors.SERVICE_UNAVAILABLE,
    ("billing", "BAD_REQUEST"): errors.INVALID_PARAMETER,
    ("conversation", "THREAD_NOT_FOUND"): errors.CONVERSATION_NOT_FOUND,
    ("conversation", "BAD_PAGE_TOKEN"): errors.INVALID_PARAMETER,
    ("conversation", "BAD_REQUEST"): errors.INVALID_PARAMETER,
    ("conversation", "STORE_UNAVAILABLE"): errors.SERVICE_UNAVAILABLE,
    ("tokenizer", "MODEL_NOT_FOUND"): errors.MODEL_NOT_FOUND,
    ("tokenizer", "CONTEXT_LENGTH_EXCEEDED"): errors.CONTEXT_LENGTH_EXCEEDED,
    ("tokenizer", "BAD_MESSAGES"): errors.INVALID_PARAMETER,
    ("tokenizer", "TEMPLATE_FAILED"): errors.INVALID_PARAMETER,
    ("safety", "AUDIT_UNAVAILABLE"): errors.SERVICE_UNAVAILABLE,
    ("safety", "NO_POLICY"): errors.SERVICE_UNAVAILABLE,
    ("safety", "OVERLOADED"): errors.OVERLOADED,
    ("inference", "MODEL_NOT_FOUND"): errors.MODEL_NOT_FOUND,
    ("inference", "PROMPT_TOO_LONG"): errors.CONTEXT_LENGTH_EXCEEDED,
    ("inference", "REQUEST_TOO_LARGE"): errors.CONTEXT_LENGTH_EXCEEDED,
    ("inference", "BAD_REQUEST"): errors.INVALID_PARAMETER,
    ("inference", "QUEUE_FULL"): errors.OVERLOADED,
    ("inference", "DEADLINE_UNREACHABLE"): errors.OVERLOADED,
    ("inference", "DRAINING"): errors.OVERLOADED,
}
# Which parameter of a request a field of an upstream came from, where the names differ.
PARAMS = {
    "tokenizer": "messages",
    "CONVERSATION_NOT_FOUND": "conversation_id",
    "MODEL_NOT_FOUND": "model",
    "CONTEXT_LENGTH_EXCEEDED": "messages",
    "BAD_PAGE_TOKEN": "page_token",
}
# Fields of a node's request that clients know by another name.
FIELDS = {"calls": "tools"}
# Reasons whose own words are for the client; others could speak of what is not theirs.
SPOKEN = {errors.CONTEXT_LENGTH_EXCEEDED, errors.INVALID_PARAMETER}
# Whose limit it was, and how much it is.
LIMIT_FACTS = ("payer", "limit")
RETRY_AFTER_S_DEFAULT = 1.0
# What the same call may mend later.
TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
}

_MESSAGES = {
    errors.INSUFFICIENT_QUOTA: "Your budget has no room for this request; ask for fewer "
    "max_tokens, wait for the next month or raise the budget.",
    errors.INVALID_API_KEY: "This key or its account does not work any more; use another one.",
    errors.CONVERSATION_NOT_FOUND: "You have no conversation of this id.",
    errors.MODEL_NOT_FOUND: "No such model; GET /v1/models lists those that answer.",
    errors.OVERLOADED: "All nodes are busy; try again shortly.",
    errors.INTERNAL_ERROR: "A fault of ours; try again, and tell the operator if it stays.",
}
# By the upstream's reason, where one of ours has several.
_LIMITS = {
    "TOKEN_RATE_EXCEEDED": "The tokens of this minute are used up or reserved; ask for fewer "
    "max_tokens, or try again in the next minute.",
    "PARALLEL_EXCEEDED": "As many requests run as may run at once; wait for one of them to end.",
}


def translate(service: str, error: MeshError) -> MeshError:
    """The public failure for an upstream's."""
    if errors.is_public(error) and (service, error.reason) not in REASONS:
        return error
    reason = REASONS.get((service, error.reason)) or _by_code(error)
    message = _LIMITS.get(error.reason) or _MESSAGES.get(reason, "")
    if reason in SPOKEN:
        message = error.message
    elif reason == errors.SERVICE_UNAVAILABLE:
        message = f"The {service} service does not answer; try again shortly."
    elif reason == errors.TIMEOUT:
        message = f"The {service} service took too long; try again shortly."
    told = error.metadata if reason in SPOKEN else {}
    if reason in (errors.INSUFFICIENT_QUOTA, errors.RATE_LIMIT_EXCEEDED):
        told = {key: error.metadata[key] for key in LIMIT_FACTS if key in error.metadata}
    facts = dict(told)
    facts.pop("field", None)
    if param := _param(service, reason, error):
        facts["param"] = param
    if reason in (errors.SERVICE_UNAVAILABLE, errors.TIMEOUT):
        facts["service"] = service
    return public(reason, message, retry_after_s=_retry_after_s(reason, error), **facts)


def may_pass(error: MeshError) -> bool:
    """Whether the same call may succeed later, or perhaps did although nobody heard."""
    return error.code in TRANSIENT


def _by_code(error: MeshError) -> str:
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.SERVICE_UNAVAILABLE
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.TIMEOUT
    return errors.INTERNAL_ERROR


def _param(service: str, reason: str, error: MeshError) -> str:
    if reason == errors.INVALID_PARAMETER:
        field = error.metadata.get("field", "").removeprefix("sampling.")
        field = FIELDS.get(field, field)
        return PARAMS.get(service) or PARAMS.get(error.reason) or field
    return PARAMS.get(reason, "")


def _retry_after_s(reason: str, error: MeshError) -> float | None:
    if reason in (errors.OVERLOADED, errors.SERVICE_UNAVAILABLE):
        return error.retry_after_s or RETRY_AFTER_S_DEFAULT
    return error.retry_after_s


@contextlib.contextmanager
def translated(service: str) -> Iterator[None]:
    """Turns the failure of a call inside into a public one."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translate(service, MeshError.from_rpc(error)) from error
    except MeshError as error:  # the chassis refused to call: too little time is left
        raise translate(service, error) from error


async def until_accepted(what: str, call: Callable[[], Awaitable[T]]) -> T | None:
    """Repeats a repeatable call; its result, or None: it was refused for good.

    Args:
        what: for the log and the metric.
        call: the call.
    """
    delay_s = RETRY_S_MIN
    while True:
        try:
            return await call()
        except MeshError as error:
            if not may_pass(error):
                metrics.CONCLUSIONS_LOST.labels(what).inc()
                log.error("conclusion_refused", what=what, reason=error.reason)
                return None
        except asyncio.CancelledError:
            metrics.CONCLUSIONS_LOST.labels(what).inc()
            raise
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RETRY_S_MAX)
