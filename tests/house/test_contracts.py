"""Contracts, topology and tests speak of the same methods and reasons."""

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest
import yaml
from google.protobuf.descriptor import EnumDescriptor

from tests.house import tree

OURS = "chatmesh."
# What every server of the mesh offers to every identity of it, as it does health.
OF_THE_CHASSIS = {"chatmesh.mesh.v1.LinkService/Open"}


def modules() -> Iterator[ModuleType]:
    """The message stubs of every contract."""
    root = tree.ROOT / "proto"
    for path in sorted(root.glob("chatmesh/**/*.proto")):
        name = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        yield importlib.import_module(f"{name}_pb2")


def contract_methods() -> set[str]:
    """`package.Service/Method` of every RPC in our contracts."""
    return {
        f"{service.full_name}/{method.name}"
        for module in modules()
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def topology_methods() -> Counter[str]:
    """`package.Service/Method` as the topology has them, with how often."""
    topology = yaml.safe_load(tree.text(tree.ROOT / "mesh" / "topology.yaml"))
    return Counter(
        f"{name}/{method}"
        for service in topology["services"].values()
        for name, served in service["serves"].items()
        for method in served["methods"]
    )


def test_every_method_has_one_line_in_the_topology() -> None:
    listed = topology_methods()
    missing = sorted(contract_methods() - listed.keys() - OF_THE_CHASSIS)
    assert not missing, f"add to mesh/topology.yaml, under the service that serves it: {missing}"
    twice = sorted(method for method, count in listed.items() if count > 1)
    assert not twice, f"served by two services in mesh/topology.yaml, keep one: {twice}"


def test_every_line_of_the_topology_is_a_method() -> None:
    ours = {method for method in topology_methods() if method.startswith(OURS)}
    unknown = sorted(ours - contract_methods())
    assert not unknown, f"in mesh/topology.yaml but in no contract; remove or rename: {unknown}"


def test_every_caller_is_somebody() -> None:
    topology = yaml.safe_load(tree.text(tree.ROOT / "mesh" / "topology.yaml"))
    known = {*topology["services"], *topology["identities"], "*"}
    named = set()
    for service in topology["services"].values():
        for served in service["serves"].values():
            for rules in (served, *served["methods"].values()):
                named.update(rules.get("callers", ()))
    assert named <= known, f"callers without a service or identity: {sorted(named - known)}"


def reasons() -> list[tuple[str, str]]:
    """(package, word) of every Reason that may go on the wire."""
    enums: list[EnumDescriptor] = [
        module.DESCRIPTOR.enum_types_by_name["Reason"]
        for module in modules()
        if "Reason" in module.DESCRIPTOR.enum_types_by_name
    ]
    return [
        (enum.file.package, value.name.removeprefix("REASON_"))
        for enum in enums
        for value in enum.values
        if value.number
    ]


@pytest.mark.parametrize(("package", "word"), reasons())
def test_every_reason_has_a_test(package: str, word: str) -> None:
    pattern = re.compile(rf"\b(?:REASON_)?{word}\b")
    tests = [path for path in tree.sources() if path.parts[0] == "tests"]
    assert any(pattern.search(tree.text(path)) for path in tests), (
        f"no test names {word} of {package}: write one that provokes it, or remove the reason"
    )
