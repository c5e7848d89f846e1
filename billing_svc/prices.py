"""The price list: read from YAML, checked whole, immutable afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass

from mesh.chassis import checked_yaml
from mesh.chassis.checked_yaml import Value, YamlError

MODEL_COUNT_MAX = 256
# A cent a token: 50 turns of 2 x 2^32 tokens, the most a hold can ask for, still fit an int64.
PRICE_NANOUSD_MAX = 10_000_000
VERSION_LENGTH_MAX = 64
ANY_MODEL = "*"
_ROOT_FIELDS = ("version", "models")
_FIELDS = ("input_nanousd", "cached_input_nanousd", "output_nanousd")


class PriceListError(ValueError):
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
        fields = checked_yaml.parse(text, name).fields(_ROOT_FIELDS, required=_ROOT_FIELDS)
        version = fields["version"].text(VERSION_LENGTH_MAX)
        models = fields["models"].fields()
        if not 0 < len(models) <= MODEL_COUNT_MAX:
            fields["models"].fail(f"name 1 to {MODEL_COUNT_MAX} models")
        return PriceList(version, {model: _price(one, version) for model, one in models.items()})
    except YamlError as error:
        raise PriceListError(str(error)) from error


def _price(value: Value, version: str) -> Price:
    fields = value.fields(_FIELDS, required=_FIELDS)
    amounts = {key: fields[key].integer(0, PRICE_NANOUSD_MAX) for key in _FIELDS}
    if amounts["cached_input_nanousd"] > amounts["input_nanousd"]:
        # A hold reserves the input price as the worst case.
        fields["cached_input_nanousd"].fail("must not be above input_nanousd")
    return Price(**amounts, version=version)
