"""Who is calling, from the metadata that admission set and the edge lets nobody else set."""

from collections.abc import Iterable

from ulid import ULID

from gateway import errors
from gateway.content import TIERS
from gateway.errors import public
from gateway.turn.domain import Caller

ACCOUNT_KEY = "x-chatmesh-account"
TIER_KEY = "x-chatmesh-tier"
SCOPES_KEY = "x-chatmesh-scopes"
KEY_KEY = "x-chatmesh-key"
TURN_KEY = "x-chatmesh-turn"
JURISDICTION_KEY = "x-chatmesh-jurisdiction"
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
    return Caller(account, tier, turn or str(ULID()), str(found.get(JURISDICTION_KEY, "")))
