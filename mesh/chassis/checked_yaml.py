"""Reading a YAML file so that every mistake is told with its line, its key and the remedy.

A plain loader forgets lines and lets a later key silently replace an earlier one. Here a document
is read through `Value`s, which know where they stand:

    ValueError
    └── YamlError    `problems`: one line a mistake, "file:line: key: what is wrong and the remedy"

By default the first mistake raises. With `parse(…, collect=True)` mistakes that leave something to
go on with are noted instead (`root.problems`), so that a long file is mended in one go.
"""

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NoReturn, TypeVar

import yaml

T = TypeVar("T")


class YamlError(ValueError):
    """A document that cannot be used."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One value of a document with its place.

    Attributes:
        file: names the file in messages.
        node: what the YAML library made of it.
        path: keys from the root, such as "services.safety.pick"; "" at the root.
        problems: takes the mistakes that do not raise; None: all raise.
    """

    file: str
    node: yaml.Node
    path: str = ""
    problems: list[str] | None = None

    @property
    def is_mapping(self) -> bool:
        """True for `key: value` lines."""
        return isinstance(self.node, yaml.MappingNode)

    def describe(self, what: str) -> str:
        """A mistake at this place, in one line."""
        return f"{self.file}:{self.node.start_mark.line + 1}: {self.path or 'file'}: {what}"

    def fail(self, what: str) -> NoReturn:
        """Raises YamlError for this place; `what` says the remedy too."""
        raise YamlError([self.describe(what)])

    def complain(self, what: str) -> None:
        """Notes a mistake that leaves something to go on with; raises unless they are collected."""
        self.note(YamlError([self.describe(what)]))

    def note(self, error: YamlError) -> None:
        """Notes the mistakes of an error; raises it unless they are collected."""
        if self.problems is None:
            raise error
        self.problems.extend(error.problems)

    def fields(
        self, allowed: Collection[str] | None = None, required: Collection[str] = ()
    ) -> dict[str, "Value"]:
        """Keys and values of a mapping, in order; unknown, repeated, missing keys are mistakes."""
        result: dict[str, Value] = {}
        if not isinstance(self.node, yaml.MappingNode):
            self.complain("must be a mapping; write `key: value` lines under it")
            return result
        for key, node in self.node.value:
            name = str(key.value)
            node.start_mark = key.start_mark  # a complaint about the value names the key's line
            child = self._child(node, f"{self.path}.{name}" if self.path else name)
            if name in result:
                child.complain("stands here twice; remove one")
            elif allowed is not None and name not in allowed:
                child.complain(f"unknown key{hint(name, allowed)}")
            else:
                result[name] = child
        for name in required:
            if name not in result:
                self.complain(f"{name} is missing; add it")
        return result

    def sequence(self) -> list["Value"]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail("must be a list; write [a, b] or `- item` lines")
        return [self._child(item, self.path) for item in self.node.value]

    def text(self, length_max: int | None = None) -> str:
        """A text that is not blank, as it stands there: `no` and `1` are texts too."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value.strip():
            self.fail("must be a text; write one word or a quoted text")
        text = str(self.node.value)
        if length_max is not None and len(text) > length_max:
            self.fail(f"is too long; use at most {length_max} characters")
        return text

    def texts(self) -> list[str]:
        """A list of texts that are not blank."""
        return [item.text() for item in self.sequence()]

    def word(self, allowed: Collection[str]) -> str:
        """One of `allowed`."""
        word = self.text()
        if word not in allowed:
            self.fail(f"is {word}; must be one of: {', '.join(_sorted(allowed))}")
        return word

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high]; a quoted one is a text."""
        number = self._plain()
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            self.fail(f"must be a whole number; write {low} to {high}")
        return number

    def probability(self) -> float:
        """A number in (0, 1]: 0 would hold for everything."""
        number = self._plain()
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:
            self.fail("must be a number; write more than 0, at most 1")
        return float(number)

    def flag(self) -> bool:
        """True or false."""
        value = self._plain()
        if not isinstance(value, bool):
            self.fail("must be a truth value; write true or false")
        return value

    def _plain(self) -> object:
        """What YAML takes a scalar for: str, int, bool, float, None; a collection gives itself."""
        if not isinstance(self.node, yaml.ScalarNode):
            return self.node
        try:
            return yaml.SafeLoader("").construct_object(self.node)
        except (ValueError, yaml.YAMLError):  # looks like a date, for example, and is none
            return self.node

    def _child(self, node: yaml.Node, path: str) -> "Value":
        return Value(self.file, node, path, self.problems)


def parse(text: str, file: str, *, collect: bool = False) -> Value:
    """The root of a document.

    Args:
        text: YAML.
        file: names it in messages.
        collect: mistakes that leave something to go on with are noted in `problems` of the result.

    Raises:
        YamlError: it is no YAML, or empty.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark else 1
        problem = f"{file}:{line}: file: not YAML: {what}; mend the indentation or quoting"
        raise YamlError([problem]) from error
    if node is None:
        raise YamlError([f"{file}:1: file: empty; start from the one that came with chatmesh"])
    return Value(file, node, problems=[] if collect else None)


def optional(fields: Mapping[str, Value], key: str, read: Callable[[Value], T], default: T) -> T:
    """What `read` makes of a field; the default where it is absent, or wrong and noted."""
    value = fields.get(key)
    if value is None:
        return default
    try:
        return read(value)
    except YamlError as error:
        value.note(error)
        return default


def hint(word: str, known: Iterable[str]) -> str:
    """ "; did you mean …?" or the list of what is known."""
    names = _sorted(known)
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def _sorted(words: Iterable[str]) -> list[str]:
    return sorted(str(word) for word in words)
