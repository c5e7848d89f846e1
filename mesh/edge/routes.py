"""The RouteConfiguration: one route for each public method, 404 for all else.

Routes are in RDS and not in the listener, because a change of the listener ends long streams and
a change of routes does not.
"""

from mesh.edge.contract import REFLECTION, HttpBinding, http_bindings, native_methods
from mesh.edge.inputs import FRAMING_BYTES_MAX, EdgeInputs
from mesh.xds import (
    RETRY_COUNT,
    RETRY_ELSEWHERE,
    RETRY_ON_JOINABLE,
    RETRY_ON_NOT_BEGUN,
    RETRY_ON_REPEATABLE,
    Resource,
    seconds,
    typed,
)

ROUTE_CONFIG_NAME = "edge"
CORS_MAX_AGE_S = 7200
HEALTH_BODY = '{"status":"ok"}'
# Also what a browser page may read of an answer.
EXPOSED_HEADERS = (
    "x-request-id,retry-after,x-ratelimit-limit-requests,x-ratelimit-remaining-requests,"
    "x-ratelimit-reset-requests,x-turn-id,x-turn-journal,x-conversation-id,www-authenticate,grpc-status,grpc-message,grpc-status-details-bin"
)
EXT_AUTHZ = "envoy.filters.http.ext_authz"
FILTERS_OF_THE_GATEWAY = (EXT_AUTHZ, "envoy.filters.http.grpc_json_transcoder")
# An API key, or a token of three parts; whether it is one, the gateway finds out. Envoy takes no
# regex whose program is over 100 instructions: no lengths here.
CREDENTIAL = r"(?i:bearer) +(cm-[\w-]+|[\w=-]+\.[\w=-]+\.[\w=-]+) *"
# Names a request, however often it is tried: when it came, in ms since the epoch, and its id. Of
# it and the account the gateway makes the id of the turn.
REQUEST_KEY = "x-chatmesh-request"
REQUEST_FORMAT = "%START_TIME(%s%3f)%.%REQ(X-REQUEST-ID)%"


def route_configuration(inputs: EdgeInputs) -> Resource:
    """The RouteConfiguration "edge"."""
    bindings = http_bindings()
    routes = [
        *(route for each in bindings for route in _http_routes(each, inputs)),
        *(
            route
            for rpc in (*native_methods(), *REFLECTION)
            for route in _routes_of(rpc, {"path": f"/{rpc}"}, [], inputs)
        ),
        _preflight_route(inputs),
        _answer({"path": "/healthz"}, 200, HEALTH_BODY),
        *_wrong_verb_routes(bindings),
        _answer({"prefix": "/"}, 404, "Unknown URL"),
    ]
    host = {
        "name": "edge",
        "domains": ["*"],
        "routes": routes,
        # Whether a request was counted against its account's rate before.
        "include_request_attempt_count": True,
        # What is repeated is kept: without this a body over the connection's buffer (1 MiB) is not.
        "request_body_buffer_limit": inputs.limits.request_body_bytes_max + FRAMING_BYTES_MAX,
        "typed_per_filter_config": {"envoy.filters.http.cors": _cors(inputs)},
    }
    return {"name": ROUTE_CONFIG_NAME, "virtual_hosts": [host]}


def _http_routes(binding: HttpBinding, inputs: EdgeInputs) -> list[Resource]:
    verb = {"name": ":method", "string_match": {"exact": binding.verb}}
    return _routes_of(binding.rpc, _path(binding), [verb], inputs)


def _routes_of(
    rpc: str, path: Resource, headers: list[Resource], inputs: EdgeInputs
) -> list[Resource]:
    """The route of a method; before it, where the gateway admits itself, that of credible calls.

    What begins a turn is admitted by the call that serves it, which costs one call less. A request
    without anything like a key is refused before its body is read, as everywhere else.
    """
    match = {**path, **({"headers": headers} if headers else {})}
    route = {"match": match, "route": _to_gateway(rpc, inputs)}
    if rpc not in inputs.joinable_methods:
        return [route]
    credible = {"name": "authorization", "string_match": {"safe_regex": {"regex": CREDENTIAL}}}
    return [
        {
            **route,
            "match": {**path, "headers": [*headers, credible]},
            "typed_per_filter_config": {EXT_AUTHZ: _disabled()},
            "request_headers_to_add": [_header(REQUEST_KEY, REQUEST_FORMAT)],
        },
        route,
    ]


def _preflight_route(inputs: EdgeInputs) -> Resource:
    """A place for the CORS filter to answer from: it passes over routes without a cluster.

    Nothing gets further: a preflight of any origin ends in that filter.
    """
    present = ("origin", "access-control-request-method")
    headers = [
        {"name": ":method", "string_match": {"exact": "OPTIONS"}},
        *({"name": name, "present_match": True} for name in present),
    ]
    return {
        "match": {"prefix": "/", "headers": headers},
        "route": {"cluster": inputs.gateway_cluster},
    }


def _path(binding: HttpBinding) -> Resource:
    return {"prefix" if binding.is_prefix else "path": binding.path}


def _to_gateway(rpc: str, inputs: EdgeInputs) -> Resource:
    return {
        "cluster": inputs.gateway_cluster,
        # Envoy's default of 15 s would cut every long answer; the gateway owns the deadline.
        "timeout": "0s",
        "idle_timeout": seconds(inputs.limits.stream_silence_s_max),
        "retry_policy": {
            "retry_on": _retry_on(rpc, inputs),
            "num_retries": RETRY_COUNT,
            **RETRY_ELSEWHERE,
        },
    }


def _retry_on(rpc: str, inputs: EdgeInputs) -> str:
    if rpc in inputs.repeatable_methods:
        return RETRY_ON_REPEATABLE
    return RETRY_ON_JOINABLE if rpc in inputs.joinable_methods else RETRY_ON_NOT_BEGUN


def _wrong_verb_routes(bindings: list[HttpBinding]) -> list[Resource]:
    """405 for paths that exist with other verbs; after the routes that match."""
    verbs: dict[tuple[str, bool], list[str]] = {}
    for each in bindings:
        verbs.setdefault((each.path, each.is_prefix), []).append(each.verb)
    return [
        {
            **_answer({"prefix" if is_prefix else "path": path}, 405, "Method not allowed"),
            "response_headers_to_add": [_header("allow", ", ".join(sorted(allowed)))],
        }
        for (path, is_prefix), allowed in verbs.items()
    ]


def _answer(match: Resource, status: int, body: str) -> Resource:
    """A route that the edge answers itself: nobody is asked for a key, nothing is transcoded."""
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "typed_per_filter_config": dict.fromkeys(FILTERS_OF_THE_GATEWAY, _disabled()),
    }


def _disabled() -> Resource:
    return typed("envoy.config.route.v3.FilterConfig", disabled=True)


def _header(name: str, value: str) -> Resource:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def _cors(inputs: EdgeInputs) -> Resource:
    origins = [
        {"safe_regex": {"regex": ".*"}} if origin == "*" else {"exact": origin}
        for origin in inputs.cors_origins
    ]
    return typed(
        "envoy.extensions.filters.http.cors.v3.CorsPolicy",
        allow_origin_string_match=origins,
        allow_methods="GET, POST, PATCH, DELETE",
        # "*" does not cover authorization (Fetch standard); SDKs add headers of their own.
        allow_headers="authorization, *",
        expose_headers=EXPOSED_HEADERS,
        max_age=str(CORS_MAX_AGE_S),
        # Keys travel in a header, never in a cookie.
        allow_credentials=False,
        # A foreign page's preflight ends here instead of asking the gateway for a key.
        forward_not_matching_preflights=False,
    )
