"""Who is calling, from the metadata that admission set and the edge lets nobody else set."""

from collections.abc import Iterable

from ulid import ULID

from gateway import errors
from gateway.admission.keys import TOKEN_KEY_ID
from gateway.content import TIERS
from gateway.errors import bad_parameter, public
from gateway.turn.domain import Caller

ACCOUNT_KEY = "x-chatmesh-account"
TIER_KEY = "x-chatmesh-tier"
SCOPES_KEY = "x-chatmesh-scopes"
KEY_KEY = "x-chatmesh-key"
TURN_KEY = "x-chatmesh-turn"
JURISDICTION_KEY = "x-chatmesh-jurisdiction"
IDEMPOTENCY_KEY = "idempotency-key"
IDEMPOTENCY_KEY_LENGTH_MAX = 255
LAST_EVENT_ID = "last-event-id"
IDENTITY_KEYS = (ACCOUNT_KEY, TIER_KEY, SCOPES_KEY, KEY_KEY, TURN_KEY, JURISDICTION_KEY)


def caller_of(metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
    """The caller of a request.

    Raises:
        MeshError: INVALID_API_KEY: the request did not come through admission.
    """
    found = {key: value for key, value in metadata if key in IDENTITY_KEYS}
    account, tier, turn = (str(found.get(key, "")) for key in (ACCOUNT_KEY, TIER_KEY, TURN_KEY))
    if not account or tier not in TIERS:
        message = "The request carries no identity; send an API key as 'Authorization: Bearer …'."
        raise public(errors.INVALID_API_KEY, message)
    key = str(found.get(KEY_KEY, ""))
    return Caller(
        account,
        tier,
        turn or str(ULID()),
        str(found.get(JURISDICTION_KEY, "")),
        "" if key == TOKEN_KEY_ID else key,
    )


def idempotency_key(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The key that makes a POST repeatable (draft-ietf-httpapi-idempotency-key-header); "": none.

    Raises:
        MeshError: INVALID_PARAMETER: it is none that we keep.
    """
    return checked_key(str(dict(metadata).get(IDEMPOTENCY_KEY, "")))


def checked_key(key: str) -> str:
    """An idempotency key as the client gave it.

    Raises:
        MeshError: INVALID_PARAMETER.
    """
    if len(key) > IDEMPOTENCY_KEY_LENGTH_MAX or not (key.isascii() and key.isprintable()):
        what = f"at most {IDEMPOTENCY_KEY_LENGTH_MAX} printable ASCII characters"
        raise bad_parameter("idempotency_key", f"An idempotency key has {what}.")
    return key


def last_event_id(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The cursor that an EventSource sends when it connects again; "": none."""
    return str(dict(metadata).get(LAST_EVENT_ID, ""))
