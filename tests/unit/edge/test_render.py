"""The edge's resources: they parse, hold what they promise, and keep what changes out of LDS."""

import json
import re

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.json_format import ParseDict

import mesh.edge.messages  # noqa: F401 - ParseDict finds them
from mesh import topology
from mesh.edge import admin
from mesh.edge.bootstrap import (
    BOOTSTRAP_FILE,
    bootstrap,
    discard_files,
    envoy_command,
    sds_files,
    write_files,
)
from mesh.edge.contract import (
    descriptor_set,
    http_bindings,
    native_methods,
    transcoded_services,
)
from mesh.edge.inputs import IDENTITY_SDS_PATH, EdgeInputs, EdgeLimits
from mesh.edge.render import (
    IDENTITY_SECRET,
    UPSTREAM_CIRCUIT_BREAKERS,
    edge_resources,
    upstream_tls,
)
from mesh.edge.settings import EnvoySettings
from mesh.xds import (
    LISTENER,
    RETRY_ON_JOINABLE,
    RETRY_ON_NOT_BEGUN,
    RETRY_ON_REPEATABLE,
    ROUTES,
    SECRET,
)

PEM = "-----BEGIN CERTIFICATE-----"
COMPLETION = "chatmesh.gateway.v1.OpenAIService/CreateChatCompletion"
CHAT = "chatmesh.chat.v1.ChatService/Chat"
MODELS = "chatmesh.gateway.v1.OpenAIService/ListModels"


def inputs(**changes) -> EdgeInputs:
    given = {
        "plain_port": 8080,
        "tls_port": 8443,
        "web_certificate_pem": PEM,
        "web_key_pem": PEM,
        "trust_bundle_pem": PEM,
    }
    return EdgeInputs(**{**given, **changes})


def manager(resources, listener="edge-plain"):
    chain = resources[LISTENER][listener]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def filters(resources):
    named = manager(resources)["http_filters"]
    return {each["name"].rpartition(".")[2]: each["typed_config"] for each in named}


def routes(resources):
    return resources[ROUTES]["edge"]["virtual_hosts"][0]["routes"]


def to_gateway(resources):
    return [each for each in routes(resources) if "retry_policy" in each.get("route", {})]


def test_all_resources_fit_their_messages():
    resources = edge_resources(inputs(cors_origins=("*", "https://a.example")))
    for type_url, message in (
        (LISTENER, listener_pb2.Listener),
        (ROUTES, route_pb2.RouteConfiguration),
        (SECRET, secret_pb2.Secret),
    ):
        for name, resource in resources[type_url].items():
            assert ParseDict(resource, message()).name == name
    boot = bootstrap("edge-1", "127.0.0.1:4000", EdgeLimits(), 1 << 30)
    assert ParseDict(boot, bootstrap_pb2.Bootstrap()).node.cluster == "edge"


def test_rendering_twice_gives_the_same():
    assert edge_resources(inputs()) == edge_resources(inputs())


def test_what_changes_often_is_not_in_the_listener():
    """A changed listener ends long streams; so these must leave it alone."""
    before = edge_resources(inputs())
    after = edge_resources(
        inputs(
            web_certificate_pem=PEM + "2",
            web_key_pem=PEM + "2",
            trust_bundle_pem=PEM + "2",
            cors_origins=("https://new.example",),
            repeatable_methods=frozenset({MODELS}),
        )
    )
    assert before[LISTENER] == after[LISTENER]
    assert before[ROUTES] != after[ROUTES]
    assert before[SECRET] != after[SECRET]


def test_identity_headers_are_removed_before_everything_else():
    extension = manager(edge_resources(inputs()))["early_header_mutation_extensions"][0]
    prefixes = [
        each["remove_on_match"]["key_matcher"]["prefix"]
        for each in extension["typed_config"]["mutations"]
    ]
    assert {"x-chatmesh-", "x-envoy-", "x-http-status"} <= set(prefixes)


def test_filters_stand_in_the_order_that_they_need():
    names = list(filters(edge_resources(inputs())))
    assert names == [
        "cors",
        "compressor",
        "lua",
        "grpc_web",
        "ext_authz",
        "grpc_json_transcoder",
        "router",
    ]


def test_admission_fails_closed():
    authorization = filters(edge_resources(inputs()))["ext_authz"]
    assert authorization["failure_mode_allow"] is False


def test_limits_reach_the_configuration():
    limits = EdgeLimits(
        request_body_bytes_max=1 << 20,
        request_headers_kib_max=30,
        connections_max=7,
        streams_per_connection_max=9,
    )
    resources = edge_resources(inputs(limits=limits))
    found = manager(resources)
    assert found["max_request_headers_kb"] == 30
    assert found["http2_protocol_options"]["max_concurrent_streams"] == 9
    transcoder = filters(resources)["grpc_json_transcoder"]
    assert 1 << 20 <= transcoder["max_request_body_size"] <= (1 << 20) + 4096
    assert "1 MiB" in json.dumps(found["local_reply_config"])
    boot = bootstrap("edge-1", "127.0.0.1:1", limits, 1)
    assert '"max_active_downstream_connections": 7' in json.dumps(boot)


def test_default_limits_are_those_of_the_contract():
    limits = EdgeLimits()
    assert limits.request_body_bytes_max == 4 << 20
    assert limits.request_headers_kib_max == 16
    assert limits.connections_max == 4096
    assert limits.streams_per_connection_max == 1000


def test_no_timeout_is_shorter_than_the_longest_answer():
    """Envoy's own defaults (15 s a route, 5 min of silence) would cut long answers."""
    resources = edge_resources(inputs())
    longest_s = max(
        method.deadline_ms / 1000 for method in topology.load().services["gateway"].methods
    )
    for each in to_gateway(resources):
        assert each["route"]["timeout"] == "0s"
        assert float(each["route"]["idle_timeout"].rstrip("s")) > longest_s
    found = manager(resources)
    assert float(found["stream_idle_timeout"].rstrip("s")) > longest_s
    assert EnvoySettings().drain_s > longest_s


def test_only_what_may_be_repeated_is_repeated_once_begun():
    classes = {
        "repeatable_methods": frozenset({MODELS}),
        "joinable_methods": frozenset({COMPLETION}),
    }
    resources = edge_resources(inputs(**classes))
    by_path = {}
    for each in to_gateway(resources):
        path = each["match"].get("path") or each["match"]["prefix"]
        by_path[path] = each["route"]["retry_policy"]["retry_on"]
    assert by_path["/v1/models"] == RETRY_ON_REPEATABLE
    assert by_path["/v1/chat/completions"] == RETRY_ON_JOINABLE
    assert by_path["/chatmesh.chat.v1.ChatService/Chat"] == RETRY_ON_NOT_BEGUN
    for begun in ("unavailable", "5xx", "gateway-error", "reset", "cancelled"):
        assert begun not in RETRY_ON_NOT_BEGUN.split(",")
    # What a turn says that was stopped: to ask again would not change it.
    assert "cancelled" not in RETRY_ON_JOINABLE.split(",")


def test_only_what_begins_a_turn_passes_by_admission_and_only_with_what_may_be_a_key():
    resources = edge_resources(inputs(joinable_methods=frozenset({COMPLETION, CHAT})))
    found = to_gateway(resources)
    admitted_there = [each for each in found if "typed_per_filter_config" in each]
    assert len(admitted_there) == 3
    for each in admitted_there:
        assert list(each["typed_per_filter_config"]) == ["envoy.filters.http.ext_authz"]
        path = each["match"]["path"]
        assert path in ("/v1/chat/completions", "/api/chat/completions", f"/{CHAT}")
        (credential,) = [one for one in each["match"]["headers"] if one["name"] == "authorization"]
        regex = re.compile(credential["string_match"]["safe_regex"]["regex"])
        for given in ("Bearer cm-" + "k" * 43, "bearer a.b-c.d_e", "BEARER  cm-" + "k" * 20 + " "):
            assert regex.fullmatch(given)
        for given in ("", "Bearer", "Bearer x", "Bearer cm-", "Basic a.b.c", "Bearer a.b"):
            assert not regex.fullmatch(given)
        # Whatever is no key meets the same path's next route, which asks admission.
        others = [one for one in found if one["match"].get("path") == path and one is not each]
        assert len(others) == 1
        assert found.index(each) < found.index(others[0])
        assert "typed_per_filter_config" not in others[0]


def test_turns_are_joinable_and_nothing_else_is():
    """What begins a turn takes the id that admission gave it; only the edge may repeat it so."""
    joinable = [
        (method.name.rpartition("/")[2], method.callers)
        for service in topology.load().services.values()
        for method in service.methods
        if method.retry == "joinable"
    ]
    assert joinable == [("CreateChatCompletion", ("edge",)), ("Chat", ("edge",))]


def test_a_retry_goes_to_another_gateway_and_keeps_the_whole_body():
    resources = edge_resources(inputs())
    for each in to_gateway(resources):
        policy = each["route"]["retry_policy"]
        assert policy["num_retries"] == 2
        assert "previous_hosts" in json.dumps(policy["retry_host_predicate"])
    (host,) = resources[ROUTES]["edge"]["virtual_hosts"]
    assert host["request_body_buffer_limit"] >= EdgeLimits().request_body_bytes_max


def test_a_check_is_repeated_at_another_gateway_within_the_time_of_two():
    service = filters(edge_resources(inputs()))["ext_authz"]["grpc_service"]
    assert service["retry_policy"]["retry_on"] == RETRY_ON_REPEATABLE
    assert "previous_hosts" in json.dumps(service["retry_policy"]["retry_host_predicate"])
    try_s, all_s = (
        float(text.rstrip("s"))
        for text in (
            service["retry_policy"]["retry_back_off"]["max_interval"],
            service["timeout"],
        )
    )
    assert all_s >= 2 * try_s


def test_every_public_method_of_the_gateway_has_a_route_and_no_other():
    served = {
        method.name
        for method in topology.load().services["gateway"].methods
        if not method.name.startswith("envoy.service.auth")
    }
    assert served == {each.rpc for each in http_bindings()} | set(native_methods())


def test_the_transcoded_service_has_no_route_of_its_own():
    paths = [json.dumps(each["match"]) for each in routes(edge_resources(inputs()))]
    assert not [each for each in paths if "chatmesh.gateway" in each]


def test_healthz_and_unknown_urls_ask_nobody():
    for each in routes(edge_resources(inputs())):
        if "direct_response" in each:
            disabled = each["typed_per_filter_config"]
            assert disabled["envoy.filters.http.ext_authz"]["disabled"] is True


def test_the_descriptor_names_the_details_of_errors():
    """Pitfall 6: a detail that the transcoder cannot name empties the body."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file
    names = [each.name for each in files]
    assert "google/rpc/error_details.proto" in names
    for index, each in enumerate(files):
        assert set(each.dependency) <= set(names[:index])
    assert transcoded_services() == ["chatmesh.gateway.v1.OpenAIService"]


def test_grpc_status_is_not_removed_by_the_routes():
    """Pitfall 5: removed there, before the transcoder, every error becomes 200."""
    assert "response_headers_to_remove" not in json.dumps(edge_resources(inputs()))


def test_the_listeners_do_not_share_their_port():
    for listener in edge_resources(inputs())[LISTENER].values():
        assert listener["enable_reuse_port"] is False


def test_plain_is_without_tls_and_tls_is_1_3():
    listeners = edge_resources(inputs())[LISTENER]
    assert "transport_socket" not in listeners["edge-plain"]["filter_chains"][0]
    assert listeners["edge-plain"]["address"]["socket_address"]["address"] == "127.0.0.1"
    context = listeners["edge-tls"]["filter_chains"][0]["transport_socket"]["typed_config"]
    parameters = context["common_tls_context"]["tls_params"]
    assert parameters["tls_minimum_protocol_version"] == "TLSv1_3"


def test_upstream_identity_is_checked_with_the_matcher_that_envoy_reads():
    context = upstream_tls("spiffe://chatmesh/gateway")["typed_config"]["common_tls_context"]
    names = context["combined_validation_context"]["default_validation_context"]
    assert names == {
        "match_typed_subject_alt_names": [
            {"san_type": "URI", "matcher": {"exact": "spiffe://chatmesh/gateway"}}
        ]
    }
    own = context["tls_certificate_sds_secret_configs"][0]
    assert own["name"] == IDENTITY_SECRET
    assert own["sds_config"]["path_config_source"]["path"] == IDENTITY_SDS_PATH
    assert not IDENTITY_SDS_PATH.startswith("/")


def test_the_gateway_gets_more_streams_at_once_than_envoys_default():
    (threshold,) = UPSTREAM_CIRCUIT_BREAKERS["thresholds"]
    assert threshold["max_requests"] > EdgeLimits().connections_max


def test_when_one_of_two_gateways_dies_all_that_it_had_may_begin_again():
    (threshold,) = UPSTREAM_CIRCUIT_BREAKERS["thresholds"]
    assert threshold["retry_budget"]["budget_percent"]["value"] >= 100


def test_the_access_log_has_no_query_and_no_key():
    (log,) = manager(edge_resources(inputs()))["access_log"]
    line = json.dumps(log).lower()
    assert "authorization" not in line
    assert "x-chatmesh" not in line
    assert "%req(:path)%" not in line
    assert "%path(nq:" in line


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"plain_port": 0}, "port"),
        ({"tls_port": 65_536}, "port"),
        ({"tls_port": 8080}, "differ"),
        ({"web_key_pem": ""}, "web_key_pem"),
    ],
)
def test_bad_inputs_are_refused(changes, word):
    with pytest.raises(ValueError, match=word):
        inputs(**changes)


def test_limits_are_positive():
    with pytest.raises(ValueError, match="connections_max"):
        EdgeLimits(connections_max=0)


def test_a_key_is_not_in_the_text_of_the_inputs():
    assert "SECRET" not in repr(inputs(web_key_pem=PEM + "SECRET"))


def test_bootstrap_checks_who_the_control_plane_is():
    boot = bootstrap("edge-1", "control.example:4000", EdgeLimits(), 1 << 30)
    (cluster,) = boot["static_resources"]["clusters"]
    assert cluster["type"] == "STRICT_DNS"
    assert "spiffe://chatmesh/control" in json.dumps(cluster)
    v6 = bootstrap("edge-1", "[::1]:4000", EdgeLimits(), 1 << 30)
    assert v6["static_resources"]["clusters"][0]["type"] == "STATIC"
    assert '"address": "::1"' in json.dumps(v6)


def test_admin_is_on_loopback_and_cannot_end_envoy():
    boot = bootstrap("edge-1", "127.0.0.1:1", EdgeLimits(), 1)
    assert boot["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert "quitquitquit" not in json.dumps(boot["admin"]["allow_paths"])


def test_files_are_written_whole_and_discarded(tmp_path):
    boot = bootstrap("edge-1", "127.0.0.1:1", EdgeLimits(), 1)
    write_files(tmp_path, boot)
    write_files(tmp_path, boot)
    assert json.loads((tmp_path / BOOTSTRAP_FILE).read_text()) == boot
    for path, content in sds_files().items():
        assert json.loads((tmp_path / path).read_text()) == content
    assert not list(tmp_path.rglob("*.new"))
    discard_files(tmp_path)
    assert not (tmp_path / BOOTSTRAP_FILE).exists()


def test_envoy_command_takes_its_settings(tmp_path):
    command = envoy_command(tmp_path, EnvoySettings(concurrency=3, drain_s=4000))
    assert command[command.index("--concurrency") + 1] == "3"
    assert command[command.index("--drain-time-s") + 1] == "4000"
    assert str(tmp_path) in command
    assert "--disable-hot-restart" in command


def test_health_needs_listeners_and_an_answer(tmp_path):
    assert admin.health(tmp_path) == admin.ABSENT
    (tmp_path / "admin-address.txt").write_text("127.0.0.1:1")
    assert not admin.health(tmp_path).serving
    assert not admin.drain(tmp_path)
    assert not admin.EnvoyHealth(live=True, listeners={}).serving
    assert admin.parse_listeners("edge-plain::127.0.0.1:80\nedge-tls::[::1]:443\n\n") == {
        "edge-plain": "127.0.0.1:80",
        "edge-tls": "[::1]:443",
    }
