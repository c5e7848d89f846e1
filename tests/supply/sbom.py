"""A software bill of materials: what is installed, as CycloneDX JSON 1.6.

Written here and not by cyclonedx-bom: that library brings twenty others, lxml among them, for a
document of six fields.
"""

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distributions
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.supply.licences import licence

OURS = "chatmesh"
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562, URLs


def installed() -> dict[str, Distribution]:
    """What is installed, by the name that indexes spell."""
    return {canonicalize_name(one.metadata["Name"]): one for one in distributions()}


def needs(one: Distribution, extras: frozenset[str] = frozenset()) -> set[str]:
    """Names of what a distribution needs here, with the extras that it is asked for."""
    found = set()
    for line in one.requires or ():
        need = Requirement(line)
        told = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        if need.marker is None or any(need.marker.evaluate(each) for each in told):
            found.add(canonicalize_name(need.name))
    return found


def runtime(held: Mapping[str, Distribution]) -> set[str]:
    """What the services run on: all that chatmesh needs without extras, and what that needs."""
    found: set[str] = set()
    waiting = needs(held[OURS]) if OURS in held else set()
    while waiting:
        name = waiting.pop()
        if name in held and name not in found:
            found.add(name)
            waiting |= needs(held[name])
    return found


def document(held: Mapping[str, Distribution], now: dt.datetime) -> dict[str, Any]:
    """The bill: runtime parts are "required", what only builds and checks is "excluded"."""
    required = runtime(held)
    parts = [
        _component(name, one, "required" if name in required else "excluded")
        for name, one in sorted(held.items())
        if name != OURS
    ]
    reach = [
        {"ref": _ref(name, one), "dependsOn": _refs(held, needs(one))}
        for name, one in sorted(held.items())
    ]
    whole = "\n".join(_ref(name, one) for name, one in sorted(held.items()))
    ours = held.get(OURS)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, whole)}",
        "version": 1,
        "metadata": {
            "timestamp": now.isoformat(timespec="seconds"),
            "component": _component(OURS, ours, None) if ours else {},
        },
        "components": parts,
        "dependencies": reach,
    }


def _component(name: str, one: Distribution, scope: str | None) -> dict[str, Any]:
    told = licence(one.metadata)
    found: dict[str, Any] = {
        "type": "application" if name == OURS else "library",
        "bom-ref": _ref(name, one),
        "name": name,
        "version": one.version,
        "purl": _ref(name, one),
    }
    if told:
        found["licenses"] = [{"expression": told}]
    if scope:
        found["scope"] = scope
    return found


def _refs(held: Mapping[str, Distribution], names: Sequence[str] | set[str]) -> list[str]:
    return [_ref(name, held[name]) for name in sorted(names) if name in held]


def _ref(name: str, one: Distribution) -> str:
    """A package URL (purl-spec); "+" of a local version is escaped."""
    return f"pkg:pypi/{name}@{one.version.replace('+', '%2B')}"
