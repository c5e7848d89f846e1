"""What the code reads of the environment and keeps in Redis is what the topology lets it."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from mesh import topology
from mesh.privileges import GIVEN_VARIABLES, matches
from tests.house import tree

TABLE = topology.load()
# Where the code of a service is.
FOLDERS = {name: service.command.replace(".", "/") for name, service in TABLE.services.items()}
# Programs of their own, which no service runs.
TOOLS = (
    "safety_svc/redteam/",
    "safety_svc/evaluate/",
    "safety_svc/train/",
    "inference_svc/bench.py",
    "mesh/chassis/native_build.py",
)
KEY_PREFIX = "cm:"
# Set by the process itself, for a library to read.
OWN_VARIABLES = {"GRPC_XDS_BOOTSTRAP_CONFIG"}


def sources(folder: str) -> Iterator[Path]:
    for path in tree.sources():
        name = path.as_posix()
        if name.startswith(f"{folder}/") and not name.startswith(TOOLS):
            yield path


def settings_variables(folder: str) -> Iterator[str]:
    """Names that the settings classes of a service read."""
    if not (tree.ROOT / folder / "settings.py").exists():
        return
    module = importlib.import_module(folder.replace("/", ".") + ".settings")
    for kind in vars(module).values():
        if not (isinstance(kind, type) and issubclass(kind, BaseSettings)):
            continue
        prefix = kind.model_config.get("env_prefix", "")
        for name, field in kind.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
                continue  # read by itself
            alias = field.validation_alias
            names = alias.choices if isinstance(alias, AliasChoices) else [alias or prefix + name]
            yield from (str(one).upper() for one in names)


def read_variables(path: Path) -> Iterator[str]:
    """Names that a file reads from os.environ."""
    module = ast.parse(tree.text(path))
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            name = node.slice
        else:
            continue
        value = name.value if isinstance(name, ast.Constant) else constants.get(ast.unparse(name))
        yield str(value or ast.unparse(name))


@pytest.mark.parametrize("service", FOLDERS)
def test_every_variable_that_a_service_reads_is_on_its_list(service: str) -> None:
    own, folder = TABLE.services[service], FOLDERS[service]
    read = set(settings_variables(folder))
    for place in (folder, "mesh/chassis"):
        read |= {name for path in sources(place) for name in read_variables(path)}
    read -= OWN_VARIABLES
    given = {f"{need.upper()}_URL".replace("POSTGRES", "DATABASE") for need in own.needs}
    patterns = (*TABLE.environment, *own.environment, *given)
    missing = sorted(name for name in read if not matches(name, patterns))
    assert not missing, f"add to environment of {service} in mesh/topology.yaml: {missing}"


def test_the_place_in_the_mesh_is_not_taken_from_the_shell() -> None:
    """`mesh.up` gives it to each process; of CHATMESH_… only what may be tuned is listed."""
    for name in ("CHATMESH_SERVICE", "CHATMESH_STATE_DIR", *GIVEN_VARIABLES):
        shown = [s.name for s in TABLE.services.values()
                 if matches(name, (*TABLE.environment, *s.environment))]  # fmt: skip
        assert not shown, f"{name} is on the list of {shown} in mesh/topology.yaml; remove it"


def texts(path: Path) -> Iterator[str]:
    """Strings of a file that are not docstrings; of an f-string what stands before its values."""
    module = ast.parse(tree.text(path))
    inner = {
        id(part)
        for node in ast.walk(module)
        if isinstance(node, ast.JoinedStr)
        for part in node.values[1:]
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def stream_names(path: Path) -> Iterator[str]:
    """Values of constants called …STREAM; not media types, such as text/event-stream."""
    for node in ast.parse(tree.text(path)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [ast.unparse(target) for target in node.targets]
            value = str(node.value.value)
            if any(name.endswith("STREAM") for name in names) and "/" not in value:
                yield value


@pytest.mark.parametrize("service", FOLDERS)
def test_every_key_of_the_code_is_one_that_the_service_may_use(service: str) -> None:
    access = TABLE.services[service].redis
    patterns = (*access.keys, *access.channels) if access else ()
    used = {
        key
        for path in sources(FOLDERS[service])
        for key in (*(t for t in texts(path) if t.startswith(KEY_PREFIX)), *stream_names(path))
    }
    foreign = sorted(key for key in used if not matches(key, patterns))
    assert not foreign, f"add to redis of {service} in mesh/topology.yaml: {foreign}"


def test_the_keys_of_the_code_are_seen() -> None:
    def used(folder: str) -> set[str]:
        return {key for path in sources(folder) for key in (*texts(path), *stream_names(path))}

    assert "cm:rate:" in used("gateway")
    assert "cm:tail:2:" in used("conversation_svc")
    assert {"usage", "usage:dead"} <= used("billing_svc")


def test_no_two_services_share_a_key_but_the_usage_stream() -> None:
    accesses = {name: s.redis for name, s in TABLE.services.items() if s.redis}
    for name, access in accesses.items():
        for other, theirs in accesses.items():
            if name < other:
                shared = {k for k in access.keys if matches(k.rstrip("*"), theirs.keys)}
                shared |= {k for k in theirs.keys if matches(k.rstrip("*"), access.keys)}
                assert shared <= {"usage"}, f"{name} and {other} both may use {shared}"
