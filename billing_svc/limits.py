"""Limits as values: what a key, an account or an organisation may use, and uses."""

from dataclasses import dataclass

from chatmesh.content.v1 import content_pb2

NO_LIMIT = -1
# By the first letters of an id.
PAYERS = {
    "acc_": content_pb2.PAYER_ACCOUNT,
    "key_": content_pb2.PAYER_KEY,
    "org_": content_pb2.PAYER_ORGANISATION,
}
PAYER_WORDS = {
    content_pb2.PAYER_UNSPECIFIED: "account",
    content_pb2.PAYER_ACCOUNT: "account",
    content_pb2.PAYER_KEY: "key",
    content_pb2.PAYER_ORGANISATION: "organisation",
}


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What a new account of a tier may use; -1: no limit.

    Attributes:
        monthly_budget_nanousd: nano-USD in a calendar month (UTC).
        tokens_per_minute: of prompts and answers, in a minute of the clock.
        parallel_max: turns at once.
    """

    monthly_budget_nanousd: int = NO_LIMIT
    tokens_per_minute: int = NO_LIMIT
    parallel_max: int = NO_LIMIT


@dataclass(frozen=True, slots=True)
class LimitsChange:
    """New limits; None: as it is."""

    monthly_budget_nanousd: int | None = None
    tokens_per_minute: int | None = None
    parallel_max: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """A payer's limits, and what it uses of them now."""

    payer_id: str
    monthly_budget_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int
    tokens_per_minute: int
    minute_token_count: int
    parallel_max: int
    running: int


@dataclass(frozen=True, slots=True)
class Member:
    """An account in an organisation; role is a number of billing.v1.Role."""

    account_id: str
    name: str
    role: int


def payer_of(payer_id: str) -> "content_pb2.Payer.ValueType":
    """What the id is of."""
    return PAYERS.get(payer_id[:4], content_pb2.PAYER_UNSPECIFIED)
