"""Charged usage events that the stream keeps for a while.

An asynchronous replica of PostgreSQL that takes over has lost the newest commits. Were an event
gone with the commit that charged it, its tokens would be charged to nobody. So it stays for longer
than a replica may lag, and the stream is read again after a failover; what is charged already
changes nothing then.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import redis.asyncio as redis

# Of one round, so that it takes no time to speak of; there is one a second.
TRIM_EVENT_COUNT_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a charged event stays, and how many the stream has; the narrower holds."""

    age: dt.timedelta
    count: int


@dataclass(frozen=True, slots=True)
class State:
    """Of the stream: its events, charged or not, and how long the oldest that no consumer has
    taken waits (seconds; 0: there is none)."""

    event_count: int
    waiting_s: float


async def trim(
    client: "redis.Redis", stream: str, group: str, keep: Bounds, now: dt.datetime
) -> State:
    """Removes charged events outside the bounds; never one that is not charged, however old.

    Args:
        now: on the clock that Redis makes the events' ids of.
    """
    (info,) = [one for one in await client.xinfo_groups(stream) if one["name"] == group.encode()]
    # Consumers take events in order: all up to the last one taken are charged but the pending.
    charged_until = taken_until = _place(info["last-delivered-id"])
    if info["pending"]:
        pending: Any = await client.xpending(stream, group)
        if pending["min"]:
            charged_until = min(charged_until, _before(_place(pending["min"])))
    now_ms = int(now.timestamp() * 1000)
    until = (now_ms - int(keep.age.total_seconds() * 1000), 0)
    excess = min(await client.xlen(stream) - keep.count, TRIM_EVENT_COUNT_MAX)
    if excess > 0:
        oldest: Any = await client.xrange(stream, count=excess)
        until = max(until, _place(oldest[-1][0]))
    # MINID is the first that stays.
    await client.xtrim(stream, minid=_after(min(until, charged_until)), approximate=False)
    waiting: Any = await client.xrange(stream, min=_after(taken_until), count=1)
    waiting_s = max(0, now_ms - _place(waiting[0][0])[0]) / 1000 if waiting else 0.0
    return State(await client.xlen(stream), waiting_s)


def _after(place: tuple[int, int]) -> str:
    return f"{place[0]}-{place[1] + 1}"


def _place(event_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = event_id.decode().partition("-")
    return int(milliseconds), int(number)


def _before(place: tuple[int, int]) -> tuple[int, int]:
    milliseconds, number = place
    return (milliseconds, number - 1) if number else (milliseconds - 1, 2**64 - 2)
