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
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

import yaml
from google.protobuf import descriptor, descriptor_pool

from mesh.checked_yaml import CheckedYaml, hint

TOPOLOGY_FILE = Path(__file__).with_name("topology.yaml")

# uint32 on the wire (MethodPolicy.deadline_ms), and room for the backstop that RDS adds.
DEADLINE_MS_MAX = 7 * 24 * 3600 * 1000
REPLICAS_MAX = 1000
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
EVERYBODY = "*"

Retry = Literal["repeatable", "joinable", "once"]
Pick = Literal["any", "instance"]
Need = Literal["postgres", "redis"]
RETRIES = ("repeatable", "joinable", "once")
PICKS = ("any", "instance")
NEEDS = ("postgres", "redis")

ROOT_KEYS = ("trust_domain", "defaults", "services", "identities")
DEFAULT_KEYS = ("deadline_ms", "retry")
SERVICE_KEYS = ("command", "replicas", "pick", "needs", "serves")
SERVES_KEYS = ("callers", "deadline_ms", "deadline_optional", "retry", "methods")
METHOD_KEYS = ("callers", "deadline_ms", "deadline_optional", "retry", "anonymous")


class TopologyError(ValueError):
    """A topology that cannot be used; `problems` has one line a mistake."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


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
    methods: tuple[Method, ...]


@dataclass(frozen=True)
class Topology:
    """The checked table."""

    trust_domain: str
    # In the file's order, which is the order of a request.
    services: Mapping[str, Service]
    # People and supervisors: identities without a service.
    identities: tuple[str, ...]

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
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise TopologyError([f"{source}: not YAML: {error}"]) from error
    if root is None:
        raise TopologyError([f"{source}: empty; copy mesh/topology.yaml and change it"])
    reader = _Reader(source)
    topology = reader.topology(root)
    if reader.problems:
        raise TopologyError(reader.problems)
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
    retry: Retry = "once"
    deadline_optional: bool = False


class _Reader(CheckedYaml):
    """Reads the nodes of a topology and collects every problem."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._names: tuple[str, ...] = ()
        self._served: dict[str, str] = {}

    def topology(self, root: yaml.Node) -> Topology:
        fields = self.fields(root, "", ROOT_KEYS, required=("trust_domain", "services"))
        trust_domain = self.text(fields, "trust_domain", "", "")
        identities = self.words(fields.get("identities"), "identities")
        defaults = self.rules(
            self.fields(fields.get("defaults"), "defaults", DEFAULT_KEYS), "defaults", _Rules()
        )
        services = self.fields(fields.get("services"), "services")
        self._names = (*services, *identities)
        for name in identities:
            self.check_name(fields["identities"], f"identities.{name}", name)
            if name in services:
                self.complain(
                    fields["identities"], f"identities.{name}", "is a service too; rename one"
                )
        checked = {
            name: self.service(name, node, f"services.{name}", defaults)
            for name, node in services.items()
        }
        return Topology(trust_domain, MappingProxyType(checked), identities)

    def service(self, name: str, node: yaml.Node, path: str, defaults: _Rules) -> Service:
        self.check_name(node, path, name)
        fields = self.fields(node, path, SERVICE_KEYS, required=("command", "serves"))
        serves = self.fields(fields.get("serves"), f"{path}.serves")
        methods = tuple(
            method
            for contract, body in serves.items()
            for method in self.contract(name, contract, body, f"{path}.serves.{contract}", defaults)
        )
        return Service(
            name=name,
            command=self.text(fields, "command", path, ""),
            replicas=self.number(fields, "replicas", path, 1, REPLICAS_MAX),
            pick=cast(Pick, self.choice(fields, "pick", path, PICKS, "any")),
            needs=cast(tuple[Need, ...], self.needs(fields.get("needs"), f"{path}.needs")),
            methods=methods,
        )

    def contract(
        self, service: str, contract: str, node: yaml.Node, path: str, defaults: _Rules
    ) -> Iterable[Method]:
        fields = self.fields(node, path, SERVES_KEYS, required=("methods",))
        rules = self.rules(fields, path, defaults)
        found = service_descriptor(contract)
        if found is None:
            self.complain(node, path, "no contract has this service; see proto/chatmesh/*/v1")
            return
        owner = self._served.setdefault(contract, service)
        if owner != service:
            self.complain(node, path, f"{owner} serves it already; give it to one of the two")
        for name, body in self.fields(fields.get("methods"), f"{path}.methods").items():
            yield self.method(found, name, body, f"{path}.methods.{name}", rules)

    def method(
        self,
        contract: descriptor.ServiceDescriptor,
        name: str,
        node: yaml.Node,
        path: str,
        inherited: _Rules,
    ) -> Method:
        fields = self.fields(node, path, METHOD_KEYS)
        rules = self.rules(fields, path, inherited)
        anonymous = self.flag(fields, "anonymous", path, False)
        known = contract.methods_by_name
        if name not in known:
            self.complain(node, path, f"{contract.name} has no such method{hint(name, known)}")
        elif rules.retry != "once" and known[name].client_streaming:
            self.complain(node, path, "a stream of requests cannot be repeated; say retry: once")
        if not rules.callers and not anonymous:
            self.complain(node, path, "nobody may call it; add callers: [...]")
        return Method(
            name=f"{contract.full_name}/{name}",
            callers=rules.callers,
            deadline_ms=rules.deadline_ms,
            retry=rules.retry,
            deadline_optional=rules.deadline_optional,
            anonymous=anonymous,
        )

    def rules(self, fields: Mapping[str, yaml.Node], path: str, above: _Rules) -> _Rules:
        callers = above.callers
        if "callers" in fields:
            callers = self.callers(fields["callers"], f"{path}.callers")
        return _Rules(
            callers,
            self.number(fields, "deadline_ms", path, above.deadline_ms, DEADLINE_MS_MAX),
            cast(Retry, self.choice(fields, "retry", path, RETRIES, above.retry)),
            self.flag(fields, "deadline_optional", path, above.deadline_optional),
        )

    def callers(self, node: yaml.Node, path: str) -> tuple[str, ...]:
        words = self.words(node, path)
        for word in words:
            if word not in self._names and word != EVERYBODY:
                self.complain(
                    node, path, f"nobody is called {word!r}{hint(word, self._names)}; callers are "
                    "services, identities or '*'"
                )  # fmt: skip
        if not set(words) <= {*self._names, EVERYBODY}:
            return words  # complained of; "nobody may call it" would only be noise
        return tuple(name for name in self._names if name in words or EVERYBODY in words)

    def needs(self, node: yaml.Node | None, path: str) -> tuple[str, ...]:
        words = self.words(node, path)
        for word in words:
            if word not in NEEDS and node is not None:
                self.complain(node, path, f"{word!r} is no store; one of: {', '.join(NEEDS)}")
        return words

    def check_name(self, node: yaml.Node, path: str, name: str) -> None:
        if not NAME.fullmatch(name):
            self.complain(node, path, "names are a-z, 0-9 and '-', from a letter, 31 at most")
