"""The HTTP filters, in the order in which a request meets them (an answer meets them backwards)."""

import base64
from pathlib import Path

from mesh.edge.contract import descriptor_set, transcoded_services
from mesh.edge.inputs import FRAMING_BYTES_MAX, EdgeInputs
from mesh.edge.replies import AUTHORIZATION_FAILED_STATUS
from mesh.xds import RETRY_ELSEWHERE, RETRY_ON_REPEATABLE, Resource, seconds, typed

HTTP = "envoy.extensions.filters.http."
COMPRESSED_BYTES_MIN = 512
# As the chassis has it: what one gRPC message may have.
MESSAGE_BYTES_MAX = 8 << 20
LUA_SOURCE = Path(__file__).with_name("answers.lua")


def http_filters(inputs: EdgeInputs, *, is_public: bool) -> list[Resource]:
    """cors → (local_ratelimit) → compressor → lua → grpc_web → ext_authz → transcoder → router."""
    return [
        # A preflight has no key: answered before anybody asks for one.
        _filter("cors", typed(HTTP + "cors.v3.Cors")),
        # Before anything that costs: a flood of bad keys ends here.
        *([_filter("local_ratelimit", _by_address(inputs))] if is_public else []),
        # Outside of lua: a body that lua rewrites must not be compressed yet.
        _filter("compressor", _compressor()),
        # Outside of the transcoder: shapes the errors that come out of it.
        _filter("lua", _lua()),
        # Outside of ext_authz: a refusal reaches a browser's gRPC client as gRPC.
        _filter("grpc_web", typed(HTTP + "grpc_web.v3.GrpcWeb")),
        # Before the transcoder: admission sees the path that the stranger asked for.
        _filter("ext_authz", _authorization(inputs)),
        _filter("grpc_json_transcoder", _transcoder(inputs)),
        _filter("router", typed(HTTP + "router.v3.Router", suppress_envoy_headers=True)),
    ]


def strip_spoofed_headers() -> Resource:
    """Removes, before any filter and any route, the headers by which the mesh tells who is asking.

    Not in lua: a script that fails lets the request pass.
    """
    prefixes = ("x-chatmesh-", "x-envoy-", "x-http-status", "grpc-previous-rpc-attempts")
    removals = [{"remove_on_match": {"key_matcher": {"prefix": each}}} for each in prefixes]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": typed(
            "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            mutations=removals,
        ),
    }


def _filter(name: str, config: Resource) -> Resource:
    return {"name": f"envoy.filters.http.{name}", "typed_config": config}


def _by_address(inputs: EdgeInputs) -> Resource:
    """A token bucket for each source address; what has none left is answered with 429."""
    limits = inputs.limits
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    bucket = {
        "max_tokens": limits.address_burst_max,
        "tokens_per_fill": limits.address_requests_per_s_max,
        "fill_interval": "1s",
    }
    return typed(
        HTTP + "local_ratelimit.v3.LocalRateLimit",
        stat_prefix="address",
        filter_enabled=always,
        filter_enforced=always,
        rate_limits=[{"actions": [{"remote_address": {}}]}],
        # An entry without a value: a bucket for each value that comes.
        descriptors=[{"entries": [{"key": "remote_address"}], "token_bucket": bucket}],
        max_dynamic_descriptors=limits.address_count_max,
        # Of what has no address, which nothing has.
        token_bucket=bucket,
        always_consume_default_token_bucket=False,
        response_headers_to_add=[{"header": {"key": "retry-after", "value": "1"}}],
    )


def _compressor() -> Resource:
    library = typed(
        "envoy.extensions.compression.gzip.compressor.v3.Gzip",
        compression_level="COMPRESSION_LEVEL_3",
    )
    return typed(
        HTTP + "compressor.v3.Compressor",
        # The default list of content types: JSON is on it, text/event-stream is not, so that
        # no event waits in a compressor's window.
        response_direction_config={"common_config": {"min_content_length": COMPRESSED_BYTES_MIN}},
        compressor_library={"name": "gzip", "typed_config": library},
    )


def _lua() -> Resource:
    source = {"inline_string": LUA_SOURCE.read_text(encoding="utf-8")}
    return typed(HTTP + "lua.v3.Lua", default_source_code=source)


def _authorization(inputs: EdgeInputs) -> Resource:
    return typed(
        HTTP + "ext_authz.v3.ExtAuthz",
        grpc_service={
            "envoy_grpc": {"cluster_name": inputs.gateway_cluster},
            # Two tries, of which each may take all that one may take.
            "timeout": seconds(2 * inputs.limits.authorization_s_max),
            # A check may be repeated (topology); it is when a gateway has just gone.
            "retry_policy": {
                "retry_on": RETRY_ON_REPEATABLE,
                "num_retries": 2,
                **RETRY_ELSEWHERE,
                # Of a gRPC service Envoy takes max_interval for the timeout of each try, too.
                "retry_back_off": {
                    "base_interval": "0.025s",
                    "max_interval": seconds(inputs.limits.authorization_s_max),
                },
            },
        },
        transport_api_version="V3",
        failure_mode_allow=False,
        status_on_error={"code": AUTHORIZATION_FAILED_STATUS},
        clear_route_cache=False,
    )


def _transcoder(inputs: EdgeInputs) -> Resource:
    return typed(
        HTTP + "grpc_json_transcoder.v3.GrpcJsonTranscoder",
        proto_descriptor_bin=base64.b64encode(descriptor_set()).decode(),
        services=transcoded_services(),
        # Turns errors into JSON; answers are HttpBody and pass as they are.
        convert_grpc_status=True,
        # The route of the HTTP path stays in force, so that "/chatmesh.gateway.v1.OpenAIService/"
        # needs no route and cannot be called from outside.
        match_incoming_request_route=True,
        # An id with an escaped slash ("org%2Fmodel") arrives as the caller meant it.
        url_unescape_spec="ALL_CHARACTERS",
        # OpenAI's clients may send parameters that we do not know.
        ignore_unknown_query_parameters=True,
        request_validation_options={
            # Else an unknown path would reach the gateway as plain HTTP.
            "reject_unknown_method": True,
            # "?body.data=…" must not change what the body says.
            "reject_binding_body_field_collisions": True,
        },
        print_options={"preserve_proto_field_names": True},
        max_request_body_size=inputs.limits.request_body_bytes_max + FRAMING_BYTES_MAX,
        # A whole answer in one message; by itself Envoy gives up at some megabytes (500).
        max_response_body_size=MESSAGE_BYTES_MAX + FRAMING_BYTES_MAX,
    )
