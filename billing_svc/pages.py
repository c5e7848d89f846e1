"""Page tokens: opaque to callers, and of one list only."""

import base64
from collections.abc import Sequence
from typing import TypeVar

import grpc

from mesh.chassis.errors import MeshError

Item = TypeVar("Item")


def page_token(list_name: str, last_id: str) -> str:
    """The token of the page after `last_id`."""
    return base64.urlsafe_b64encode(f"{list_name}:{last_id}".encode()).decode().rstrip("=")


def id_after(list_name: str, token: str) -> str:
    """The id behind a token; empty for the first page. Raises MeshError BAD_PAGE_TOKEN."""
    if not token:
        return ""
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except ValueError:  # not base64, not text
        raise _bad_token() from None
    name, _, last_id = text.rpartition(":")
    if name != list_name or not last_id:
        raise _bad_token()
    return last_id


def number_after(list_name: str, token: str, maximum: int) -> int:
    """As `id_after`, for lists with numbers from 1 to `maximum`; 0 for the first page."""
    last_id = id_after(list_name, token) or "0"
    if not (last_id.isascii() and last_id.isdecimal()) or int(last_id) > maximum:
        raise _bad_token()
    return int(last_id)


def _bad_token() -> MeshError:
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "BAD_PAGE_TOKEN",
        "The page token is not one of this list: use next_page_token of the page before, or "
        "leave it empty for the first page.",
        metadata={"field": "page_token"},
    )


def page_size(size: int, default: int, maximum: int) -> int:
    """The entries of a page. Raises MeshError BAD_REQUEST outside [0, maximum]."""
    if not 0 <= size <= maximum:
        raise MeshError(
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_REQUEST",
            f"page_size must be from 0 to {maximum}.",
            metadata={"field": "page_size"},
        )
    return size or default


def cut(items: Sequence[Item], size: int) -> tuple[Sequence[Item], bool]:
    """The page out of `size` + 1 fetched items, and whether there is a page after it."""
    return items[:size], len(items) > size
