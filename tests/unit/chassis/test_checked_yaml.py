"""Mistakes in YAML: all at once where they are collected, else the first; each with its place."""

import pytest

from mesh.chassis.checked_yaml import Value, YamlError, optional, parse

TEXT = """\
name: one
count: many
list: [a, {b: c}]
share: 0.5
on: yes
nested:
  key: value
"""


def test_values_are_read_as_they_stand() -> None:
    fields = parse(TEXT, "f").fields()
    assert fields["name"].text() == "one"
    assert fields["share"].probability() == 0.5
    assert fields["on"].flag() is True
    assert fields["on"].text() == "yes"
    assert fields["nested"].is_mapping
    assert fields["nested"].fields(["key"])["key"].word(["value"]) == "value"


@pytest.mark.parametrize(
    ("key", "read", "problem"),
    [
        ("count", lambda v: v.integer(1, 9), "f:2: count: must be a whole number; write 1 to 9"),
        ("list", Value.texts, "f:3: list: must be a text; write"),
        ("list", Value.text, "f:3: list: must be a text; write"),
        ("name", Value.sequence, "f:1: name: must be a list; write"),
        ("name", Value.fields, "f:1: name: must be a mapping; write"),
        ("name", lambda v: v.text(2), "f:1: name: is too long; use at most 2"),
        ("on", Value.probability, "f:5: on: must be a number; write"),
        ("share", Value.flag, "f:4: share: must be a truth value; write"),
        ("nested", lambda v: v.fields(["kay"]), "f:7: nested.key: unknown key; did you mean kay?"),
        ("nested", lambda v: v.fields(None, ["more"]), "f:6: nested: more is missing; add it"),
    ],
)
def test_the_first_mistake_is_raised_with_its_place(key, read, problem) -> None:
    with pytest.raises(YamlError) as caught:
        read(parse(TEXT, "f").fields()[key])
    (found,) = caught.value.problems
    assert found.startswith(problem)


def test_collected_mistakes_leave_the_defaults() -> None:
    root = parse(TEXT, "f", collect=True)
    fields = root.fields(["count", "name", "list", "nested"], required=["other"])
    assert optional(fields, "count", lambda v: v.integer(1, 9), 5) == 5
    assert optional(fields, "absent", Value.text, "default") == "default"
    assert optional(fields, "name", Value.text, "default") == "one"
    assert [line.split(": ")[1] for line in root.problems] == ["share", "on", "file", "count"]


@pytest.mark.parametrize("text", ["", "# nothing", "a: [", "a: b: c", "\x00"])
def test_what_is_no_document(text: str) -> None:
    with pytest.raises(YamlError, match=r"f:\d+: file: (empty|not YAML)"):
        parse(text, "f")
