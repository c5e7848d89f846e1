"""SECURITY.md claims nothing without a test, and the tests that it names exist."""

import ast
import re

import pytest

from tests.house import tree

PAGE = (tree.ROOT / "SECURITY.md").read_text(encoding="utf-8")
PARTS = ("stolen API key", "compromised inference node", "malicious tool result", "leaked database")
# One page.
LINE_COUNT_MAX = 100


def known_tests() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test function, by its name."""
    return {
        node.name: node
        for path in tree.sources()
        if path.name.startswith("test_")
        for node in ast.walk(ast.parse(tree.text(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def named(text: str) -> list[str]:
    return re.findall(r"`(test_\w+)`", text)


def test_every_test_that_the_page_names_exists_and_is_not_skipped() -> None:
    known = known_tests()
    names = named(PAGE)
    assert len(set(names)) > 30
    for name in names:
        assert name in known, f"no test is called {name}; mend SECURITY.md"
        marks = " ".join(map(ast.unparse, known[name].decorator_list))
        skipped = re.search(r"\bskip\b", marks)  # on a condition (skipif) it may be
        assert not skipped, f"{name} is skipped: it proves nothing in SECURITY.md"
        assert any(
            isinstance(node, ast.Assert | ast.With | ast.AsyncWith)
            for node in ast.walk(known[name])
        ) or "refused(" in ast.unparse(known[name]), f"{name} asserts nothing"


@pytest.mark.parametrize("part", PARTS)
def test_every_row_of_what_an_attacker_cannot_do_names_a_test(part: str) -> None:
    (section,) = [one for one in PAGE.split("\n## ") if part in one.split("\n")[0]]
    rows = [line for line in section.splitlines() if re.match(r"\| (?!---)", line)]
    claims = [row for row in rows if not row.rstrip(" |").endswith("tests")]
    assert len(claims) >= 3
    assert all(named(row) for row in claims), f"name the test that holds it: {claims}"


def test_the_page_is_one_page() -> None:
    assert PAGE.count("\n") <= LINE_COUNT_MAX
