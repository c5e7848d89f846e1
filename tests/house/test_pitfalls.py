"""docs/PITFALLS.md has all 22, and the tests that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = 22


def rows():
    lines = (ROOT / "docs" / "PITFALLS.md").read_text().splitlines()
    return {int(line.split("|")[1]): line for line in lines if re.match(r"\| \d+ \|", line)}


def test_every_pitfall_has_a_row():
    assert sorted(rows()) == list(range(1, COUNT + 1))


def test_every_row_names_tests_that_exist():
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for number, line in rows().items():
        names = re.findall(r"`(test_\w+)`", line)
        assert names, f"pitfall {number}: name the test that holds it in docs/PITFALLS.md"
        for name in names:
            assert f"def {name}(" in sources, (
                f"pitfall {number}: no test is called {name}; mend docs/PITFALLS.md"
            )
