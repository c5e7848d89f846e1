"""The xDS transport protocol, without a wire."""

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from google.rpc import status_pb2

from mesh import topology
from mesh.control import ads, render, snapshot
from mesh.control.ads import AdsSession
from mesh.control.registry import Instance, State
from mesh.xds import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SECRET
from tests.unit.control.test_snapshot import envoy_resources

TABLE = topology.load()


def build(version=1, port=1000) -> snapshot.Snapshot:
    one = Instance("safety", "safety-1", f"127.0.0.1:{port}", 1, State.SERVING)
    return snapshot.build(
        version, {"grpc": render.for_grpc(TABLE, [one]), "envoy": envoy_resources()}
    )


class Peer:
    """One end of a stream, with the answers a client gives."""

    def __init__(self, kind="grpc", secrets=False):
        self.session = AdsSession(kind, secrets=secrets)

    def ask(self, type_url, *names, nonce="", nack="", snap=None):
        request = discovery_pb2.DiscoveryRequest(
            type_url=type_url, resource_names=names, response_nonce=nonce
        )
        if nack:
            request.error_detail.CopyFrom(status_pb2.Status(code=3, message=nack))
        self.session.on_request(request, 5.0)
        return self.poll(snap or SNAPSHOT)

    def poll(self, snap):
        return list(self.session.poll(snap))


SNAPSHOT = build()


def names(response) -> int:
    return len(response.resources)


def test_a_first_request_is_answered_and_an_ack_is_not():
    peer = Peer()
    (response,) = peer.ask(CLUSTER, "safety")
    assert (response.version_info, names(response)) == ("1", 1)
    assert peer.ask(CLUSTER, "safety", nonce=response.nonce) == []
    state = peer.session.types[CLUSTER]
    assert (state.acked_version, state.nacked_version) == (1, 0)
    assert state.update_time_s == 5.0


def test_a_nack_is_kept_and_not_answered_with_the_same():
    peer = Peer()
    (response,) = peer.ask(CLUSTER, "safety")
    assert peer.ask(CLUSTER, "safety", nonce=response.nonce, nack="bad cluster") == []
    state = peer.session.types[CLUSTER]
    assert (state.acked_version, state.nacked_version) == (0, 1)
    assert state.nack_message == "bad cluster"
    assert peer.poll(SNAPSHOT) == []


def test_a_stale_nonce_is_ignored():
    peer = Peer()
    (first,) = peer.ask(ENDPOINTS, "safety")
    newer = build(2, port=2000)
    (second,) = peer.poll(newer)
    assert peer.ask(ENDPOINTS, nonce=first.nonce, nack="old", snap=newer) == []
    assert peer.session.types[ENDPOINTS].nacked_version == 0
    assert peer.ask(ENDPOINTS, "safety", nonce=second.nonce, snap=newer) == []
    assert peer.session.types[ENDPOINTS].acked_version == 2


def test_only_what_changed_is_pushed_and_in_order():
    peer = Peer()
    for type_url in (LISTENER, ROUTES, CLUSTER, ENDPOINTS):
        peer.ask(type_url, "safety")
    (response,) = peer.poll(build(2, port=2000))
    assert (response.type_url, response.version_info) == (ENDPOINTS, "2")
    text = topology.TOPOLOGY_FILE.read_text().replace("trust_domain: chatmesh", "trust_domain: x")
    other = topology.parse(text.replace("deadline_ms: 3000, retry: repeatable", "deadline_ms: 9"))
    changed = snapshot.build(3, {"grpc": render.for_grpc(other, [])})
    assert [one.type_url for one in peer.poll(changed)] == [CLUSTER, ENDPOINTS, ROUTES]


def test_a_name_that_is_added_is_sent_though_nothing_changed():
    peer = Peer()
    (first,) = peer.ask(ENDPOINTS, "safety")
    (second,) = peer.ask(ENDPOINTS, "safety", "billing", nonce=first.nonce)
    assert names(second) == 2


def test_a_name_that_is_asked_for_again_is_sent_again():
    peer = Peer()
    (first,) = peer.ask(ENDPOINTS, "safety")
    assert peer.ask(ENDPOINTS, nonce=first.nonce) == []
    (again,) = peer.ask(ENDPOINTS, "safety", nonce=first.nonce)
    assert names(again) == 1


@pytest.mark.parametrize("type_url", [ENDPOINTS, ROUTES])
def test_unknown_names_are_not_answered_with_an_empty_list(type_url):
    peer = Peer()
    assert peer.ask(type_url, "nosuch") == []


def test_an_unknown_service_is_told_at_once_to_grpc():
    peer = Peer()
    (response,) = peer.ask(LISTENER, "nosuch")
    assert names(response) == 1
    assert peer.ask(LISTENER, "nosuch", nonce=response.nonce) == []


def test_envoy_gets_everything_without_naming_it():
    peer = Peer("envoy")
    (clusters,) = peer.ask(CLUSTER)
    assert names(clusters) == 1
    (listeners,) = peer.ask(LISTENER)
    assert names(listeners) == 2


def test_once_names_were_given_none_means_nothing():
    peer = Peer()
    (first,) = peer.ask(CLUSTER, "safety")
    (second,) = peer.ask(CLUSTER, nonce=first.nonce)
    assert names(second) == 0
    (third,) = peer.ask(CLUSTER, "*", nonce=second.nonce)
    assert names(third) == len(SNAPSHOT.resources("grpc", CLUSTER))


def test_envoy_gets_endpoints_again_with_their_clusters():
    peer = Peer("envoy")
    peer.ask(CLUSTER)
    peer.ask(ENDPOINTS, "gateway")
    changed = {**envoy_resources(), CLUSTER: {}, ENDPOINTS: {}}
    changed |= render.for_envoy(
        topology.parse(topology.TOPOLOGY_FILE.read_text().replace("chatmesh\n", "other\n", 1)),
        [Instance("gateway", "gateway-1", "127.0.0.1:1000", 1, State.SERVING)],
        "edge",
    )
    pushed = [one.type_url for one in peer.poll(snapshot.build(2, {"envoy": changed}))]
    assert pushed == [CLUSTER, ENDPOINTS]


def test_secrets_go_only_to_their_owner():
    assert Peer("envoy", secrets=False).ask(SECRET, "web-cert") == []
    (response,) = Peer("envoy", secrets=True).ask(SECRET, "web-cert")
    assert names(response) == 1


def test_types_that_are_not_served_are_ignored():
    assert Peer().ask("type.googleapis.com/envoy.config.core.v3.Unknown", "x") == []


def test_names_are_bounded():
    with pytest.raises(ads.BadRequestError, match="characters"):
        Peer().ask(LISTENER, "x" * 300)
    with pytest.raises(ads.BadRequestError, match="at most"):
        Peer().ask(LISTENER, *(str(number) for number in range(ads.NAMES_MAX + 1)))
