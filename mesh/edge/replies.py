"""What the edge says when it answers itself, in OpenAI's shape.

Mappers are tried in order; the first that fits decides. Envoy formats the JSON, so that text of
the request inside a message is escaped.
"""

from dataclasses import dataclass

from mesh.edge.inputs import EdgeLimits
from mesh.xds import Resource

# Envoy's own sign for "the authorization service did not answer"; shown to strangers as 503. A
# status that admission never denies with, so that the two can be told apart.
AUTHORIZATION_FAILED_STATUS = 502
REFUSED_BY_ADMISSION_FLAG = "UAEX"
# Set by the transcoder; from outside it is stripped.
TRANSCODED_SIGN = "x-envoy-original-path"
ORIGINAL_PATH = "%PATH(NQ:ORIG_OR_PATH)%"
# In logs: so much of it at most.
LOGGED_PATH = "%PATH(NQ:ORIG_OR_PATH):512%"


@dataclass(frozen=True)
class Reply:
    """One local reply; `message` is an Envoy format string."""

    status: int
    message: str
    type: str
    code: str


def local_replies(limits: EdgeLimits) -> Resource:
    """HttpConnectionManager.local_reply_config."""
    return {
        "mappers": [
            _verbatim(_native_request(), "text/plain"),
            # Without this one /healthz would be wrapped as an error too.
            _verbatim(_status("LE", 399), "application/json"),
            {
                **_json(ADMISSION_SILENT),
                "filter": _both(_refused(), _status("EQ", AUTHORIZATION_FAILED_STATUS)),
                "status_code": ADMISSION_SILENT.status,
            },
            # Admission's own words: a complete body.
            _verbatim(_refused(), "application/json"),
            *({**_json(each), "filter": _status("EQ", each.status)} for each in _replies(limits)),
        ],
        "body_format": _json(OTHER)["body_format_override"],
    }


ADMISSION_SILENT = Reply(
    503,
    "Keys cannot be checked at the moment; try again in a few seconds.",
    "server_error",
    "service_unavailable",
)
OTHER = Reply(
    500,
    "The edge answered this request itself: %LOCAL_REPLY_BODY% (%RESPONSE_CODE_DETAILS%).",
    "server_error",
    "edge_error",
)


def _replies(limits: EdgeLimits) -> list[Reply]:
    body_mib = f"{limits.request_body_bytes_max / (1 << 20):g} MiB"
    bad = "invalid_request_error"
    return [
        Reply(
            400,
            "The request is not valid: %LOCAL_REPLY_BODY% (%RESPONSE_CODE_DETAILS%).",
            bad,
            "bad_request",
        ),
        Reply(
            404,
            f"Unknown request URL: %REQ(:METHOD)% {ORIGINAL_PATH}. Please check the URL for typos.",
            bad,
            "unknown_url",
        ),
        Reply(
            405,
            f"%REQ(:METHOD)% is not allowed on {ORIGINAL_PATH}; the allow header has what is.",
            bad,
            "method_not_allowed",
        ),
        Reply(
            408,
            f"The request was not complete within {limits.request_s_max:g} s; send it faster.",
            bad,
            "request_timeout",
        ),
        Reply(
            413,
            f"The request body is larger than the {body_mib} that are allowed; send less.",
            bad,
            "request_too_large",
        ),
        Reply(
            426,
            "This version of HTTP is too old; use HTTP/1.1 or HTTP/2.",
            bad,
            "upgrade_required",
        ),
        Reply(
            429,
            f"Your address asks for more than {limits.address_requests_per_s_max} requests a "
            "second; wait a second, then ask for less.",
            "rate_limit_error",
            "rate_limit_exceeded",
        ),
        Reply(
            431,
            f"The request headers are larger than the {limits.request_headers_kib_max} KiB, or "
            f"more than the {limits.request_header_count_max}, that are allowed; send fewer.",
            bad,
            "request_headers_too_large",
        ),
        Reply(
            503,
            "The service cannot take the request at the moment; try again in a few seconds.",
            "server_error",
            "service_unavailable",
        ),
        Reply(
            504,
            "The answer took too long; try again, or ask for less.",
            "server_error",
            "timeout",
        ),
    ]


def _json(reply: Reply) -> Resource:
    error = {
        "message": reply.message,
        "type": reply.type,
        "param": None,
        "code": reply.code,
    }
    return {"body_format_override": {"json_format": {"error": error}}}


def _verbatim(condition: Resource, content_type: str) -> Resource:
    body = {
        "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
        "content_type": content_type,
    }
    return {"filter": condition, "body_format_override": body}


def _status(comparison: str, status: int) -> Resource:
    value = {"default_value": status, "runtime_key": "edge.never_set"}
    return {"status_code_filter": {"comparison": {"op": comparison, "value": value}}}


def _refused() -> Resource:
    return {"response_flag_filter": {"flags": [REFUSED_BY_ADMISSION_FLAG]}}


def _native_request() -> Resource:
    """A gRPC client: it gets the text as its status message, not JSON.

    The transcoder gives HTTP requests gRPC's content type too, but keeps their path.
    """
    grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    not_transcoded = {"name": TRANSCODED_SIGN, "present_match": True, "invert_match": True}
    return _both({"header_filter": {"header": grpc}}, {"header_filter": {"header": not_transcoded}})


def _both(*conditions: Resource) -> Resource:
    return {"and_filter": {"filters": list(conditions)}}
