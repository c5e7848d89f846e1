"""YAML documents whose every value knows its line.

ValueError
└── DocumentError    what is wrong, in which file and line, and how to mend it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml


class DocumentError(ValueError):
    """A document that cannot be used; the text is `file:line: problem; remedy`."""

    def __init__(self, file: str, line: int, problem: str, remedy: str) -> None:
        super().__init__(f"{file}:{line}: {problem}; {remedy}")
        self.file, self.line, self.remedy = file, line, remedy


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a document with its place."""

    file: str
    node: yaml.Node
    name: str

    @property
    def line(self) -> int:
        """Line in the file, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """True for `key: value` lines."""
        return isinstance(self.node, yaml.MappingNode)

    def fail(self, problem: str, remedy: str) -> NoReturn:
        """Raises DocumentError for this place."""
        raise DocumentError(self.file, self.line, problem, remedy)

    def items(self) -> Iterator[tuple[str, "Value"]]:
        """The pairs of a mapping, in order; a repeated key is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"{self.name} must be a mapping", "write `key: value` lines under it")
        seen: set[str] = set()
        for key, value in self.node.value:
            child = Value(self.file, key, self.name)
            word = child.text()
            if word in seen:
                child.fail(f"{word} stands twice under {self.name}", "remove one of the two")
            seen.add(word)
            yield word, Value(self.file, value, word)

    def mapping(self, allowed: frozenset[str], required: frozenset[str]) -> dict[str, "Value"]:
        """The pairs of a mapping with keys among `allowed` and with all of `required`."""
        result = dict(self.items())
        for word, value in result.items():
            if word not in allowed:
                value.fail(f"unknown key {word} under {self.name}", f"use {_listed(allowed)}")
        missing = required - result.keys()
        if missing:
            self.fail(f"{self.name} lacks {_listed(missing)}", "add it")
        return result

    def sequence(self) -> list["Value"]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"{self.name} must be a list", "write `- item` lines or [a, b]")
        return [Value(self.file, item, self.name) for item in self.node.value]

    def text(self) -> str:
        """A non-empty text."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value.strip():
            self.fail(f"{self.name} must be a text", "write one word or a quoted text")
        return str(self.node.value)

    def texts(self) -> list[str]:
        """A list of non-empty texts."""
        return [item.text() for item in self.sequence()]

    def word(self, allowed: frozenset[str]) -> str:
        """One word among `allowed`."""
        word = self.text()
        if word not in allowed:
            self.fail(f"{self.name} is {word}", f"use one of {_listed(allowed)}")
        return word

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        try:
            number = int(self.text())
        except ValueError:
            self.fail(f"{self.name} must be a whole number", f"write {low} to {high}")
        if not low <= number <= high:
            self.fail(f"{self.name} is {number}", f"write {low} to {high}")
        return number

    def probability(self) -> float:
        """A number in (0, 1]: 0 would hold for everything."""
        try:
            number = float(self.text())
        except ValueError:
            self.fail(f"{self.name} must be a number", "write more than 0, at most 1")
        if not 0 < number <= 1:
            self.fail(f"{self.name} is {number}", "write more than 0, at most 1")
        return number


def parse(text: str, file: str) -> Value:
    """Reads one document; raises DocumentError when it is no YAML or empty."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "not YAML"
        raise DocumentError(file, line, str(problem), "mend the indentation or quoting") from error
    if node is None:
        raise DocumentError(file, 1, "the document is empty", "start from policies/default.yaml")
    return Value(file, node, "the document")


def _listed(words: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(words))
