"""The words of a contract's enum: what configuration, tables and JSON call its values."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

V = TypeVar("V", bound=int)


def words_of(enum: "_EnumTypeWrapper[V]") -> dict[V, str]:
    """Number -> word, in the order of the contract, without UNSPECIFIED.

    The word is the name in lower case without the enum's prefix: ROLE_USER is "user".
    """
    prefix = enum.Name(enum.values()[0]).removesuffix("UNSPECIFIED")
    return {
        number: name.removeprefix(prefix).lower() for name, number in enum.items() if int(number)
    }
