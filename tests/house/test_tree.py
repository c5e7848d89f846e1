"""What lies in the repository: READMEs, pins, no traces of a machine."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.house import tree

VERBS = ("run", "up", "down", "test", "check", "proto", "bench", "chaos", "clean")
FIRST_PARAGRAPH_LENGTH_MIN = 80
_FOLDERS = "|".join(("home", "root", "Users", "work", "opt", "mnt", "srv", "tmp"))
ABSOLUTE = re.compile(rf"(?<![\w.:~/)}}-])/(?:{_FOLDERS})/[\w.]|\b[A-Z]:\\\w")


@pytest.mark.parametrize("service", tree.SERVICES)
def test_every_service_says_what_its_border_contains(service: str) -> None:
    readme = Path(service) / "README.md"
    assert readme in tree.files(), f"write {readme}: first which threat or resource it contains"
    paragraphs = [part.strip() for part in tree.text(readme).split("\n\n")]
    first = next((part for part in paragraphs if part and not part.startswith("#")), "")
    assert len(first) >= FIRST_PARAGRAPH_LENGTH_MIN, (
        f"the first paragraph of {readme} must say which threat or resource the border contains"
    )


def test_no_paths_of_a_machine() -> None:
    found = []
    for path in tree.files():
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if ABSOLUTE.search(line) and path != Path("tests/house/test_tree.py"):
                found.append(f"{path}:{number}: {line.strip()[:120]}")
    assert not found, "write paths relative to the repository, or make them arguments:\n" + (
        "\n".join(found)
    )


def canonical(name: str) -> str:
    """A distribution's name as indexes spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_once() -> None:
    lines = [line for line in tree.text(Path("constraints.txt")).splitlines() if line[:1] != "#"]
    pins = [line.partition("==") for line in lines if line]
    for name, _, version in pins:
        assert re.fullmatch(r"[0-9][0-9a-z.!]*", version), (
            f"constraints.txt: write name==version without label or address, not {name}"
        )
    names = [canonical(name) for name, _, _ in pins]
    assert len(names) == len(set(names)), "constraints.txt: a name stands twice; keep one"
    project = tomllib.loads(tree.text(Path("pyproject.toml")))["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    wanted_names = {canonical(re.split(r"[\[<>=~! ]", one)[0]) for one in wanted}
    missing = wanted_names - {*names, project["name"]}  # an extra may name another of ours
    assert not missing, f"add to constraints.txt the versions that are known to work: {missing}"


def test_the_verbs_exist() -> None:
    makefile = tree.text(Path("Makefile"))
    missing = [verb for verb in VERBS if not re.search(rf"^{verb}:", makefile, re.MULTILINE)]
    assert not missing, f"the Makefile lacks {missing}"
    ci = tree.text(Path(".ci/run"))
    assert "make check" in ci, ".ci/run must run make check"
    assert "make test" in ci, ".ci/run must run make test"
    assert (tree.ROOT / ".ci" / "run").stat().st_mode & 0o111, "make .ci/run executable"
