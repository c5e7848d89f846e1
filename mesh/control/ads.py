"""State-of-the-world xDS: what one stream asked for, got, accepted and refused.

`AdsSession` is the protocol without the wire: requests and snapshots in, responses out. The rules
are those of the xDS transport protocol (envoyproxy.io, "xDS REST and gRPC protocol").
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from envoy.service.discovery.v3 import discovery_pb2

from mesh.control.render import unknown_service
from mesh.control.resources import MESSAGES, PUSH_ORDER, Packed, pack
from mesh.control.snapshot import Kind, Snapshot
from mesh.xds import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SECRET

WILDCARD = "*"
# Types for which "nothing named" means "everything", and for which absence from a response means
# "does not exist". Of the other types an empty response would say nothing.
WHOLE_TYPES = (LISTENER, CLUSTER)
# Envoy warms what it was just sent and waits for these again, changed or not.
WARMED_BY = {CLUSTER: ENDPOINTS, LISTENER: ROUTES}
# A proxyless client asks for one name a stream; Envoy for its clusters.
NAMES_MAX = 10_000
NAME_LENGTH_MAX = 253
NACK_MESSAGE_LENGTH_MAX = 2_000


class BadRequestError(ValueError):
    """A request that breaks a limit; the stream cannot go on."""


@dataclass
class TypeState:
    """What a stream has of one type."""

    names: frozenset[str] = frozenset()
    wildcard: bool = False
    # Once names were given, an empty list means "nothing", not "everything".
    named_before: bool = False
    nonce: str = ""
    sent_version: int = 0
    # Digest by name of the last response; None: nothing was sent yet.
    sent: Mapping[str, bytes] | None = None
    # Names asked for since the last response.
    fresh: set[str] = field(default_factory=set)
    acked_version: int = 0
    nacked_version: int = 0
    nack_message: str = ""
    update_time_s: float = 0.0


class AdsSession:
    """One stream."""

    def __init__(self, kind: Kind, *, secrets: bool) -> None:
        """`secrets`: the peer is the one to whom private keys may go."""
        self.kind = kind
        self.types: dict[str, TypeState] = {}
        self._secrets = secrets
        self._nonces = itertools.count(1)
        self._unknown: dict[str, Packed] = {}

    def on_request(self, request: discovery_pb2.DiscoveryRequest, wall_s: float) -> str | None:
        """Takes a request in; gives the text of a NACK, if it is one.

        Raises:
            BadRequestError: too many names, or one that is too long.
        """
        if request.type_url not in MESSAGES:
            return None
        state = self.types.setdefault(request.type_url, TypeState())
        if request.response_nonce and request.response_nonce != state.nonce:
            return None  # speaks of a response that a later one has replaced
        nack = self._note_answer(state, request, wall_s)
        self._subscribe(request.type_url, state, request.resource_names)
        return nack

    def _note_answer(
        self, state: TypeState, request: discovery_pb2.DiscoveryRequest, wall_s: float
    ) -> str | None:
        if not request.response_nonce:
            return None
        state.update_time_s = wall_s
        if request.HasField("error_detail"):
            state.nacked_version = state.sent_version
            state.nack_message = request.error_detail.message[:NACK_MESSAGE_LENGTH_MAX]
            return state.nack_message
        state.acked_version = state.sent_version
        return None

    def _subscribe(self, type_url: str, state: TypeState, asked: Iterable[str]) -> None:
        names = frozenset(asked)
        if len(names) > NAMES_MAX:
            raise BadRequestError(f"ask for at most {NAMES_MAX} names")
        if any(len(name) > NAME_LENGTH_MAX for name in names):
            raise BadRequestError(f"names have at most {NAME_LENGTH_MAX} characters")
        explicit = WILDCARD in names
        names -= {WILDCARD}
        state.named_before = state.named_before or bool(names) or explicit
        state.wildcard = explicit or (type_url in WHOLE_TYPES and not state.named_before)
        state.fresh |= names - state.names
        state.fresh &= names
        state.names = names

    def poll(self, snapshot: Snapshot) -> Iterator[discovery_pb2.DiscoveryResponse]:
        """Responses that are due now, in the order in which they must be sent."""
        warmed: set[str] = set()
        for type_url in PUSH_ORDER:
            state = self.types.get(type_url)
            if state is None:
                continue
            selected = self._select(type_url, state, snapshot)
            content = {name: packed.digest for name, packed in selected.items()}
            grown = bool(state.fresh & content.keys())
            if state.sent == content and not grown and type_url not in warmed:
                continue
            if not content and type_url not in WHOLE_TYPES:
                continue
            if self.kind == "envoy" and type_url in WARMED_BY:
                warmed.add(WARMED_BY[type_url])
            yield self._respond(type_url, state, snapshot.version, selected, content)

    def _respond(
        self,
        type_url: str,
        state: TypeState,
        version: int,
        selected: Mapping[str, Packed],
        content: Mapping[str, bytes],
    ) -> discovery_pb2.DiscoveryResponse:
        state.nonce = str(next(self._nonces))
        state.sent, state.sent_version = content, version
        state.fresh.clear()
        return discovery_pb2.DiscoveryResponse(
            version_info=str(version),
            type_url=type_url,
            nonce=state.nonce,
            resources=[packed.any for packed in selected.values()],
        )

    def _select(self, type_url: str, state: TypeState, snapshot: Snapshot) -> Mapping[str, Packed]:
        if type_url == SECRET and not self._secrets:
            return {}
        resources = snapshot.resources(self.kind, type_url)
        if state.wildcard:
            return resources
        selected = {name: resources[name] for name in sorted(state.names) if name in resources}
        if type_url == LISTENER and self.kind == "grpc":
            for name in sorted(state.names - selected.keys()):
                if name not in self._unknown:
                    self._unknown[name] = pack(LISTENER, unknown_service(name))
                selected[name] = self._unknown[name]
        return selected
