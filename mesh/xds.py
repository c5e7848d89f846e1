"""The words of xDS resources that are written as dicts: type URLs, small messages, retry manners.

Control plane and edge speak them; `mesh.control.resources` turns the dicts into messages.
"""

from collections.abc import Mapping
from typing import Any

TYPE_PREFIX = "type.googleapis.com/"
LISTENER = TYPE_PREFIX + "envoy.config.listener.v3.Listener"
ROUTES = TYPE_PREFIX + "envoy.config.route.v3.RouteConfiguration"
CLUSTER = TYPE_PREFIX + "envoy.config.cluster.v3.Cluster"
ENDPOINTS = TYPE_PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment"
SECRET = TYPE_PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"

# A resource, or a part of one, in its JSON form.
Resource = dict[str, Any]
# Type URL to name to resource.
Resources = Mapping[str, Mapping[str, Mapping[str, Any]]]

# The ADS configuration source, wherever a resource names another.
ADS: Resource = {"ads": {}, "resource_api_version": "V3"}


def typed(message: str, **fields: Any) -> Resource:
    """A google.protobuf.Any in its JSON form."""
    return {"@type": TYPE_PREFIX + message, **fields}


def seconds(value: float) -> str:
    """A google.protobuf.Duration in its JSON form."""
    return f"{value:.3f}s"


def socket_address(host: str, port: int) -> Resource:
    """A TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}


# Failures in which the gateway has certainly not begun: no connection, stream refused, or reset
# before the request was sent.
RETRY_ON_NOT_BEGUN = "connect-failure,refused-stream,reset-before-request"
# The work may have begun, and answers nothing any more. "cancelled" is not among them: it may be
# what a turn that was stopped says.
RETRY_ON_JOINABLE = f"{RETRY_ON_NOT_BEGUN},reset,unavailable"
RETRY_ON_REPEATABLE = f"{RETRY_ON_JOINABLE},cancelled"
# How a repeatable call that failed is tried again: twice, soon (a caller waits).
RETRY_COUNT = 2
RETRY_BACK_OFF: Resource = {"base_interval": "0.025s", "max_interval": "0.250s"}
# Envoy also picks another endpoint than those that were tried, when there is one.
RETRY_ELSEWHERE: Resource = {
    "retry_back_off": RETRY_BACK_OFF,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": typed(
                "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            ),
        }
    ],
    # Of two hosts the one that failed is drawn again in half of the draws.
    "host_selection_retry_max_attempts": "16",
}
