"""Pages of lists (AIP-158): sizes, and tokens that are opaque and bound to their list.

A token holds a place and a digest over the list and the place. The digest is no secret: it tells a
token of another list, or a damaged one, from a good one. What a token may show is decided where
the rows are, not by the token.

Failures carry BAD_REQUEST and BAD_PAGE_TOKEN, which every service with lists has in its `Reason`.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc

from mesh.chassis.errors import MeshError

DIGEST_BYTE_COUNT = 12
TOKEN_CHARACTER_COUNT_MAX = 512

Item = TypeVar("Item")


def page_token(list_name: Sequence[str], place: Sequence[str]) -> str:
    """The token of the page that begins behind `place`.

    Args:
        list_name: what tells the list from others, such as ("messages", account, thread).
        place: the position, in strings without U+001F.
    """
    data = "\x1f".join(place).encode()
    token = base64.urlsafe_b64encode(_digest(list_name, data) + data)
    return token.decode().rstrip("=")


def place_of(
    list_name: Sequence[str], token: str, parsers: Sequence[Callable[[str], Any]]
) -> tuple[Any, ...] | None:
    """The place in a token that `page_token` made for the same list; None for the first page.

    Args:
        parsers: one for each string of the place; raises ValueError when it cannot be one: the
            digest is no secret, so a token may have been made elsewhere.

    Raises:
        MeshError: BAD_PAGE_TOKEN: it did not.
    """
    if not token:
        return None
    try:
        if len(token) > TOKEN_CHARACTER_COUNT_MAX or not token.isascii():
            raise ValueError("no token")
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        digest, data = raw[:DIGEST_BYTE_COUNT], raw[DIGEST_BYTE_COUNT:]
        if digest != _digest(list_name, data):
            raise ValueError("a token of another list")
        parts = data.decode().split("\x1f")
        return tuple(parse(part) for parse, part in zip(parsers, parts, strict=True))
    except (binascii.Error, ValueError) as error:
        raise MeshError(
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_PAGE_TOKEN",
            "The page token is not one of this list: use next_page_token of the page before, or "
            "leave it empty for the first page.",
            metadata={"field": "page_token"},
        ) from error


def page_size(asked: int, default: int, maximum: int) -> int:
    """The entries of a page; 0 asks for the default.

    Raises:
        MeshError: BAD_REQUEST: outside [0, maximum].
    """
    if not 0 <= asked <= maximum:
        raise MeshError(
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_REQUEST",
            f"page_size must be from 0 to {maximum}.",
            metadata={"field": "page_size"},
        )
    return asked or default


def cut(items: Sequence[Item], size: int) -> tuple[Sequence[Item], bool]:
    """The page out of `size` + 1 fetched items, and whether there is a page after it."""
    return items[:size], len(items) > size


def _digest(list_name: Sequence[str], data: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTE_COUNT)
    for part in (*(name.encode() for name in list_name), data):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
