"""Where turns wait to begin: the one queue of a gateway, fair between accounts, honest about time.

To plan a turn costs every service work; a turn that runs costs what its node can give. So planning
is what is bounded. Past the capacity a turn waits here and nowhere else: every call behind it has
its few milliseconds, and none fails for the length of a queue. What would wait too long is refused
at once, with the time after which it need not.

Order: start-time fair queueing (Goyal, Vin & Cheng, 1996). The start tags of an account lie
1 / weight apart, so that accounts which wait are served by the weights of their tiers, however much
one of them sends.
"""

import asyncio
import contextlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from math import inf

from gateway import errors, metrics
from gateway.errors import public
from gateway.settings import QueueLimits
from mesh.chassis.errors import MeshError

# Departures from which the rate is taken: enough to be steady, few enough to be of this second.
DEPARTURES_SEEN = 64
DEPARTURES_MIN = 8
RETRY_AFTER_S_MIN = 1.0


@dataclass(slots=True, eq=False)
class _Waiter:
    account_id: str
    place: "asyncio.Future[None]"


class FairQueue:
    """Lets turns be planned, so many at a time. One a process; all of it in one event loop."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._planning_count = 0
        # (start tag, arrival, waiter), in the order in which they are served.
        self._waiting: list[tuple[float, int, _Waiter]] = []
        self._waiting_count: Counter[str] = Counter()
        self._arrivals = count()
        # The start tag that was served last, and by account the next one.
        self._virtual_time = 0.0
        self._next_tag: dict[str, float] = {}
        # When places came free since all were taken; how far apart lately, in s (0: not known).
        self._departures: deque[float] = deque(maxlen=DEPARTURES_SEEN)
        self._interval_s = 0.0

    @contextlib.asynccontextmanager
    async def entered(self, account_id: str, tier: str) -> AsyncIterator[None]:
        """Waits for a place to plan a turn, and gives it back.

        Raises:
            MeshError: OVERLOADED with the time to wait; at once, or when the wait was longer than
                it had seemed.
        """
        begin = asyncio.get_running_loop().time()
        if self._has_room:
            self._planning_count += 1
        else:
            await self._wait(account_id, tier)
            waited_s = asyncio.get_running_loop().time() - begin
            metrics.QUEUE_SECONDS.labels(tier).observe(waited_s)
        try:
            yield
        finally:
            self._leave()

    @property
    def _has_room(self) -> bool:
        return self._planning_count < self._limits.planning_count_max and not self._waiting

    def check_room(self, account_id: str, tier: str) -> None:
        """Refuses what would wait too long.

        Raises:
            MeshError: OVERLOADED.
        """
        wait_s = self._wait_s(account_id)
        if self._has_room or (
            wait_s <= self._limits.queue_wait_s_max
            and len(self._waiting) < self._limits.waiting_count_max
            and self._waiting_count[account_id] < self._limits.account_waiting_count_max
        ):
            return
        raise self._refusal(tier, wait_s)

    async def _wait(self, account_id: str, tier: str) -> None:
        self.check_room(account_id, tier)
        waiter = _Waiter(account_id, asyncio.get_running_loop().create_future())
        tag = self._tag(account_id)
        entry = (tag, next(self._arrivals), waiter)
        self._next_tag[account_id] = tag + 1 / self._limits.tier_weight[tier]
        insort(self._waiting, entry)
        self._count(account_id, 1)
        try:
            async with asyncio.timeout(2 * self._limits.queue_wait_s_max):
                await waiter.place
        except BaseException as error:
            if waiter.place.done() and not waiter.place.cancelled():
                self._leave()  # it came as the caller went
            else:
                self._forget(entry)
            if isinstance(error, TimeoutError):
                raise self._refusal(tier, self._wait_s(account_id)) from None
            raise

    def _forget(self, entry: tuple[float, int, _Waiter]) -> None:
        index = bisect_left(self._waiting, entry[:2])
        if index < len(self._waiting) and self._waiting[index] is entry:
            del self._waiting[index]
            self._count(entry[2].account_id, -1)

    def _leave(self) -> None:
        """Gives the place to the next."""
        if self._planning_count >= self._limits.planning_count_max:
            self._departures.append(asyncio.get_running_loop().time())
        self._planning_count -= 1
        while self._waiting and self._planning_count < self._limits.planning_count_max:
            self._virtual_time, _, waiter = self._waiting.pop(0)
            self._count(waiter.account_id, -1)
            if not waiter.place.done():
                self._planning_count += 1
                waiter.place.set_result(None)
        if not self._waiting:
            self._virtual_time = 0.0
            self._next_tag.clear()
            self._departures.clear()

    def _tag(self, account_id: str) -> float:
        return max(self._virtual_time, self._next_tag.get(account_id, 0.0))

    def _count(self, account_id: str, more: int) -> None:
        self._waiting_count[account_id] += more
        if not self._waiting_count[account_id]:
            del self._waiting_count[account_id]
            if self._next_tag.get(account_id, inf) <= self._virtual_time:
                del self._next_tag[account_id]
        metrics.QUEUE_WAITING.set(len(self._waiting))

    def _wait_s(self, account_id: str) -> float:
        """How long a turn of the account would wait, by what was served lately; 0: not known."""
        if self._has_room:
            return 0.0
        if len(self._departures) >= DEPARTURES_MIN:
            passed_s = asyncio.get_running_loop().time() - self._departures[0]
            self._interval_s = passed_s / len(self._departures)
        ahead = bisect_right(self._waiting, (self._tag(account_id), inf))
        return (ahead + 1) * self._interval_s

    def _refusal(self, tier: str, wait_s: float) -> MeshError:
        metrics.QUEUE_REFUSALS.labels(tier).inc()
        retry_after_s = max(RETRY_AFTER_S_MIN, wait_s - self._limits.queue_wait_s_max)
        return public(
            errors.OVERLOADED,
            f"More is asked than can be answered now; try again in {retry_after_s:.0f} s.",
            retry_after_s=retry_after_s,
        )
