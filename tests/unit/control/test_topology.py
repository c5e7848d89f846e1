"""topology.yaml: what is accepted, and that every mistake is named with its line and remedy."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import topology

GOOD = """\
trust_domain: chatmesh
defaults: {deadline_ms: 2000, retry: once}
services:
  gateway:
    command: gateway
    needs: [redis]
    redis: {keys: ["cm:rate:*"], channels: ["cm:turn:*"], commands: [get, "@hash", script|load]}
    environment: ["GATEWAY_*"]
    serves: {}
  safety:
    command: safety_svc
    pick: instance
    needs: [postgres]
    serves:
      chatmesh.safety.v1.SafetyService:
        callers: [gateway]
        methods:
          ScreenPrompt: {deadline_ms: 3000, retry: repeatable}
          ScreenReply: {}
          GetPolicy: {callers: ["*"], deadline_optional: true}
identities: [operator]
environment: [PATH, "LC_*"]
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(topology.TopologyError) as caught:
        topology.parse(text, "topology.yaml")
    return caught.value.problems


def test_the_repositorys_own_topology_is_good():
    table = topology.load()
    assert table.callees("edge") == ("gateway", "control")
    assert table.services["inference"].pick == "instance"


def test_every_method_of_a_served_contract_has_rules():
    ruled = {method.name for one in topology.load().services.values() for method in one.methods}
    for contract in {name.partition("/")[0] for name in ruled}:
        found = topology.service_descriptor(contract)
        unruled = {f"{contract}/{name}" for name in found.methods_by_name} - ruled
        # State-of-the-world is enough for both kinds of client.
        unruled -= {
            "envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
        }
        assert not unruled, f"no caller for {unruled}; add them to mesh/topology.yaml"


def test_methods_inherit_from_the_levels_above():
    service = topology.parse(GOOD).services["safety"]
    prompt, reply, policy = service.methods
    assert prompt == topology.Method(
        "chatmesh.safety.v1.SafetyService/ScreenPrompt",
        ("gateway",),
        3000,
        topology.Retry.REPEATABLE,
    )
    assert (reply.deadline_ms, reply.retry, reply.callers) == (2000, "once", ("gateway",))
    assert policy.callers == ("gateway", "safety", "operator")
    assert policy.deadline_optional


def test_names_and_spiffe_ids():
    table = topology.parse(GOOD)
    assert table.names() == ("gateway", "safety", "operator")
    assert table.spiffe_id("gateway") == "spiffe://chatmesh/gateway"
    assert table.name_of("spiffe://chatmesh/gateway") == "gateway"
    for foreign in ("spiffe://other/gateway", "spiffe://chatmesh/nobody", "gateway", ""):
        assert table.name_of(foreign) is None
    assert table.callees("gateway") == ("safety",)
    assert [m.name.rpartition("/")[2] for m in table.called_by("operator")] == ["GetPolicy"]


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "remedy"),
    [
        ("pick: instance", "pikc: instance", 12, "services.safety.pikc", "did you mean pick?"),
        ("pick: instance", "pick: some", 12, "services.safety.pick", "one of: any, instance"),
        ("needs: [postgres]", "needs: [mysql]", 13, "services.safety.needs", "postgres, redis"),
        ("callers: [gateway]", "callers: [gatway]", 16, "callers", "did you mean gateway?"),
        ("callers: [gateway]", "callers: gateway", 16, "callers", "must be a list"),
        ("callers: [gateway]\n", "\n", 18, "methods.ScreenPrompt", "add callers"),
        ("ScreenPrompt:", "ScreenPromt:", 18, "ScreenPromt", "did you mean ScreenPrompt?"),
        ("deadline_ms: 3000", "deadline_ms: 3s", 18, "deadline_ms", "whole number; write 0 to"),
        ("deadline_ms: 3000", "deadline_ms: -1", 18, "deadline_ms", "whole number; write 0 to"),
        ("deadline_ms: 3000", "deadline_ms: true", 18, "deadline_ms", "whole number; write 0 to"),
        ("retry: repeatable", "retry: always", 18, "retry", "joinable, once"),
        ("ScreenReply: {}", "ScreenReply: {retry: repeatable}", 19, "ScreenReply", "retry: once"),
        ("ScreenReply: {}", "ScreenReply: {retry: joinable}", 19, "ScreenReply", "retry: once"),
        ("Reply: {}", "Reply: {}\n          ScreenReply: {}", 20, "ScreenReply", "here twice"),
        ("_optional: true", "_optional: 1", 20, "deadline_optional", "true or false"),
        ("SafetyService:", "SaftyService:", 15, "SaftyService", "no contract has this service"),
        ("safety_svc", "3", 11, "services.safety.command", "must be a Python module"),
        ("    command: safety_svc\n", "", 10, "services.safety", "command is missing"),
        ("safety:", "Safety:", 10, "services.Safety", "names are a-z"),
        ("[operator]", "[gateway]", 21, "identities: gateway", "rename one"),
        ("serves: {}", "serves: []", 9, "services.gateway.serves", "must be a mapping"),
        ('keys: ["cm:rate:*"], ', "", 7, "services.gateway.redis", "keys is missing; add it"),
        ("cm:rate:*", "*", 7, "services.gateway.redis.keys", "a fixed beginning"),
        ("cm:rate:*", "cm:*:x", 7, "services.gateway.redis.keys", "a * only at the end"),
        ("cm:turn:*", "~x &*", 7, "services.gateway.redis.channels", "is no pattern"),
        ("[get,", "[flushall,", 7, "services.gateway.redis.commands", "do without it"),
        ("[get,", "[config,", 7, "services.gateway.redis.commands", "do without it"),
        ("[get,", "[GET,", 7, "services.gateway.redis.commands", "in lower case"),
        ("@hash", "@all", 7, "services.gateway.redis.commands", "@all is too much; use one of"),
        ("redis: {", "redsi: {", 7, "services.gateway.redsi", "did you mean redis?"),
        ("redis: {", "redsi: {", 4, "services.gateway", "say which keys and commands"),
        ("    needs: [redis]\n", "", 6, "services.gateway.redis", "add it to needs, or remove"),
        ("GATEWAY_*", "*", 8, "services.gateway.environment", "is no variable; write a name"),
        ("GATEWAY_*", "*_SECRET", 8, "services.gateway.environment", "is no variable"),
        ("GATEWAY_*", "REDIS_*", 8, "services.gateway.environment", "shows REDIS_URL"),
        ("PATH", "DATABASE_URL", 22, "environment", "gets of its own; leave it out"),
    ],
)  # fmt: skip
def test_a_mistake_names_line_key_and_remedy(old, new, line, key, remedy):
    found = problems(GOOD.replace(old, new))
    assert any(
        problem.startswith(f"topology.yaml:{line}: ") and key in problem and remedy in problem
        for problem in found
    ), found


def test_all_mistakes_are_told_at_once():
    text = GOOD.replace("pick: instance", "pick: some").replace("retry: repeatable", "retry: x")
    assert len(problems(text)) == 2


def test_an_unknown_caller_causes_one_complaint_only():
    assert len(problems(GOOD.replace("callers: [gateway]", "callers: [x]"))) == 1


def test_a_contract_has_one_owner():
    gateway = """serves:
      chatmesh.safety.v1.SafetyService: {callers: [safety], methods: {GetPolicy: {}}}"""
    assert "serves it already" in problems(GOOD.replace("serves: {}", gateway))[0]


@pytest.mark.parametrize("text", ["", "a: [", "- list", "services: {}"])
def test_what_is_no_topology_is_refused(text):
    assert problems(text)


@pytest.mark.parametrize(
    "name", ["", "Foo", ".x.Foo", "json.decoder.JSONDecoder", "os.Foo", "a b.C"]
)
def test_what_is_no_contract_is_not_found(name):
    assert topology.service_descriptor(name) is None


@given(
    start=st.integers(0, len(GOOD)),
    length=st.integers(0, 12),
    text=st.sampled_from(["", "x", "[", "{", ": ", "- ", "\n", "2001-99-99", "&a ", "*a"])
    | st.text(max_size=4),
)  # fmt: skip
def test_whatever_is_written_there_is_accepted_or_explained(start, length, text):
    changed = GOOD[:start] + text + GOOD[start + length :]
    with contextlib.suppress(topology.TopologyError):
        topology.parse(changed)
