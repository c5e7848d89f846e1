"""Borders in the code: who may import whom (finer than .importlinter can say)."""

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.house import tree

TORCH_FOLDERS = ("inference_svc/", "training/", "safety_svc/train/", "tests/")


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(tree.text(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(folder: str, allowed: tuple[str, ...], prefix: str) -> list[str]:
    """Imports under `prefix` in `folder` that are not under one of `allowed`."""
    return [
        f"{path}: {name}"
        for path in tree.sources()
        if path.is_relative_to(folder)
        for name in imports(path)
        if f"{name}.".startswith(f"{prefix}.")
        and not any(f"{name}.".startswith(f"{one}.") for one in allowed)
    ]


@pytest.mark.parametrize("service", tree.SERVICES)
def test_services_know_of_the_mesh_only_its_chassis(service: str) -> None:
    found = violations(service, ("mesh.chassis",), "mesh")
    assert not found, f"use mesh.chassis, or move what two services need into it: {found}"


@pytest.mark.parametrize("service", tree.SERVICES)
def test_services_do_not_import_each_other(service: str) -> None:
    others = [name for name in tree.SERVICES if name != service]
    found = [one for other in others for one in violations(service, (), other)]
    assert not found, f"call the other service over its contract instead: {found}"


def test_the_chassis_knows_no_service_and_one_contract() -> None:
    found = violations("mesh/chassis", ("chatmesh.mesh",), "chatmesh")
    found += violations("mesh/chassis", ("mesh.chassis",), "mesh")
    found += [one for service in tree.SERVICES for one in violations("mesh/chassis", (), service)]
    assert not found, f"hand it in as an argument instead: {found}"


def test_torch_stays_with_the_engine() -> None:
    found = [
        f"{path}: {name}"
        for path in tree.sources()
        for name in imports(path)
        if name.split(".")[0] == "torch" and not path.as_posix().startswith(TORCH_FOLDERS)
    ]
    assert not found, f"only {', '.join(TORCH_FOLDERS)} may import torch: {found}"


def test_the_import_linter_sees_every_module() -> None:
    parser = configparser.ConfigParser()
    parser.read_string(tree.text(Path(".importlinter")))
    roots = parser["importlinter"]["root_packages"].split()
    seen = grimp.build_graph(*roots, cache_dir=None).modules
    names = {
        path: ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in tree.sources()
        if path.parts[0] in roots
    }
    unseen = [str(path) for path, name in names.items() if name not in seen]
    assert not unseen, (
        "a package with __init__.py hides folders without one from the linter: give the folder "
        f"an __init__.py, or take it from the package above: {unseen}"
    )


def test_a_turn_speaks_no_protocol() -> None:
    folders = ("gateway/turn", "gateway/context")
    prefixes = ("grpc", "redis", "http", "envoy", "google.api", "gateway.faces")
    found = [one for folder in folders for name in prefixes for one in violations(folder, (), name)]
    assert not found, f"faces parse and write, upstreams call; hand values in instead: {found}"
