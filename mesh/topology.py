"""`topology.yaml` as checked values: who exists, who may call what, how long, whether repeated.

Everything that needs this knowledge (xDS resources, allow-lists, deadlines, start order) takes a
`Topology`; nothing else reads the file. A file with mistakes is refused whole, and every mistake
is named with its line, its key and the remedy.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from google.protobuf import descriptor, descriptor_pool

from mesh.chassis.checked_yaml import Value, YamlError, hint, optional
from mesh.chassis.checked_yaml import parse as parse_yaml
from mesh.privileges import RedisAccess, read_environment, read_redis, visible

TOPOLOGY_FILE = Path(__file__).with_name("topology.yaml")

# uint32 on the wire (MethodPolicy.deadline_ms), and room for the backstop that RDS adds.
DEADLINE_MS_MAX = 7 * 24 * 3600 * 1000
REPLICAS_MAX = 1000
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
EVERYBODY = "*"

Pick = Literal["any", "instance"]
Need = Literal["postgres", "redis"]
PICKS = ("any", "instance")
NEEDS = ("postgres", "redis")

ROOT_KEYS = ("trust_domain", "defaults", "environment", "services", "identities")
DEFAULT_KEYS = ("deadline_ms", "retry")
SERVICE_KEYS = ("command", "replicas", "pick", "needs", "redis", "environment", "serves")
SERVES_KEYS = ("callers", "deadline_ms", "deadline_optional", "retry", "methods")
METHOD_KEYS = ("callers", "deadline_ms", "deadline_optional", "retry", "anonymous")


class Retry(StrEnum):
    """What a failed call means for a second try; the words of the file."""

    # Made again twice: by the mesh between services, by the edge for clients.
    REPEATABLE = "repeatable"
    # Made again by the edge only: a second call with the same turn id joins the first.
    JOINABLE = "joinable"
    # The first failure reaches the caller.
    ONCE = "once"


class TopologyError(YamlError):
    """A topology that cannot be used; `problems` has one line a mistake."""


@dataclass(frozen=True)
class Method:
    """One RPC method and its rules."""

    # Such as "chatmesh.safety.v1.SafetyService/ScreenPrompt".
    name: str
    # Names of services and identities that may call it, "*" written out, in the topology's order.
    callers: tuple[str, ...]
    # Milliseconds; 0: the call lives as long as its two ends.
    deadline_ms: int
    retry: Retry
    # The call may come without a deadline; deadline_ms is then imposed.
    deadline_optional: bool = False
    # The caller needs no certificate.
    anonymous: bool = False


@dataclass(frozen=True)
class Service:
    """One service: how it is started and what it serves."""

    name: str
    # Python module that is run with -m.
    command: str
    replicas: int
    pick: Pick
    needs: tuple[Need, ...]
    # None: it has no business there.
    redis: RedisAccess | None
    # Variables of the operator's environment that it may see, besides the common ones.
    environment: tuple[str, ...]
    methods: tuple[Method, ...]


@dataclass(frozen=True)
class Topology:
    """The checked table."""

    trust_domain: str
    # In the file's order, which is the order of a request.
    services: Mapping[str, Service]
    # People and supervisors: identities without a service.
    identities: tuple[str, ...]
    # Variables of the operator's environment that every process may see.
    environment: tuple[str, ...] = ()

    def environment_of(self, name: str, offered: Mapping[str, str]) -> dict[str, str]:
        """What a service may see of the variables that are there."""
        return visible(offered, (*self.environment, *self.services[name].environment))

    def names(self) -> tuple[str, ...]:
        """Everybody who can have an identity."""
        return (*self.services, *self.identities)

    def spiffe_id(self, name: str) -> str:
        """Such as "spiffe://chatmesh/gateway"."""
        return f"spiffe://{self.trust_domain}/{name}"

    def name_of(self, spiffe_id: str) -> str | None:
        """The service or identity that a SPIFFE id stands for; None when it is none of ours."""
        name = spiffe_id.removeprefix(self.spiffe_id(""))
        return name if name in self.names() and spiffe_id == self.spiffe_id(name) else None

    def called_by(self, name: str) -> tuple[Method, ...]:
        """Methods, of all services, that `name` may call."""
        return tuple(
            method
            for service in self.services.values()
            for method in service.methods
            if name in method.callers
        )

    def callees(self, name: str) -> tuple[str, ...]:
        """Services of which `name` may call at least one method."""
        return tuple(
            service.name
            for service in self.services.values()
            if any(name in method.callers for method in service.methods)
        )


def load(path: Path = TOPOLOGY_FILE) -> Topology:
    """Reads and checks a topology file.

    Raises:
        TopologyError: the file has mistakes.
        OSError: the file cannot be read.
    """
    return parse(path.read_text(encoding="utf-8"), path.name)


def parse(text: str, source: str = "topology") -> Topology:
    """Checks a topology; `source` names it in messages.

    Raises:
        TopologyError: the text has mistakes.
    """
    try:
        root = parse_yaml(text, source, collect=True)
        topology = _Reader().topology(root)
    except YamlError as error:
        raise TopologyError(error.problems) from error
    if root.problems:
        raise TopologyError(root.problems)
    return topology


def service_descriptor(name: str) -> descriptor.ServiceDescriptor | None:
    """The contract of a gRPC service, from the Python package named as its proto package.

    None when no installed contract has it.
    """
    package_name = name.rpartition(".")[0]
    if not PACKAGE.fullmatch(package_name):
        return None
    try:
        package = importlib.import_module(package_name)
    except ImportError:
        return None
    for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{package_name}.{module.name}")
    try:
        # The stub package leaves out this method's result type.
        return descriptor_pool.Default().FindServiceByName(name)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]
    except KeyError:
        return None


@dataclass(frozen=True)
class _Rules:
    """What a method inherits from the levels above it."""

    callers: tuple[str, ...] = ()
    deadline_ms: int = 0
    retry: Retry = Retry.ONCE
    deadline_optional: bool = False


class _Reader:
    """Reads the values of a topology; what is wrong is noted and the reading goes on."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._served: dict[str, str] = {}

    def topology(self, root: Value) -> Topology:
        fields = root.fields(ROOT_KEYS, required=("trust_domain", "services"))
        trust_domain = optional(fields, "trust_domain", Value.text, "")
        identities = tuple(optional(fields, "identities", Value.texts, list[str]()))
        defaults = _Rules()
        if "defaults" in fields:
            defaults = self.rules(fields["defaults"].fields(DEFAULT_KEYS), defaults)
        services = fields["services"].fields() if "services" in fields else {}
        self._names = (*services, *identities)
        for name in identities:
            self.check_name(fields["identities"], name)
            if name in services:
                fields["identities"].complain(f"{name} is a service too; rename one")
        checked = {name: self.service(name, body, defaults) for name, body in services.items()}
        environment = optional(fields, "environment", read_environment, tuple[str, ...]())
        return Topology(trust_domain, MappingProxyType(checked), identities, environment)

    def service(self, name: str, body: Value, defaults: _Rules) -> Service:
        self.check_name(body, name)
        fields = body.fields(SERVICE_KEYS, required=("command", "serves"))
        serves = fields["serves"].fields() if "serves" in fields else {}
        methods = tuple(
            method
            for contract, served in serves.items()
            for method in self.contract(name, contract, served, defaults)
        )
        needs = optional(fields, "needs", _needs, tuple[Need, ...]())
        if "redis" in needs and "redis" not in fields:
            body.complain("redis is missing; say which keys and commands it needs there")
        elif "redis" in fields and "redis" not in needs:
            fields["redis"].complain("it does not need redis; add it to needs, or remove this")
        return Service(
            name=name,
            command=optional(fields, "command", _module, ""),
            replicas=optional(fields, "replicas", lambda v: v.integer(0, REPLICAS_MAX), 1),
            pick=cast(Pick, optional(fields, "pick", lambda v: v.word(PICKS), "any")),
            needs=needs,
            redis=optional(fields, "redis", read_redis, None),
            environment=optional(fields, "environment", read_environment, tuple[str, ...]()),
            methods=methods,
        )

    def contract(
        self, service: str, contract: str, body: Value, defaults: _Rules
    ) -> Iterable[Method]:
        fields = body.fields(SERVES_KEYS, required=("methods",))
        rules = self.rules(fields, defaults)
        found = service_descriptor(contract)
        if found is None:
            body.complain("no contract has this service; see proto/chatmesh/*/v1")
            return
        owner = self._served.setdefault(contract, service)
        if owner != service:
            body.complain(f"{owner} serves it already; give it to one of the two")
        methods = fields["methods"].fields() if "methods" in fields else {}
        for name, method in methods.items():
            yield self.method(found, name, method, rules)

    def method(
        self, contract: descriptor.ServiceDescriptor, name: str, body: Value, inherited: _Rules
    ) -> Method:
        fields = body.fields(METHOD_KEYS)
        rules = self.rules(fields, inherited)
        anonymous = optional(fields, "anonymous", Value.flag, False)
        known = contract.methods_by_name
        if name not in known:
            body.complain(f"{contract.name} has no such method{hint(name, known)}")
        elif rules.retry is not Retry.ONCE and known[name].client_streaming:
            body.complain("a stream of requests cannot be repeated; say retry: once")
        if not rules.callers and not anonymous:
            body.complain("no caller is allowed; add callers: [...]")
        return Method(
            name=f"{contract.full_name}/{name}",
            callers=rules.callers,
            deadline_ms=rules.deadline_ms,
            retry=rules.retry,
            deadline_optional=rules.deadline_optional,
            anonymous=anonymous,
        )

    def rules(self, fields: Mapping[str, Value], above: _Rules) -> _Rules:
        return _Rules(
            self.callers(fields["callers"]) if "callers" in fields else above.callers,
            optional(
                fields, "deadline_ms", lambda v: v.integer(0, DEADLINE_MS_MAX), above.deadline_ms
            ),
            optional(fields, "retry", _retry, above.retry),
            optional(fields, "deadline_optional", Value.flag, above.deadline_optional),
        )

    def callers(self, value: Value) -> tuple[str, ...]:
        words = optional({"": value}, "", Value.texts, list[str]())
        unknown = [word for word in words if word not in (*self._names, EVERYBODY)]
        for word in unknown:
            value.complain(
                f"no caller is called {word!r}{hint(word, self._names)}; callers are services, "
                "identities or '*'"
            )
        if unknown:
            return tuple(words)  # complained of; "no caller is allowed" would only be noise
        return tuple(name for name in self._names if name in words or EVERYBODY in words)

    def check_name(self, value: Value, name: str) -> None:
        if not NAME.fullmatch(name):
            value.complain(f"{name!r}: names are a-z, 0-9 and '-', from a letter, 31 at most")


def _retry(value: Value) -> Retry:
    return Retry(value.word(tuple(Retry)))


def _module(value: Value) -> str:
    text = value.text()
    if not PACKAGE.fullmatch(text):
        value.fail("must be a Python module, such as safety_svc")
    return text


def _needs(value: Value) -> tuple[Need, ...]:
    return tuple(cast(Need, item.word(NEEDS)) for item in value.sequence())
