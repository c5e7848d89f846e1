"""One immutable, checked state of the mesh as xDS serves it: build → check → swap.

A snapshot is computed once and shared, packed, by all streams.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from google.protobuf import json_format

from mesh.control.resources import MESSAGES, Packed, pack
from mesh.xds import CLUSTER, ENDPOINTS, ROUTES, SECRET, Resources

Kind = Literal["grpc", "envoy"]
KINDS: tuple[Kind, ...] = ("grpc", "envoy")
PORT_MAX = 65_535


class SnapshotError(ValueError):
    """A snapshot that must not be served; `problems` has one line a mistake."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Snapshot:
    """What xDS serves. Built by `build` only."""

    version: int
    _packed: Mapping[Kind, Mapping[str, Mapping[str, Packed]]]

    def resources(self, kind: Kind, type_url: str) -> Mapping[str, Packed]:
        """Resources of a type by name; empty for a type that is not served."""
        return self._packed[kind].get(type_url, {})

    def same_content(self, other: "Snapshot") -> bool:
        """Whether the two serve the same."""
        return all(
            {name: one.digest for name, one in self.resources(kind, type_url).items()}
            == {name: one.digest for name, one in other.resources(kind, type_url).items()}
            for kind in KINDS
            for type_url in MESSAGES
        )


EMPTY = Snapshot(0, MappingProxyType({kind: MappingProxyType({}) for kind in KINDS}))


def build(version: int, rendered: Mapping[Kind, Resources], former: Snapshot = EMPTY) -> Snapshot:
    """Checks and packs rendered resources; those that `former` has too are taken from it.

    Raises:
        SnapshotError: a resource does not fit its type, or names one that is not there.
    """
    problems: list[str] = []
    packed: dict[Kind, Mapping[str, Mapping[str, Packed]]] = {}
    for kind in KINDS:
        resources = rendered.get(kind, {})
        problems += [f"{kind}: {problem}" for problem in check(resources)]
        packed[kind] = _pack_all(kind, resources, former, problems)
    if problems:
        raise SnapshotError(problems)
    return Snapshot(version, MappingProxyType(packed))


def _pack_all(
    kind: Kind, resources: Resources, former: Snapshot, problems: list[str]
) -> Mapping[str, Mapping[str, Packed]]:
    result: dict[str, dict[str, Packed]] = {}
    for type_url, named in resources.items():
        result[type_url] = {}
        known = former.resources(kind, type_url)
        for name, resource in named.items():
            if name in known and known[name].source == resource:
                result[type_url][name] = known[name]
                continue
            try:
                result[type_url][name] = pack(type_url, resource)
            except (json_format.ParseError, TypeError, ValueError) as error:
                problems.append(f"{kind}: {_label(type_url, name)}: {error}")
    return MappingProxyType(result)


def check(resources: Resources) -> Iterator[str]:
    """What is wrong with one kind's resources: names, references, ports. Nothing: all is well."""
    for type_url, named in resources.items():
        if type_url not in MESSAGES:
            yield f"{type_url}: xDS here does not serve this type"
            continue
        for name, resource in named.items():
            own = resource.get("cluster_name" if type_url == ENDPOINTS else "name")
            if not name or own != name:
                yield f"{_label(type_url, name)}: is called {own!r} inside; use one name"
            yield from _check_ports(_label(type_url, name), resource)
    for type_url, name, wanted_type, wanted in _references(resources):
        if wanted not in resources.get(wanted_type, {}):
            yield (
                f"{_label(type_url, name)}: names {_label(wanted_type, wanted)}, "
                "which is not in the snapshot; add it or remove the reference"
            )
    yield from _unused_endpoints(resources)


def _unused_endpoints(resources: Resources) -> Iterator[str]:
    for name in resources.get(ENDPOINTS, {}):
        if name not in resources.get(CLUSTER, {}):
            yield f"{_label(ENDPOINTS, name)}: no cluster of this name; remove it"


def _check_ports(label: str, resource: Any) -> Iterator[str]:
    for found in _walk(resource):
        port = found.get("port_value")
        if "port_value" in found and not (isinstance(port, int) and 0 < port <= PORT_MAX):
            yield f"{label}: port {port!r} is not 1 to {PORT_MAX}"
        if "port_value" in found and not found.get("address"):
            yield f"{label}: an address without a host"


def _references(resources: Resources) -> Iterator[tuple[str, str, str, str]]:
    """(type, name, wanted type, wanted name) of every resource named over ADS."""
    for type_url, named in resources.items():
        for name, resource in named.items():
            if type_url == CLUSTER and resource.get("type") == "EDS":
                wanted = resource.get("eds_cluster_config", {}).get("service_name") or name
                yield type_url, name, ENDPOINTS, wanted
            for found in _walk(resource):
                yield from _named_in(type_url, name, found)


def _named_in(
    type_url: str, name: str, found: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    if "route_config_name" in found:
        yield type_url, name, ROUTES, found["route_config_name"]
    if isinstance(found.get("route"), Mapping) and "cluster" in found["route"]:
        yield type_url, name, CLUSTER, found["route"]["cluster"]
    if isinstance(found.get("envoy_grpc"), Mapping):
        yield type_url, name, CLUSTER, found["envoy_grpc"].get("cluster_name", "")
    if "ads" in found.get("sds_config", {}):
        yield type_url, name, SECRET, found.get("name", "")


def _walk(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping inside a resource, the resource itself first."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _walk(inner)


def _label(type_url: str, name: str) -> str:
    return f"{type_url.rpartition('.')[2]} {name!r}"
