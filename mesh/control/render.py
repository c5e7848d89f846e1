"""Services and instances as xDS resources, for proxyless gRPC and for Envoy. Pure.

The two kinds of client differ in the listener (gRPC has none of its own), in where certificates
come from (a certificate provider of the bootstrap; SDS) and in the field that names the expected
identity. Of Envoy's resources only clusters and endpoints are made here; `mesh.edge.render` makes
what faces strangers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.control.registry import Instance, State
from mesh.edge.render import UPSTREAM_CIRCUIT_BREAKERS, UPSTREAM_HTTP2, upstream_tls
from mesh.topology import Method, Retry, Service, Topology
from mesh.xds import (
    ADS,
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    RETRY_BACK_OFF,
    RETRY_COUNT,
    ROUTES,
    Resource,
    Resources,
    typed,
)

# The caller names an instance of a `pick: instance` service with this metadata.
INSTANCE_HEADER = "x-chatmesh-instance"
# And the instance of any service to open a link to.
LINK_METHOD = "chatmesh.mesh.v1.LinkService/Open"
# Found by address, before there is xDS.
CONTROL = "control"

# C-core ends `max_stream_duration` 1-2 s early (grpc/grpc#34547). The exact deadline is set by
# the chassis; the mesh's own is a backstop behind it.
BACKSTOP_MARGIN_MS = 2000
CONNECT_TIMEOUT_S = 1
# A `joinable` method is not repeated here: only the edge's calls carry the turn id that makes the
# second the same as the first.
RETRY_ON = "unavailable,cancelled"
# Per client process and cluster. The default of 1024 would cut a gateway at 1024 open streams.
REQUESTS_MAX = 20_000
# C-core counts every status but OK as a failure, NOT_FOUND too, and cannot be told otherwise: only
# an instance that fails nearly everything, while others do not, is taken out, and at most half of
# them are. Calls on links, nearly all, count failures of the server only (mesh/chassis/link), and
# of unknown keys a gateway asks for fewer than it takes (gateway/admission/unknown.py).
OUTLIER_DETECTION = {
    "interval": "2s",
    "base_ejection_time": "5s",
    "max_ejection_time": "30s",
    "max_ejection_percent": 50,
    "failure_percentage_threshold": 90,
    "enforcing_failure_percentage": 100,
    "failure_percentage_minimum_hosts": 2,
    "failure_percentage_request_volume": 20,
    "enforcing_success_rate": 0,
    "enforcing_consecutive_5xx": 0,
}


@dataclass(frozen=True)
class _Target:
    """A cluster: where calls of a service, or of one of its instances, go."""

    cluster: str
    service: str
    instances: tuple[Instance, ...]


def for_grpc(topology: Topology, instances: Sequence[Instance]) -> Resources:
    """Resources for every proxyless client; one listener and route table a service."""
    served = _served(topology)
    targets = [target for service in served for target in _targets(service, instances)]
    return {
        LISTENER: {service.name: _api_listener(service.name) for service in served},
        ROUTES: {service.name: _route_table(service, instances) for service in served},
        CLUSTER: {
            target.cluster: _grpc_cluster(target, topology.spiffe_id(target.service))
            for target in targets
        },
        ENDPOINTS: {target.cluster: _endpoints(target) for target in targets},
    }


def for_envoy(topology: Topology, instances: Sequence[Instance], caller: str) -> Resources:
    """Clusters and endpoints for the Envoy that has the identity of `caller`.

    Every service that `caller` may call becomes a cluster of the same name.
    """
    targets = [
        _Target(name, name, _reachable(name, instances))
        for name in topology.callees(caller)
        if name != CONTROL
    ]
    return {
        CLUSTER: {
            target.cluster: _envoy_cluster(target, topology.spiffe_id(target.service))
            for target in targets
        },
        ENDPOINTS: {target.cluster: _endpoints(target) for target in targets},
    }


def unknown_service(name: str) -> Resource:
    """A listener that says at once that there is no such service.

    Without an answer a client waits 15 s, or until its deadline, before it gives up.
    """
    table = f"{name} (not in the topology of this mesh)"
    return {
        "name": name,
        "api_listener": {
            "api_listener": typed(
                "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                route_config={"name": table, "virtual_hosts": []},
                http_filters=[_router()],
            )
        },
    }


def _served(topology: Topology) -> list[Service]:
    return [
        service
        for service in topology.services.values()
        if service.methods and service.name != CONTROL
    ]


def _reachable(service: str, instances: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(
        instance
        for instance in instances
        if instance.service == service
        and instance.address
        and instance.effective_state is not State.STARTING
    )


def _targets(service: Service, instances: Iterable[Instance]) -> list[_Target]:
    reachable = _reachable(service.name, instances)
    targets = [_Target(service.name, service.name, reachable)]
    # Draining ones keep their cluster: their streams, and the links of others, go on in it.
    targets += [_Target(_own_cluster(one), service.name, (one,)) for one in reachable]
    return targets


def _own_cluster(instance: Instance) -> str:
    return f"{instance.service}/{instance.name}"


def _router() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": typed("envoy.extensions.filters.http.router.v3.Router"),
    }


def _api_listener(name: str) -> Resource:
    return {
        "name": name,
        "api_listener": {
            "api_listener": typed(
                "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                rds={"route_config_name": name, "config_source": ADS},
                http_filters=[_router()],
            )
        },
    }


def _route_table(service: Service, instances: Iterable[Instance]) -> Resource:
    """Routes in the order in which they are tried: method and instance, method, anything."""
    serving = [
        one for one in _reachable(service.name, instances) if one.effective_state is State.SERVING
    ]
    choices = serving if service.pick == "instance" else []
    # A link is to one instance, of whichever service.
    routes = [_instance_route(LINK_METHOD, one, {}) for one in serving]
    for method in service.methods:
        action = _action(method)
        routes += [_instance_route(method.name, one, action) for one in choices]
        routes.append(
            {"match": {"path": f"/{method.name}"}, "route": {**action, "cluster": service.name}}
        )
    # Health and reflection.
    routes.append({"match": {"prefix": "/"}, "route": {"cluster": service.name}})
    virtual_host = {"name": service.name, "domains": ["*"], "routes": routes}
    return {"name": service.name, "virtual_hosts": [virtual_host]}


def _instance_route(method: str, one: Instance, action: dict[str, Any]) -> dict[str, Any]:
    match = {
        "path": f"/{method}",
        "headers": [{"name": INSTANCE_HEADER, "string_match": {"exact": one.name}}],
    }
    return {"match": match, "route": {**action, "cluster": _own_cluster(one)}}


def _action(method: Method) -> dict[str, Any]:
    action: dict[str, Any] = {}
    if method.deadline_ms:
        backstop_s = (method.deadline_ms + BACKSTOP_MARGIN_MS) / 1000
        action["max_stream_duration"] = {"max_stream_duration": f"{backstop_s:.3f}s"}
    if method.retry is Retry.REPEATABLE:
        action["retry_policy"] = {
            "retry_on": RETRY_ON,
            "num_retries": RETRY_COUNT,
            "retry_back_off": RETRY_BACK_OFF,
        }
    return action


def _cluster(target: _Target) -> dict[str, Any]:
    return {
        "name": target.cluster,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS},
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "circuit_breakers": {"thresholds": [{"max_requests": REQUESTS_MAX}]},
        "outlier_detection": OUTLIER_DETECTION,
    }


def _grpc_cluster(target: _Target, spiffe_id: str) -> Resource:
    provider = {"instance_name": "default"}
    tls = typed(
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context={
            "tls_certificate_provider_instance": provider,
            "validation_context": {
                "ca_certificate_provider_instance": provider,
                # The field that C-core reads. It ignores match_typed_subject_alt_names without a
                # word, and would then trust every certificate of the mesh.
                "match_subject_alt_names": [{"exact": spiffe_id}],
            },
        },
    )
    return {
        **_cluster(target),
        # Without load reports from the servers this is round robin. LEAST_REQUEST as lb_policy
        # is refused by C-core.
        "load_balancing_policy": _by_locality(
            typed(
                "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3."
                "ClientSideWeightedRoundRobin"
            )
        ),
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
    }


def _envoy_cluster(target: _Target, spiffe_id: str) -> Resource:
    least_request = "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"
    return {
        **_cluster(target),
        "load_balancing_policy": {"policies": [_policy(typed(least_request))]},
        "circuit_breakers": UPSTREAM_CIRCUIT_BREAKERS,
        "transport_socket": upstream_tls(spiffe_id),
        "typed_extension_protocol_options": UPSTREAM_HTTP2,
    }


def _policy(config: dict[str, Any]) -> dict[str, Any]:
    name = config["@type"].rpartition(".")[2]
    return {"typed_extension_config": {"name": name, "typed_config": config}}


def _by_locality(endpoint_picking: dict[str, Any]) -> dict[str, Any]:
    inner = {"policies": [_policy(endpoint_picking)]}
    locality = typed(
        "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
        endpoint_picking_policy=inner,
    )
    return {"policies": [_policy(locality)]}


def _endpoints(target: _Target) -> Resource:
    """Endpoints of a cluster; none is an answer too, which fails calls at once."""
    if not target.instances:
        return {"cluster_name": target.cluster}
    endpoints = [
        {
            "endpoint": {"address": socket_address(instance.address)},
            "health_status": (
                "DRAINING" if instance.effective_state is State.DRAINING else "HEALTHY"
            ),
            "load_balancing_weight": 1,
        }
        for instance in target.instances
    ]
    locality = {"locality": {"zone": "local"}, "load_balancing_weight": 1}
    return {
        "cluster_name": target.cluster,
        "endpoints": [{**locality, "lb_endpoints": endpoints}],
    }


def socket_address(address: str) -> dict[str, Any]:
    """`host:port` (or `[v6]:port`) as xDS writes it."""
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}
