"""Every failure a client can see: `chatmesh.chat.v1.Reason`, and the gRPC code of each.

    MeshError(code, reason, message, metadata)
    ├── what the caller can mend    INVALID_PARAMETER · INVALID_BODY · *_NOT_FOUND
    │                               CONTEXT_LENGTH_EXCEEDED · CONTENT_FILTER · CURSOR_INVALID
    │                               CURSOR_LOST · IDEMPOTENCY_KEY_REUSED
    ├── what the caller may not     INVALID_API_KEY · INVALID_TOKEN · INSUFFICIENT_SCOPE
    ├── what a wait or money mends  RATE_LIMIT_EXCEEDED · INSUFFICIENT_QUOTA · OVERLOADED
    └── what is ours to mend        SERVICE_UNAVAILABLE · TIMEOUT · INTERNAL_ERROR

`gateway/faces/openai/errors.py` is the one table from here to HTTP.
"""

import grpc

from mesh.chassis.errors import MeshError

INVALID_API_KEY = "INVALID_API_KEY"
INVALID_TOKEN = "INVALID_TOKEN"  # noqa: S105  # the name of a reason
INSUFFICIENT_SCOPE = "INSUFFICIENT_SCOPE"
RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
INSUFFICIENT_QUOTA = "INSUFFICIENT_QUOTA"
INVALID_PARAMETER = "INVALID_PARAMETER"
INVALID_BODY = "INVALID_BODY"
MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
CONVERSATION_NOT_FOUND = "CONVERSATION_NOT_FOUND"
CONTENT_FILTER = "CONTENT_FILTER"
OVERLOADED = "OVERLOADED"
SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
TIMEOUT = "TIMEOUT"
INTERNAL_ERROR = "INTERNAL_ERROR"
TURN_NOT_FOUND = "TURN_NOT_FOUND"
CURSOR_INVALID = "CURSOR_INVALID"
CURSOR_LOST = "CURSOR_LOST"
IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"

CODES = {
    INVALID_API_KEY: grpc.StatusCode.UNAUTHENTICATED,
    INVALID_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    INSUFFICIENT_SCOPE: grpc.StatusCode.PERMISSION_DENIED,
    RATE_LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    INSUFFICIENT_QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    INVALID_PARAMETER: grpc.StatusCode.INVALID_ARGUMENT,
    INVALID_BODY: grpc.StatusCode.INVALID_ARGUMENT,
    MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    CONVERSATION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    CONTENT_FILTER: grpc.StatusCode.INVALID_ARGUMENT,
    OVERLOADED: grpc.StatusCode.UNAVAILABLE,
    SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
    TURN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    CURSOR_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    CURSOR_LOST: grpc.StatusCode.OUT_OF_RANGE,
    IDEMPOTENCY_KEY_REUSED: grpc.StatusCode.ALREADY_EXISTS,
}


def public(
    reason: str, message: str, *, retry_after_s: float | None = None, **metadata: str
) -> MeshError:
    """A failure as the client sees it.

    Args:
        reason: a word of chat.v1.Reason without its prefix.
        message: what happened and what to do about it.
        retry_after_s: seconds after which the same request may succeed.
        metadata: such as param="model".
    """
    return MeshError(CODES[reason], reason, message, metadata=metadata, retry_after_s=retry_after_s)


def bad_parameter(param: str, message: str) -> MeshError:
    """INVALID_PARAMETER for one parameter, named as OpenAI names it ("messages[0].role")."""
    return public(INVALID_PARAMETER, message, param=param)


def is_public(error: MeshError) -> bool:
    """Whether the reason is one that clients know."""
    return error.reason in CODES
