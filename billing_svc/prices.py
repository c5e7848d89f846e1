"""The price list: read from YAML, checked whole, immutable afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import yaml

MODEL_COUNT_MAX = 256
# A cent a token: 50 turns of 2 x 2^32 tokens, the most a hold can ask for, still fit an int64.
PRICE_NANOUSD_MAX = 10_000_000
VERSION_LENGTH_MAX = 64
ANY_MODEL = "*"
_FIELDS = ("input_nanousd", "cached_input_nanousd", "output_nanousd")


class PriceListError(Exception):
    """The list is wrong; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of one model, in nano-USD a token, with the version of their list."""

    input_nanousd: int
    cached_input_nanousd: int
    output_nanousd: int
    version: str


@dataclass(frozen=True, slots=True)
class PriceList:
    """A checked price list."""

    version: str
    models: Mapping[str, Price]

    def price_of(self, model: str) -> Price | None:
        """The model's price, or that of "*"; None: not sold."""
        return self.models.get(model) or self.models.get(ANY_MODEL)


def parse(text: str, name: str) -> PriceList:
    """Reads a list.

    Args:
        text: YAML.
        name: file name, for messages.

    Raises:
        PriceListError: with the line, counted from 1.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PriceListError(f"{name}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise PriceListError(f"{name}:1: not YAML: {error}") from error
    return _Reader(name).read(root)


class _Reader:
    """Walks the YAML nodes, which know their lines; plain values would not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, root: yaml.Node | None) -> PriceList:
        if root is None:
            raise PriceListError(f"{self._name}:1: empty: write version and models")
        fields = self._mapping(root, ("version", "models"), required=True)
        version = self._text(fields["version"])
        if not 0 < len(version) <= VERSION_LENGTH_MAX:
            self._fail(fields["version"], f"version: 1 to {VERSION_LENGTH_MAX} characters")
        models = self._mapping(fields["models"], None)
        if not 0 < len(models) <= MODEL_COUNT_MAX:
            self._fail(fields["models"], f"models: 1 to {MODEL_COUNT_MAX} of them")
        prices = {model: self._price(node, version) for model, node in models.items()}
        return PriceList(version, prices)

    def _price(self, node: yaml.Node, version: str) -> Price:
        fields = self._mapping(node, _FIELDS, required=True)
        values = {key: self._amount(key, fields[key]) for key in _FIELDS}
        if values["cached_input_nanousd"] > values["input_nanousd"]:
            # A hold reserves the input price as the worst case.
            self._fail(fields["cached_input_nanousd"], "cached_input_nanousd: not above input")
        return Price(**values, version=version)

    def _amount(self, key: str, node: yaml.Node) -> int:
        amount = -1
        if node.tag == "tag:yaml.org,2002:int" and isinstance(node, yaml.ScalarNode):
            amount = int(yaml.safe_load(node.value))
        if not 0 <= amount <= PRICE_NANOUSD_MAX:
            self._fail(node, f"{key}: a whole number from 0 to {PRICE_NANOUSD_MAX}")
        return amount

    def _text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, "a text is wanted here")
        return str(node.value)

    def _mapping(
        self, node: yaml.Node, keys: tuple[str, ...] | None, *, required: bool = False
    ) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, "a mapping (key: value) is wanted here")
        found: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self._text(key_node)
            if keys is not None and key not in keys:
                self._fail(key_node, f"{key}: unknown; known are {', '.join(keys)}")
            if key in found:
                self._fail(key_node, f"{key}: stands twice")
            found[key] = value
        absent = [key for key in keys or () if key not in found] if required else []
        if absent:
            self._fail(node, f"{absent[0]}: missing")
        return found

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise PriceListError(f"{self._name}:{node.start_mark.line + 1}: {message}")
