"""Accounts and keys as values: what a key is made of, and when it no longer speaks."""

import datetime as dt
import hashlib
import secrets
from dataclasses import dataclass

from mesh.chassis import key_form

SCOPES = ("chat", "conversations", "usage")
# "cm-" and four characters: enough to recognise a key, 24 of its 256 bits.
PREFIX_LENGTH = 7


@dataclass(frozen=True, slots=True)
class Account:
    """Who pays. `tier` is a number of content.v1.Tier; a budget of -1 has no limit.

    `jurisdiction` is the country (ISO 3166-1 alpha-2) whose rules hold for it; empty: the default.
    `organisation_id` is the organisation that pays with it, `role` its number of billing.v1.Role.
    """

    account_id: str
    name: str
    tier: int
    monthly_budget_nanousd: int
    create_time: dt.datetime
    close_time: dt.datetime | None = None
    jurisdiction: str = ""
    organisation_id: str = ""
    role: int = 0


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret."""

    key_id: str
    account_id: str
    prefix: str
    scopes: tuple[str, ...]
    name: str
    create_time: dt.datetime
    expire_time: dt.datetime | None = None
    revoke_time: dt.datetime | None = None


def mint_secret(random: bytes | None = None) -> str:
    """A new secret, of 256 random bits; see `key_form`."""
    made = secrets.token_bytes(key_form.RANDOM_BYTE_COUNT) if random is None else random
    return key_form.key_of(made)


def digest_of(secret: str) -> bytes:
    """What is stored of a secret: SHA-256. No salt or stretching: 256 random bits need none."""
    return hashlib.sha256(secret.encode()).digest()


def refusal(key: Key, account: Account, now: dt.datetime) -> str | None:
    """Why the key does not speak for the account at `now`: a Reason; None: it does."""
    if key.revoke_time is not None:
        return "KEY_REVOKED"
    if key.expire_time is not None and key.expire_time <= now:
        return "KEY_EXPIRED"
    if account.close_time is not None:
        return "ACCOUNT_CLOSED"
    return None
