"""Checks of request fields, and failures with their reasons."""

import datetime as dt

import grpc
from google.protobuf import duration_pb2, timestamp_pb2

from billing_svc.usage_events import ULID
from mesh.chassis.errors import MeshError

LIFETIME_MIN = dt.timedelta(seconds=1)
LIFETIME_MAX = dt.timedelta(hours=1)
LIFETIME_DEFAULT = dt.timedelta(seconds=120)
NAME_LENGTH_MAX = 200
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
ID_LENGTH_MAX = 200
# The longest span that every stamp of now + lifetime can hold.
KEY_LIFETIME_MAX = dt.timedelta(days=100 * 365)


def bad_request(field: str, message: str) -> MeshError:
    """INVALID_ARGUMENT for a field."""
    return MeshError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "BAD_REQUEST",
        f"{field} {message}",
        metadata={"field": field},
    )


def not_found(reason: str, message: str, **metadata: str) -> MeshError:
    """NOT_FOUND with a reason."""
    return MeshError(grpc.StatusCode.NOT_FOUND, reason, message, metadata=metadata)


def account_not_found(account_id: str) -> MeshError:
    """No such account."""
    return not_found(
        "ACCOUNT_NOT_FOUND",
        f"No account has the id {account_id[:ID_LENGTH_MAX]!r}; ListAccounts lists them.",
    )


def turn_id(value: str) -> str:
    """A ULID. Raises BAD_REQUEST."""
    if not ULID.fullmatch(value):
        raise bad_request("turn_id", "must be a ULID (26 characters of Crockford's base 32).")
    return value


def text(field: str, value: str, length_max: int, *, required: bool = False) -> str:
    """A text of bounded length that PostgreSQL can store. Raises BAD_REQUEST."""
    if len(value) > length_max:
        raise bad_request(field, f"must have at most {length_max} characters.")
    if "\0" in value:
        raise bad_request(field, "must not contain NUL.")
    if required and not value:
        raise bad_request(field, "must not be empty.")
    return value


def lifetime(message: duration_pb2.Duration) -> dt.timedelta:
    """A hold's lifetime. Raises BAD_REQUEST outside [1 s, 1 h]."""
    try:
        value = message.ToTimedelta()
    except (ValueError, OverflowError):
        value = dt.timedelta.max
    if not LIFETIME_MIN <= value <= LIFETIME_MAX:
        raise bad_request("lifetime", "must be from 1 s to 1 h.")
    return value


def key_lifetime(message: duration_pb2.Duration) -> dt.timedelta:
    """A key's lifetime. Raises BAD_REQUEST unless it is above 0 and at most 100 years."""
    try:
        value = message.ToTimedelta()
    except (ValueError, OverflowError):
        value = dt.timedelta.max
    if not dt.timedelta(0) < value <= KEY_LIFETIME_MAX:
        raise bad_request("lifetime", "must be above 0 and at most 100 years.")
    return value


def limit(field: str, value: int, maximum: int = INT64_MAX) -> int:
    """A limit; -1: none. Raises BAD_REQUEST."""
    if not -1 <= value <= maximum:
        raise bad_request(field, "must be -1 (no limit), 0 or above.")
    return value


def period(value: str, now: dt.datetime) -> dt.date:
    """First day of the month "YYYY-MM"; empty: of `now`. Raises BAD_REQUEST."""
    if not value:
        return now.astimezone(dt.UTC).date().replace(day=1)
    try:
        if len(value) != len("YYYY-MM"):
            raise ValueError(value)
        return dt.date.fromisoformat(f"{value}-01")
    except ValueError:
        raise bad_request("period", 'must be a calendar month such as "2026-11".') from None


def stamp(value: dt.datetime | None) -> timestamp_pb2.Timestamp | None:
    """A Timestamp; None stays absent."""
    if value is None:
        return None
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(value)
    return message
