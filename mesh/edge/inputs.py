"""What the edge is rendered from: values only, checked when they are made."""

from dataclasses import dataclass, field, fields

# Paths relative to the edge's state folder, which is Envoy's working directory: the control plane
# names them without knowing where the edge keeps its files.
IDENTITY_SDS_PATH = "sds/identity.json"
CONTROL_CA_SDS_PATH = "sds/control-ca.json"
ACCESS_LOG_PATH = "access.log"
# The agent begins a new access log at this size, and keeps one former.
ACCESS_LOG_BYTES_MAX = 16 << 20
PORT_MAX = 65_535
# What a body grows by when it becomes a gRPC message: so that one of the very limit passes.
FRAMING_BYTES_MAX = 4096


@dataclass(frozen=True)
class EdgeLimits:
    """Every bound that the edge puts on a stranger. All are positive."""

    request_body_bytes_max: int = 4 << 20
    # Less than what the gateway's server takes as metadata (chassis: 24 KiB), with what the edge
    # adds: that server's own refusal reads like a rate limit.
    request_headers_kib_max: int = 16
    request_header_count_max: int = 100
    connections_max: int = 4096
    streams_per_connection_max: int = 1000
    # Time in which a client must have sent its headers, and its whole request.
    request_headers_s_max: float = 10
    request_s_max: float = 120
    # An open connection without a request, or without a byte. A stream that runs is no idleness,
    # however silent it is.
    connection_idle_s_max: float = 75
    # Time in which a connection to the public port must have become one of TLS.
    handshake_s_max: float = 10
    # What one source address may ask for on the public port before anybody looks at its key: at
    # most a burst at once, and so many a second in the long run. The port on loopback has no such
    # bound: what reaches it is ours, such as a proxy that speaks for everybody.
    address_requests_per_s_max: int = 500
    address_burst_max: int = 1000
    # Addresses that are counted apart at a time; the least recently seen are forgotten.
    address_count_max: int = 20_000
    # Streams that a client may reset early (a second after their begin at most), of all it began on
    # a connection, before the connection is closed; above half of them.
    early_reset_count_max: int = 500
    # Requests of one connection that are taken up before another one has its turn.
    requests_per_turn_max: int = 16
    # A stream on which no byte moves either way. Longer than the gateway's own deadline (600 s),
    # so that an answer that is not streamed, and so is silent until it is complete, can take its
    # time; the gateway's heartbeat keeps streamed ones far below.
    stream_silence_s_max: float = 660
    # A client that does not read the end of an answer that is complete.
    stream_flush_s_max: float = 60
    # How long a connection stays open behind an answer that broke off.
    delayed_close_s: float = 0.05
    # Longer than a check takes (a millisecond): when hundreds of streams begin at once, they wait
    # for their turn in the gateway instead of being refused. A gateway that hangs for as long is
    # given up, and another one asked for as long again.
    authorization_s_max: float = 5

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise ValueError(f"{each.name} must be positive; got {getattr(self, each.name)}.")


@dataclass(frozen=True)
class EdgeInputs:
    """Everything `edge_resources` depends on.

    Raises:
        ValueError: a port is out of [1, 65535], both are the same, or a PEM text is empty.
    """

    # Plain HTTP/1.1 and h2c; loopback only, because keys pass through it unencrypted.
    plain_port: int
    tls_port: int
    # Certificate (with its chain) and key that strangers see on tls_port.
    web_certificate_pem: str
    web_key_pem: str = field(repr=False)
    # Roots of the mesh, against which the gateway's certificate is checked.
    trust_bundle_pem: str
    plain_host: str = "127.0.0.1"
    tls_host: str = "127.0.0.1"
    gateway_cluster: str = "gateway"
    # Origins of browser pages that may call, such as "https://chat.example.org"; "*": all.
    cors_origins: tuple[str, ...] = ()
    # "package.Service/Method" of the methods that may be called twice (topology: repeatable).
    repeatable_methods: frozenset[str] = frozenset()
    # Those of which a second call with the same turn id joins the first (topology: joinable).
    joinable_methods: frozenset[str] = frozenset()
    access_log_path: str = ACCESS_LOG_PATH
    limits: EdgeLimits = EdgeLimits()

    def __post_init__(self) -> None:
        for port in (self.plain_port, self.tls_port):
            if not 1 <= port <= PORT_MAX:
                raise ValueError(f"A port of the edge must be in [1, {PORT_MAX}]; got {port}.")
        if self.plain_port == self.tls_port:
            raise ValueError(f"EDGE_PORT and EDGE_TLS_PORT must differ; both are {self.tls_port}.")
        for name in ("web_certificate_pem", "web_key_pem", "trust_bundle_pem"):
            if "-----BEGIN" not in getattr(self, name):
                raise ValueError(f"{name} is not a PEM text.")
