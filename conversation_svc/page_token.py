"""Page tokens: where the next page of a list begins, opaque and bound to that list.

A token holds a place and a digest over the list and the place. The digest is no secret: it tells a
token of another list, or a damaged one, from a good one. What a token may show is decided by
row-level security, not by the token.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

DIGEST_BYTE_COUNT = 12
TOKEN_CHARACTER_COUNT_MAX = 256


class BadPageTokenError(Exception):
    """The token is none of this list."""


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
) -> tuple[Any, ...]:
    """The place in a token that `page_token` made for the same list.

    Args:
        parsers: one for each string of the place; raises ValueError when it cannot be one: the
            digest is no secret, so a token may have been made elsewhere.

    Raises:
        BadPageTokenError: it did not.
    """
    if len(token) > TOKEN_CHARACTER_COUNT_MAX or not token.isascii():
        raise BadPageTokenError
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadPageTokenError from error
    digest, data = raw[:DIGEST_BYTE_COUNT], raw[DIGEST_BYTE_COUNT:]
    if digest != _digest(list_name, data):
        raise BadPageTokenError
    try:
        parts = data.decode().split("\x1f")
        return tuple(parse(part) for parse, part in zip(parsers, parts, strict=True))
    except ValueError as error:
        raise BadPageTokenError from error


def _digest(list_name: Sequence[str], data: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTE_COUNT)
    for part in (*(name.encode() for name in list_name), data):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
