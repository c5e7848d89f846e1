"""Requests per minute: the generic cell rate algorithm (ITU-T I.371), one cell a request.

An account that was quiet may send its whole minute at once; after that one request is regained
every 60 s / limit. State is one number an account in Redis, on Redis's own clock, so that any
number of gateways share it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
import redis.exceptions
import structlog

from gateway import errors
from gateway.errors import public
from gateway.settings import AdmissionSettings
from mesh.chassis.errors import MeshError
from mesh.chassis.group_commit import GroupCommit
from mesh.chassis.postgres import StoreUnavailableError

KEY_PREFIX = "cm:rate:"
MINUTE_US = 60_000_000
US = 1_000_000
UNAVAILABLE_RETRY_S = 5.0

# KEYS[1] theoretical arrival time (µs); ARGV[1] µs a request; ARGV[2] requests at once.
# Answer: allowed (0|1), remaining, µs until the next is allowed, µs until all are regained.
SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local allowed_at = arrival + interval - burst * interval
if allowed_at > now then
  return {0, 0, allowed_at - now, arrival - now}
end
local next_arrival = arrival + interval
redis.call('SET', KEYS[1], string.format('%.0f', next_arrival),
           'PX', math.ceil((next_arrival - now) / 1000))
local remaining = math.floor((now + burst * interval - next_arrival) / interval)
return {1, remaining, 0, next_arrival - now}
"""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of an account's minute."""

    # Requests a minute.
    limit: int
    remaining: int
    # Until the next request is allowed; 0 when one is.
    retry_after_s: float
    # Until `remaining` is `limit` again.
    reset_s: float

    def headers(self) -> dict[str, str]:
        """The x-ratelimit headers, as OpenAI names and writes them."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{round(self.reset_s, 3):g}s",
        }


class RateExceededError(MeshError):
    """No request is left of the account's minute."""

    def __init__(self, tier: str, allowance: Allowance) -> None:
        wait_s = allowance.retry_after_s
        message = (
            f"Rate limit of the {tier} tier reached: {allowance.limit} requests per minute; "
            f"try again in {wait_s:.1f} s."
        )
        reason = errors.RATE_LIMIT_EXCEEDED
        super().__init__(errors.CODES[reason], reason, message, retry_after_s=wait_s)
        self.allowance = allowance


class LocalRate:
    """The same algorithm in this process alone, while Redis is away."""

    def __init__(self, count_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._count_max, self._clock = count_max, clock
        # Theoretical arrival times, in microseconds.
        self._arrivals: OrderedDict[str, float] = OrderedDict()

    def take(self, account_id: str, limit: int) -> list[int]:
        """Takes one request of an account's minute; what the script answers."""
        now, interval = self._clock() * US, MINUTE_US // limit
        arrival = max(self._arrivals.get(account_id, now), now)
        wait = arrival + interval - limit * interval - now
        if account_id in self._arrivals:
            self._arrivals.move_to_end(account_id)
        if wait > 0:
            return [0, 0, int(wait), int(arrival - now)]
        self._arrivals[account_id] = arrival = arrival + interval
        while len(self._arrivals) > self._count_max:
            self._arrivals.popitem(last=False)
        return [1, int((now + limit * interval - arrival) / interval), 0, int(arrival - now)]


class RateLimiter:
    """Counts requests of accounts."""

    def __init__(self, client: "redis.asyncio.Redis", settings: AdmissionSettings) -> None:
        self._client, self._script = client, client.register_script(SCRIPT)
        self._settings = settings
        self._local = LocalRate(settings.away.local_count_max)
        # On one connection, however many come at once.
        self._group: GroupCommit[tuple[str, int], list[int]] = GroupCommit("rate", self._take_all)

    async def take(self, account_id: str, tier: str) -> Allowance | None:
        """Takes one request; None where no limit applies.

        Raises:
            RateExceededError: none is left.
            MeshError: SERVICE_UNAVAILABLE: Redis is away and the tier does not go on without it.
        """
        limit = self._settings.requests_per_minute.get(tier)
        if limit is None:
            return None
        try:
            # A round trip that was under way, and the one after it.
            async with asyncio.timeout(2 * self._settings.rate_timeout_s):
                answer = await self._group.ask((KEY_PREFIX + account_id, limit))
        except (redis.exceptions.RedisError, OSError, StoreUnavailableError) as error:
            self._check_open(tier, error)
            answer = self._local.take(account_id, limit)
        allowed, remaining, wait_us, reset_us = answer
        allowance = Allowance(limit, remaining, wait_us / US, reset_us / US)
        if not allowed:
            raise RateExceededError(tier, allowance)
        return allowance

    async def _take_all(self, rows: Sequence[tuple[str, int]]) -> list[list[int]]:
        """Takes a request of each account named, in one round trip.

        Raises:
            redis.exceptions.RedisError, OSError: Redis is away, TimeoutError among them.
        """
        async with asyncio.timeout(self._settings.rate_timeout_s):
            answers = await self._asked(rows)
            if any(isinstance(each, redis.exceptions.NoScriptError) for each in answers):
                await self._client.script_load(SCRIPT)  # none was run
                answers = await self._asked(rows)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [[int(number) for number in answer] for answer in answers]

    async def _asked(self, rows: Sequence[tuple[str, int]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, limit in rows:
                pipeline.evalsha(self._script.sha, 1, key, MINUTE_US // limit, limit)
            return await pipeline.execute(raise_on_error=False)

    def _check_open(self, tier: str, error: Exception) -> None:
        log.warning("rate_unknown", tier=tier, error=type(error).__name__)
        if self._settings.away.requests.get(tier) != "local":
            raise public(
                errors.SERVICE_UNAVAILABLE,
                "Requests of your tier cannot be counted at the moment; try again shortly.",
                retry_after_s=UNAVAILABLE_RETRY_S,
                service="rate",
            )
