"""Reading a YAML file so that every mistake is told with its line, its key and the remedy.

A plain loader forgets lines and lets a later key silently replace an earlier one.
"""

import difflib
from collections.abc import Iterable, Mapping

import yaml


class CheckedYaml:
    """Turns YAML nodes (which know their lines) into values and collects every problem."""

    def __init__(self, source: str) -> None:
        """`source` names the file in messages."""
        self.source = source
        self.problems: list[str] = []

    def complain(self, node: yaml.Node, path: str, what: str) -> None:
        """Notes a mistake at a node; `what` says the remedy too."""
        self.problems.append(f"{self.source}:{node.start_mark.line + 1}: {path or 'file'}: {what}")

    def fields(
        self,
        node: yaml.Node | None,
        path: str,
        allowed: tuple[str, ...] | None = None,
        required: tuple[str, ...] = (),
    ) -> dict[str, yaml.Node]:
        """Keys and values of a mapping; unknown, repeated and missing keys are mistakes."""
        result: dict[str, yaml.Node] = {}
        if node is None:
            return result
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, path, "must be a mapping (key: value)")
            return result
        for key, value in node.value:
            name = str(key.value)
            where = f"{path}.{name}" if path else name
            value.start_mark = key.start_mark  # a complaint about the value names the key's line
            if name in result:
                self.complain(key, where, "stands here twice; remove one")
            elif allowed is not None and name not in allowed:
                self.complain(key, where, f"unknown key{hint(name, allowed)}")
            else:
                result[name] = value
        for name in required:
            if name not in result:
                self.complain(node, path, f"{name} is missing; add it")
        return result

    def scalar(self, node: yaml.Node) -> object:
        """A plain value of YAML: str, int, bool, float or None; a collection gives itself."""
        if not isinstance(node, yaml.ScalarNode):
            return node
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, yaml.YAMLError):  # looks like a date, for example, and is none
            return node

    def text(self, fields: Mapping[str, yaml.Node], key: str, path: str, default: str) -> str:
        """A text that is not empty."""
        if key not in fields:
            return default
        value = self.scalar(fields[key])
        if isinstance(value, str) and value:
            return value
        self.complain(fields[key], f"{path}.{key}".lstrip("."), "must be a text")
        return default

    def number(
        self, fields: Mapping[str, yaml.Node], key: str, path: str, default: int, maximum: int
    ) -> int:
        """A whole number from 0 to `maximum`."""
        if key not in fields:
            return default
        value = self.scalar(fields[key])
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum:
            return value
        self.complain(fields[key], f"{path}.{key}", f"must be a whole number, 0 to {maximum}")
        return default

    def flag(self, fields: Mapping[str, yaml.Node], key: str, path: str, default: bool) -> bool:
        """True or false."""
        if key not in fields:
            return default
        value = self.scalar(fields[key])
        if isinstance(value, bool):
            return value
        self.complain(fields[key], f"{path}.{key}", "must be true or false")
        return default

    def choice(
        self,
        fields: Mapping[str, yaml.Node],
        key: str,
        path: str,
        allowed: tuple[str, ...],
        default: str,
    ) -> str:
        """One of `allowed`."""
        if key not in fields:
            return default
        value = self.scalar(fields[key])
        if value in allowed:
            return str(value)
        self.complain(fields[key], f"{path}.{key}", f"must be one of: {', '.join(allowed)}")
        return default

    def words(self, node: yaml.Node | None, path: str) -> tuple[str, ...]:
        """A list of names."""
        if node is None:
            return ()
        values = node.value if isinstance(node, yaml.SequenceNode) else [None]
        words = [self.scalar(value) if value is not None else None for value in values]
        if not all(isinstance(word, str) for word in words):
            self.complain(node, path, "must be a list of names, such as [gateway]")
        return tuple(word for word in words if isinstance(word, str))


def hint(word: str, known: Iterable[str]) -> str:
    """ "; did you mean …?" or the list of what is known."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"
