"""Snapshots: what is rendered from services and instances, and what is refused."""

import json

import pytest
from google.protobuf import json_format

from mesh import topology
from mesh.control import policy, render, snapshot
from mesh.control.registry import Instance, State
from mesh.control.resources import MESSAGES
from mesh.edge.render import EdgeInputs, edge_resources
from mesh.xds import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SECRET

TABLE = topology.load()
PEM = "-----BEGIN CERTIFICATE-----"


def instance(name, state=State.SERVING, port=1000, **fields) -> Instance:
    return Instance(name.rpartition("-")[0], name, f"127.0.0.1:{port}", 1, state, **fields)


def grpc_snapshot(*instances) -> snapshot.Snapshot:
    return snapshot.build(1, {"grpc": render.for_grpc(TABLE, instances)})


def shown(built: snapshot.Snapshot, type_url: str, name: str, kind="grpc") -> dict:
    message = MESSAGES[type_url]()
    built.resources(kind, type_url)[name].any.Unpack(message)
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def route_list(built, service):
    return shown(built, ROUTES, service)["virtual_hosts"][0]["routes"]


def test_every_service_has_its_four_resources_before_it_has_instances():
    built = grpc_snapshot()
    names = {name for name, one in TABLE.services.items() if one.methods and name != "control"}
    for type_url in (LISTENER, ROUTES, CLUSTER, ENDPOINTS):
        assert set(built.resources("grpc", type_url)) == names
    assert shown(built, ENDPOINTS, "safety") == {"cluster_name": "safety"}


def test_the_peers_identity_is_in_the_field_that_grpc_reads():
    tls = shown(grpc_snapshot(), CLUSTER, "safety")["transport_socket"]["typed_config"]
    context = tls["common_tls_context"]["validation_context"]
    assert context["match_subject_alt_names"] == [{"exact": "spiffe://chatmesh/safety"}]
    # C-core ignores this one silently, and would trust any certificate of the mesh.
    assert "match_typed_subject_alt_names" not in context


def test_no_cluster_for_grpc_asks_for_least_request():
    built = grpc_snapshot(instance("inference-1"))
    for name in built.resources("grpc", CLUSTER):
        text = json.dumps(shown(built, CLUSTER, name))
        assert "LEAST_REQUEST" not in text
        assert "LeastRequest" not in text


def test_the_backstop_is_two_seconds_behind_the_deadline():
    routes = {route["match"].get("path"): route for route in route_list(grpc_snapshot(), "safety")}
    action = routes["/chatmesh.safety.v1.SafetyService/ScreenPrompt"]["route"]
    assert action["max_stream_duration"] == {"max_stream_duration": "5s"}
    assert "max_stream_duration" not in routes[None]["route"]


def test_only_repeatable_methods_are_retried():
    for service in ("gateway", "safety", "billing", "inference"):
        methods = {f"/{m.name}": m for m in TABLE.services[service].methods}
        for route in route_list(grpc_snapshot(), service):
            method = methods.get(route["match"].get("path"))
            retried = "retry_policy" in route["route"]
            assert retried == (method is not None and method.retry == "repeatable")


def test_starting_instances_get_no_calls_and_draining_ones_no_new_ones():
    built = grpc_snapshot(
        instance("safety-1", State.STARTING, 1001),
        instance("safety-2", State.SERVING, 1002),
        instance("safety-3", State.DRAINING, 1003),
        instance("safety-4", State.SERVING, 1004, drain=True),
        Instance("safety", "safety-5", "", 1, State.SERVING),
    )
    (locality,) = shown(built, ENDPOINTS, "safety")["endpoints"]
    seen = {
        one["endpoint"]["address"]["socket_address"]["port_value"]: one["health_status"]
        for one in locality["lb_endpoints"]
    }
    assert seen == {1002: "HEALTHY", 1003: "DRAINING", 1004: "DRAINING"}


def test_an_instance_can_be_chosen_until_it_drains():
    built = grpc_snapshot(
        instance("inference-1", port=1001), instance("inference-2", State.DRAINING, 1002)
    )
    generate = "/chatmesh.inference.v1.InferenceService/Generate"
    mine = [r for r in route_list(built, "inference") if r["match"].get("path") == generate]
    assert [route["route"]["cluster"] for route in mine] == ["inference/inference-1", "inference"]
    (header,) = mine[0]["match"]["headers"]
    assert header == {"name": "x-chatmesh-instance", "string_match": {"exact": "inference-1"}}
    # Its cluster stays: streams run in it.
    assert "inference/inference-2" in built.resources("grpc", CLUSTER)


def test_of_other_services_only_links_go_to_a_named_instance():
    built = grpc_snapshot(
        instance("safety-1", port=1001), instance("safety-2", State.DRAINING, 1002)
    )
    named = [one for one in route_list(built, "safety") if one["match"].get("headers")]
    (route,) = named  # a draining one gets no new links
    assert route["match"]["path"] == "/chatmesh.mesh.v1.LinkService/Open"
    assert route["match"]["headers"][0]["string_match"] == {"exact": "safety-1"}
    assert route["route"] == {"cluster": "safety/safety-1"}
    # Without a limit, and never repeated: a second stream is a second link.
    clusters = built.resources("grpc", CLUSTER)
    assert {"safety", "safety/safety-1", "safety/safety-2"} <= set(clusters)


def test_packing_is_deterministic():
    instances = [instance("inference-1"), instance("safety-1")]
    assert grpc_snapshot(*instances).same_content(grpc_snapshot(*instances))
    assert not grpc_snapshot(*instances).same_content(grpc_snapshot())


def envoy_resources(**fields):
    inputs = EdgeInputs(
        plain_port=8080, tls_port=8443, web_certificate_pem=PEM, web_key_pem=PEM,
        trust_bundle_pem=PEM, **fields,
    )  # fmt: skip
    return {**edge_resources(inputs), **render.for_envoy(TABLE, [instance("gateway-1")], "edge")}


def test_envoy_gets_the_clusters_that_the_edge_may_call():
    built = snapshot.build(1, {"envoy": envoy_resources()})
    assert set(built.resources("envoy", CLUSTER)) == {"gateway"}
    tls = shown(built, CLUSTER, "gateway", "envoy")["transport_socket"]["typed_config"]
    context = tls["common_tls_context"]["combined_validation_context"]
    (peer,) = context["default_validation_context"]["match_typed_subject_alt_names"]
    assert peer == {"san_type": "URI", "matcher": {"exact": "spiffe://chatmesh/gateway"}}
    # Its own key is a file on its own host, never a secret of ours.
    assert set(built.resources("envoy", SECRET)) == {"mesh-ca", "web-cert"}


def refused(kind="grpc", **changes) -> str:
    resources = dict(render.for_grpc(TABLE, [instance("inference-1")]))
    for type_url, named in changes.items():
        resources[globals()[type_url]] = named
    with pytest.raises(snapshot.SnapshotError) as caught:
        snapshot.build(1, {kind: resources})
    return str(caught.value)


def test_a_reference_to_nothing_is_refused():
    assert "Cluster 'billing', which is not in the snapshot" in refused(CLUSTER={}, ENDPOINTS={})
    assert "ClusterLoadAssignment 'billing', which is not" in refused(ENDPOINTS={})
    assert "RouteConfiguration 'billing', which is not" in refused(ROUTES={})


def test_endpoints_without_a_cluster_are_refused():
    extra = {**render.for_grpc(TABLE, [])[ENDPOINTS], "x": {"cluster_name": "x"}}
    assert "'x': no cluster of this name" in refused(ENDPOINTS=extra)


def test_names_must_agree():
    wrong = {**render.for_grpc(TABLE, [])[ENDPOINTS], "safety": {"cluster_name": "other"}}
    assert "is called 'other' inside" in refused(ENDPOINTS=wrong)


def test_what_does_not_fit_its_message_is_refused():
    wrong = {**render.for_grpc(TABLE, [])[CLUSTER], "safety": {"name": "safety", "colour": 1}}
    assert 'no field named "colour"' in refused(CLUSTER=wrong)


@pytest.mark.parametrize("port", [0, 65_536])
def test_ports_have_a_range(port):
    resources = render.for_grpc(TABLE, [instance("safety-1", port=port)])
    with pytest.raises(snapshot.SnapshotError, match="is not 1 to 65535"):
        snapshot.build(1, {"grpc": resources})


def test_a_secret_that_nobody_serves_is_refused():
    resources = {**envoy_resources(), SECRET: {}}
    with pytest.raises(snapshot.SnapshotError, match="Secret 'mesh-ca', which is not"):
        snapshot.build(1, {"envoy": resources})


def test_policies_say_who_and_how_long():
    derived = policy.derive(TABLE, "safety")
    served = {one.method.rpartition("/")[2]: one for one in derived.served_methods}
    assert served["ScreenPrompt"].allowed_spiffe_ids == ["spiffe://chatmesh/gateway"]
    assert served["ScreenPrompt"].deadline_ms == 3000
    assert list(derived.called_methods) == [
        one
        for name in ("tokenizer", "inference", "control")
        for one in policy.derive(TABLE, name).served_methods
        if "spiffe://chatmesh/safety" in one.allowed_spiffe_ids
    ]
    ours = {one.method.rpartition("/")[2] for one in derived.called_methods}
    assert {"Encode", "Generate"} < ours
    assert not ours & {"Decode", "WatchLoad", "Drain"}


def test_a_policys_version_follows_its_content():
    text = topology.TOPOLOGY_FILE.read_text()
    changed = topology.parse(
        text.replace("GetPolicy: {callers: [gateway, operator]", "GetPolicy: {callers: [gateway]")
    )
    assert policy.derive(TABLE, "safety").version == policy.derive(TABLE, "safety").version
    assert policy.derive(TABLE, "safety").version != policy.derive(changed, "safety").version
    assert policy.derive(TABLE, "tokenizer").version == policy.derive(changed, "tokenizer").version
