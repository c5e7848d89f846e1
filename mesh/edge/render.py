"""The edge's xDS resources: listeners, routes, secrets. Pure: values in, dicts out.

The control plane adds the clusters and endpoints, and serves all of it over ADS.
"""

from mesh.edge.filters import http_filters, strip_spoofed_headers
from mesh.edge.inputs import IDENTITY_SDS_PATH, EdgeInputs, EdgeLimits
from mesh.edge.replies import LOGGED_PATH, local_replies
from mesh.edge.routes import ROUTE_CONFIG_NAME, route_configuration
from mesh.xds import (
    ADS,
    LISTENER,
    ROUTES,
    SECRET,
    Resource,
    seconds,
    socket_address,
    typed,
)

__all__ = [
    "UPSTREAM_CIRCUIT_BREAKERS",
    "UPSTREAM_HTTP2",
    "EdgeInputs",
    "EdgeLimits",
    "edge_resources",
    "upstream_tls",
]

MESH_CA_SECRET = "mesh-ca"  # noqa: S105 - the name of a resource
WEB_SECRET = "web-cert"  # noqa: S105 - the name of a resource
IDENTITY_SECRET = "identity"  # noqa: S105 - the name of a resource
HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
TLS = "envoy.extensions.transport_sockets.tls.v3."

# Cluster.typed_extension_protocol_options of every cluster that Envoy calls: gRPC, with pings that
# find a dead peer (the chassis' servers permit one in 5 s).
UPSTREAM_HTTP2: Resource = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={
            "http2_protocol_options": {
                "connection_keepalive": {"interval": "10s", "timeout": "5s"},
                "max_concurrent_streams": 100_000,
            }
        },
    )
}
# Cluster.circuit_breakers. Envoy's default of 1024 requests at once would refuse streams long
# before connections_max x streams do; the gateway's own admission is what binds. Retries are
# bounded to as many as run, so that they never become a storm: when one of two gateways dies, as
# many begin again as go on at the other.
UPSTREAM_CIRCUIT_BREAKERS: Resource = {
    "thresholds": [
        {
            "max_connections": 1024,
            "max_pending_requests": 8192,
            "max_requests": 65_536,
            "retry_budget": {"budget_percent": {"value": 100}, "min_retry_concurrency": 100},
        }
    ]
}


def edge_resources(inputs: EdgeInputs) -> dict[str, dict[str, Resource]]:
    """Resources for Envoy by type URL and name (listeners, routes, secrets)."""
    listeners = [
        _listener("edge-plain", inputs.plain_host, inputs.plain_port, inputs, None),
        _listener("edge-tls", inputs.tls_host, inputs.tls_port, inputs, _downstream_tls()),
    ]
    return {
        LISTENER: {each["name"]: each for each in listeners},
        ROUTES: {ROUTE_CONFIG_NAME: route_configuration(inputs)},
        SECRET: {each["name"]: each for each in _secrets(inputs)},
    }


def upstream_tls(spiffe_id: str, identity_sds_path: str = IDENTITY_SDS_PATH) -> Resource:
    """Cluster.transport_socket: mTLS to a peer that must be `spiffe_id`.

    Args:
        spiffe_id: such as "spiffe://chatmesh/gateway".
        identity_sds_path: file SDS of Envoy's own certificate, relative to its working directory.
    """
    return upstream_tls_from(
        spiffe_id, identity_sds_path, {"name": MESH_CA_SECRET, "sds_config": ADS}
    )


def upstream_tls_from(spiffe_id: str, identity_sds_path: str, trust: Resource) -> Resource:
    """As `upstream_tls`, with the SDS configuration of the trusted roots given."""
    identity = {"name": IDENTITY_SECRET, "sds_config": file_sds(identity_sds_path)}
    # The typed matcher, which Envoy enforces (gRPC ignores it and needs the older field).
    peer = {"san_type": "URI", "matcher": {"exact": spiffe_id}}
    context = {
        "alpn_protocols": ["h2"],
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "tls_certificate_sds_secret_configs": [identity],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": [peer]},
            "validation_context_sds_secret_config": trust,
        },
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(TLS + "UpstreamTlsContext", common_tls_context=context),
    }


def file_sds(path: str) -> Resource:
    """An SDS source that is a file, read again when its folder sees a rename."""
    folder = path.rpartition("/")[0] or "."
    return {
        "path_config_source": {"path": path, "watched_directory": {"path": folder}},
        "resource_api_version": "V3",
    }


def _secrets(inputs: EdgeInputs) -> list[Resource]:
    web = {
        "certificate_chain": {"inline_string": inputs.web_certificate_pem},
        "private_key": {"inline_string": inputs.web_key_pem},
    }
    roots = {"trusted_ca": {"inline_string": inputs.trust_bundle_pem}}
    return [
        {"name": WEB_SECRET, "tls_certificate": web},
        {"name": MESH_CA_SECRET, "validation_context": roots},
    ]


def _downstream_tls() -> Resource:
    context = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "tls_certificate_sds_secret_configs": [{"name": WEB_SECRET, "sds_config": ADS}],
    }
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(TLS + "DownstreamTlsContext", common_tls_context=context),
    }


def _listener(
    name: str, host: str, port: int, inputs: EdgeInputs, tls: Resource | None
) -> Resource:
    manager = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": _connection_manager(inputs, is_public=tls is not None),
    }
    chain: Resource = {"filters": [manager]}
    if tls is not None:
        chain["transport_socket"] = tls
        chain["transport_socket_connect_timeout"] = seconds(inputs.limits.handshake_s_max)
    return {
        "name": name,
        "address": socket_address(host, port),
        "filter_chains": [chain],
        "per_connection_buffer_limit_bytes": 1 << 20,
        # With it a second edge on the same port would silently share it.
        "enable_reuse_port": False,
        # A listener that is not shared by the kernel is spread over the workers by Envoy.
        "connection_balance_config": {"exact_balance": {}},
    }


def _connection_manager(inputs: EdgeInputs, *, is_public: bool) -> Resource:
    limits = inputs.limits
    return typed(
        HCM,
        stat_prefix="edge",
        codec_type="AUTO",
        rds={"route_config_name": ROUTE_CONFIG_NAME, "config_source": ADS},
        early_header_mutation_extensions=[strip_spoofed_headers()],
        http_filters=http_filters(inputs, is_public=is_public),
        local_reply_config=local_replies(limits),
        access_log=[_access_log(inputs.access_log_path)],
        server_name="chatmesh",
        **_trust(),
        **_bounds(limits),
    )


def _trust() -> Resource:
    """What is believed of a stranger's request: nothing but its own trace."""
    return {
        "use_remote_address": True,
        # No caller is "internal", whose request id and x-envoy-* headers would be believed. An
        # empty list means Envoy's default, the private networks; this address is nobody's.
        "internal_address_config": {
            "cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]
        },
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
    }


def _bounds(limits: EdgeLimits) -> Resource:
    return {
        "max_request_headers_kb": limits.request_headers_kib_max,
        "request_headers_timeout": seconds(limits.request_headers_s_max),
        "request_timeout": seconds(limits.request_s_max),
        "stream_idle_timeout": seconds(limits.stream_silence_s_max),
        "stream_flush_timeout": seconds(limits.stream_flush_s_max),
        # How long a client that was answered half waits for the end of its connection: Envoy's
        # default of 1 s is what it would wait before it comes back for the rest of its turn.
        "delayed_close_timeout": seconds(limits.delayed_close_s),
        "common_http_protocol_options": {
            "idle_timeout": seconds(limits.connection_idle_s_max),
            "max_headers_count": limits.request_header_count_max,
            # Dropped, not refused: gRPC metadata may have underscores.
            "headers_with_underscores_action": "DROP_HEADER",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": limits.streams_per_connection_max,
            "initial_stream_window_size": 1 << 16,
            "initial_connection_window_size": 1 << 20,
            # Finds clients that are gone without a word.
            "connection_keepalive": {"interval": "30s", "timeout": "20s"},
        },
    }


def _access_log(path: str) -> Resource:
    """One JSON line a request; no query (it may hold secrets), no keys, no account.

    What a stranger writes is cut: a line has about 2 KB at most, however large the request is.
    """
    line = {
        "time": "%START_TIME%",
        "event": "request",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "traceparent": "%REQ(TRACEPARENT):64%",
        "method": "%REQ(X-ENVOY-ORIGINAL-METHOD?:METHOD):16%",
        "path": LOGGED_PATH,
        "protocol": "%PROTOCOL%",
        "tls": "%DOWNSTREAM_TLS_VERSION%",
        "client": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%",
        "user_agent": "%REQ(USER-AGENT):200%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "upstream": "%UPSTREAM_HOST%",
        "upstream_id": "%UPSTREAM_PEER_URI_SAN%",
    }
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": typed(
            "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            path=path,
            log_format={"json_format": line},
        ),
    }
