"""Which limit has no room, on the wire and in words."""

import datetime as dt

import grpc

from billing_svc.hold_rows import Bound, Held
from billing_svc.limits import PAYER_WORDS, payer_of
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.content.v1 import content_pb2
from mesh.chassis.errors import MeshError

NANOUSD_PER_USD = 1e9
MINUTE_S = 60.0
PARALLEL_RETRY_S = 1.0
LIMIT_WORDS: dict[int, str] = {
    content_pb2.LIMIT_BUDGET: "exhausted",
    content_pb2.LIMIT_TOKENS_PER_MINUTE: "token_rate",
    content_pb2.LIMIT_PARALLEL: "parallel",
}


def bound(found: Bound | None) -> pb.Bound | None:
    """The limit that left less than was asked for; None stays absent."""
    if found is None:
        return None
    limit = content_pb2.Limit.ValueType(found.limit)
    return pb.Bound(limit=limit, payer=payer_of(found.payer_id))


def seconds_left(now: dt.datetime) -> float:
    """Of the minute."""
    return MINUTE_S - now.timestamp() % MINUTE_S


def refused(held: Held, now: dt.datetime) -> MeshError:
    """RESOURCE_EXHAUSTED for a hold, or what it was to be raised by, that has no room."""
    assert held.bound is not None
    payer = PAYER_WORDS[payer_of(held.bound.payer_id)]
    if held.bound.limit == content_pb2.LIMIT_TOKENS_PER_MINUTE:
        return _exceeded(
            "TOKEN_RATE_EXCEEDED",
            f"The {payer} may use {held.token_limit} tokens a minute, and {held.token_left} are "
            "left of this one: ask for less, or again in the next minute.",
            seconds_left(now),
            payer=payer,
            limit=str(held.token_limit),
        )
    if held.bound.limit == content_pb2.LIMIT_PARALLEL:
        return _exceeded(
            "PARALLEL_EXCEEDED",
            f"The {payer} may run {held.token_limit} requests at once, and as many run: wait for "
            "one of them to end.",
            PARALLEL_RETRY_S,
            payer=payer,
            limit=str(held.token_limit),
        )
    available, required = max(0, held.available_nanousd), held.held_nanousd
    return _exceeded(
        "BUDGET_EXHAUSTED",
        f"This request may cost up to ${required / NANOUSD_PER_USD:.6f}, and "
        f"${available / NANOUSD_PER_USD:.6f} of the {payer}'s budget of the month is free: ask for "
        "fewer tokens, wait for requests that run, or have the budget raised.",
        None,
        payer=payer,
        available_nanousd=str(available),
        required_nanousd=str(required),
    )


def _exceeded(reason: str, message: str, retry_after_s: float | None, **metadata: str) -> MeshError:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return MeshError(code, reason, message, metadata=metadata, retry_after_s=retry_after_s)
