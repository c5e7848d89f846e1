"""xDS resource types, and how a resource written as a plain dict becomes what is sent."""

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from google.protobuf import any_pb2, json_format
from google.protobuf.message import Message

from mesh.xds import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SECRET

MESSAGES: Mapping[str, type[Message]] = {
    LISTENER: listener_pb2.Listener,
    ROUTES: route_pb2.RouteConfiguration,
    CLUSTER: cluster_pb2.Cluster,
    ENDPOINTS: endpoint_pb2.ClusterLoadAssignment,
    SECRET: secret_pb2.Secret,
}
# Make before break: what a resource names is sent before the resource itself.
PUSH_ORDER = (SECRET, CLUSTER, ENDPOINTS, LISTENER, ROUTES)

# ParseDict finds a message inside an Any only when its module has been imported; the edge does so
# for its own.
for _module in (
    "mesh.edge.messages",
    "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3."
    "client_side_weighted_round_robin_pb2",
    "envoy.extensions.load_balancing_policies.least_request.v3.least_request_pb2",
    "envoy.extensions.load_balancing_policies.round_robin.v3.round_robin_pb2",
    "envoy.extensions.load_balancing_policies.wrr_locality.v3.wrr_locality_pb2",
    # The same as the edge's, named because they are used here too.
    "envoy.extensions.filters.http.router.v3.router_pb2",
    "envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2",
    "envoy.extensions.transport_sockets.tls.v3.tls_pb2",
    "envoy.extensions.upstreams.http.v3.http_protocol_options_pb2",
):
    importlib.import_module(_module)


@dataclass(frozen=True)
class Packed:
    """A resource as it goes on the wire."""

    any: any_pb2.Any
    # Equal content, equal digest.
    digest: bytes
    # What it was made from.
    source: Mapping[str, Any]


def pack(type_url: str, resource: Mapping[str, Any]) -> Packed:
    """Turns a dict into the message of its type.

    Raises:
        google.protobuf.json_format.ParseError: the dict does not fit the message, or holds a
            message whose module nobody has imported.
    """
    message = json_format.ParseDict(dict(resource), MESSAGES[type_url]())
    packed = any_pb2.Any()
    packed.Pack(message, deterministic=True)
    return Packed(packed, hashlib.sha256(packed.value).digest(), resource)
