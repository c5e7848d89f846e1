"""What Envoy is told at its start: who it is and where ADS is. All else comes over ADS.

Files in the edge's state folder, which is also Envoy's working directory:

    identity/{tls.key,tls.crt,ca.crt}   written by the chassis, replaced by one rename
    sds/identity.json, sds/control-ca.json   tell Envoy to read those, and when to read again
    envoy.json                          the bootstrap, written last
    admin-address.txt                   written by Envoy: where its admin interface listens
    access.log, access.log.1            written by Envoy, begun anew by the agent at 16 MiB; its own
                                        log is its standard error
"""

import ipaddress
import json
import sys
from pathlib import Path

from mesh.chassis.files import write_private
from mesh.edge.inputs import CONTROL_CA_SDS_PATH, IDENTITY_SDS_PATH, EdgeLimits
from mesh.edge.render import IDENTITY_SECRET, UPSTREAM_HTTP2, file_sds, upstream_tls_from
from mesh.edge.settings import EnvoySettings
from mesh.xds import ADS, Resource, socket_address, typed

BOOTSTRAP_FILE = "envoy.json"
ADMIN_ADDRESS_FILE = "admin-address.txt"
CONTROL_SPIFFE_ID = "spiffe://chatmesh/control"
CONTROL_CLUSTER = "control"
CONTROL_CA_SECRET = "control-ca"  # noqa: S105 - the name of a resource
MONITORS = "envoy.extensions.resource_monitors."
# What the agent and an operator need of the admin interface; not, for example, /quitquitquit.
ADMIN_PATHS = ("/ready", "/listeners", "/clusters", "/drain_listeners", "/reopen_logs")
ADMIN_PREFIXES = ("/stats", "/config_dump")


def bootstrap(
    instance: str, control_address: str, limits: EdgeLimits, heap_bytes_max: int
) -> Resource:
    """Envoy's bootstrap as a dict.

    Args:
        instance: node id, such as "edge-1".
        control_address: host:port of the control plane.
        limits: of the edge; connections and resets are bounded here.
        heap_bytes_max: at 95 % of it new requests are refused with 503.
    """
    ads = {"envoy_grpc": {"cluster_name": CONTROL_CLUSTER, "retry_policy": _reconnect()}}
    return {
        "node": {"id": instance, "cluster": "edge"},
        "admin": _admin(),
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [ads],
            },
            "lds_config": ADS,
            "cds_config": ADS,
        },
        "static_resources": {"clusters": [_control_cluster(control_address)]},
        "overload_manager": _overload(limits.connections_max, heap_bytes_max),
        "layered_runtime": {
            "layers": [{"name": "limits", "static_layer": _runtime(limits)}],
        },
    }


def sds_files() -> dict[str, Resource]:
    """The two file-SDS resources by path (relative to the state folder)."""
    # The identity is a link in the state folder; its replacement is a rename there.
    watched = {"path": "."}
    identity = {
        "certificate_chain": {"filename": "identity/tls.crt"},
        "private_key": {"filename": "identity/tls.key"},
        "watched_directory": watched,
    }
    roots = {"trusted_ca": {"filename": "identity/ca.crt"}, "watched_directory": watched}
    return {
        IDENTITY_SDS_PATH: _sds_file(IDENTITY_SECRET, tls_certificate=identity),
        CONTROL_CA_SDS_PATH: _sds_file(CONTROL_CA_SECRET, validation_context=roots),
    }


def write_files(state_dir: Path, bootstrap_: Resource) -> None:
    """Writes the SDS files, then the bootstrap; each appears whole."""
    for path, content in sds_files().items():
        _write(state_dir / path, content)
    _write(state_dir / BOOTSTRAP_FILE, bootstrap_)


def discard_files(state_dir: Path) -> None:
    """Removes what an earlier run left, so that it is not taken for this one's."""
    for name in (BOOTSTRAP_FILE, ADMIN_ADDRESS_FILE):
        (state_dir / name).unlink(missing_ok=True)


def envoy_command(state_dir: Path, settings: EnvoySettings | None = None) -> list[str]:
    """The command that runs Envoy on `state_dir`; start it once `envoy.json` is there.

    The shell only sets Envoy's working directory and raises the limit of open files to what is
    permitted; it then becomes Envoy, so that signals and the exit status are Envoy's.
    """
    settings = settings or EnvoySettings()
    enter = 'ulimit -n "$(ulimit -H -n)" 2>/dev/null; cd "$1" && shift && exec "$@"'
    binary = Path(sys.executable).with_name("envoy")
    options = {
        "--config-path": BOOTSTRAP_FILE,
        "--concurrency": str(settings.concurrency),
        # Only a changed listener drains. Longer than the longest answer, so that none is cut.
        "--drain-time-s": str(settings.drain_s),
        "--admin-address-path": ADMIN_ADDRESS_FILE,
        "--file-flush-interval-msec": str(settings.log_flush_ms),
        "--log-level": settings.log_level,
    }
    flat = [word for pair in options.items() for word in pair]
    # No hot restart: nothing shared between two copies on one machine.
    return [
        "/bin/sh",
        "-c",
        enter,
        "envoy",
        str(state_dir),
        str(binary),
        *flat,
        "--disable-hot-restart",
    ]


def _admin() -> Resource:
    allowed = [{"exact": each} for each in ADMIN_PATHS]
    return {
        "address": socket_address("127.0.0.1", 0),
        "allow_paths": [*allowed, *({"prefix": each} for each in ADMIN_PREFIXES)],
        "ignore_global_conn_limit": True,
    }


def _reconnect() -> Resource:
    return {"retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"}}


def _control_cluster(address: str) -> Resource:
    host, _, port = address.rpartition(":")
    endpoint = {"endpoint": {"address": socket_address(host.strip("[]"), int(port))}}
    trust = {"name": CONTROL_CA_SECRET, "sds_config": file_sds(CONTROL_CA_SDS_PATH)}
    return {
        "name": CONTROL_CLUSTER,
        "type": "STATIC" if _is_ip(host.strip("[]")) else "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": CONTROL_CLUSTER,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
        "typed_extension_protocol_options": UPSTREAM_HTTP2,
        "transport_socket": upstream_tls_from(CONTROL_SPIFFE_ID, IDENTITY_SDS_PATH, trust),
    }


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _runtime(limits: EdgeLimits) -> Resource:
    """What Envoy takes from its runtime only: bounds against floods of streams that are reset."""
    return {
        "overload.premature_reset_total_stream_count": limits.early_reset_count_max,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
        "http.max_requests_per_io_cycle": limits.requests_per_turn_max,
    }


def _overload(connections_max: int, heap_bytes_max: int) -> Resource:
    heap = "envoy.resource_monitors.fixed_heap"
    connections = "envoy.resource_monitors.global_downstream_max_connections"
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {
                "name": connections,
                "typed_config": typed(
                    MONITORS + "downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=connections_max,
                ),
            },
            {
                "name": heap,
                "typed_config": typed(
                    MONITORS + "fixed_heap.v3.FixedHeapConfig",
                    max_heap_size_bytes=heap_bytes_max,
                ),
            },
        ],
        "actions": [
            _action("shrink_heap", heap, 0.9),
            _action("stop_accepting_requests", heap, 0.95),
        ],
    }


def _action(name: str, monitor: str, threshold: float) -> Resource:
    trigger = {"name": monitor, "threshold": {"value": threshold}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}


def _sds_file(name: str, **secret: Resource) -> Resource:
    resource = typed("envoy.extensions.transport_sockets.tls.v3.Secret", name=name, **secret)
    return {"resources": [resource]}


def _write(path: Path, content: Resource) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, json.dumps(content, indent=1))
