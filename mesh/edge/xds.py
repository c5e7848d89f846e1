"""Small words for xDS resources written as dicts."""

from typing import Any

Resource = dict[str, Any]

TYPE_PREFIX = "type.googleapis.com/"
LISTENER = TYPE_PREFIX + "envoy.config.listener.v3.Listener"
ROUTE_CONFIGURATION = TYPE_PREFIX + "envoy.config.route.v3.RouteConfiguration"
SECRET = TYPE_PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"

ADS: Resource = {"ads": {}, "resource_api_version": "V3"}


def typed(message: str, **values: Any) -> Resource:
    """A google.protobuf.Any in its JSON form."""
    return {"@type": TYPE_PREFIX + message, **values}


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
# Part of every retry policy: soon (a caller waits), and at another endpoint than those that were
# tried, when there is one.
RETRY_MANNER: Resource = {
    "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": typed(
                "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            ),
        }
    ],
    "host_selection_retry_max_attempts": "5",
}
