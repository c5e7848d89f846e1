"""Where turns wait to begin: the one queue of a gateway, fair between accounts, honest about time.

To plan a turn costs every service work; a turn that runs costs what its node can give. So planning
is bounded, and nothing is planned for a model whose nodes have more waiting than they soon begin.
Past the capacity a turn waits here and nowhere else: every call behind it has its few milliseconds,
and none fails for the length of a queue. What would wait too long is refused at once, with the time
after which it need not.

Order: start-time fair queueing (Goyal, Vin & Cheng, 1996). The start tags of an account lie
1 / weight apart, so that accounts which wait are served by the weights of their tiers, however much
one of them sends.
"""

import asyncio
import contextlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
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
    model: str
    place: "asyncio.Future[None]"


class FairQueue:
    """Lets turns be planned, so many at a time. One a process; all of it in one event loop."""

    def __init__(self, limits: QueueLimits, is_crowded: Callable[[str, int], bool]) -> None:
        """`is_crowded(model, coming_count)`: whether the nodes of a model have enough that waits.

        `coming_count`: turns that are being planned for them. Call `advance` when they have not.
        """
        self._limits, self._is_crowded = limits, is_crowded
        self._planning_count = 0
        self._planning_models: Counter[str] = Counter()
        # (start tag, arrival, waiter), in the order in which they are served.
        self._waiting: list[tuple[float, int, _Waiter]] = []
        self._waiting_count: Counter[str] = Counter()
        self._waiting_models: Counter[str] = Counter()
        self._arrivals = count()
        # The start tag that was served last, and by account the next one.
        self._virtual_time = 0.0
        self._next_tag: dict[str, float] = {}
        # When places were given, since some waited for them.
        self._departures: deque[float] = deque(maxlen=DEPARTURES_SEEN)

    @contextlib.asynccontextmanager
    async def entered(self, account_id: str, tier: str, model: str) -> AsyncIterator[None]:
        """Waits for a place to plan a turn, and gives it back.

        Raises:
            MeshError: OVERLOADED with the time to wait; at once, or when the wait was longer than
                it had seemed.
        """
        begin = asyncio.get_running_loop().time()
        if self._has_place and not self._is_crowded(model, self._planning_models[model]):
            self._enter(model)
        else:
            self._check(account_id, tier)
            await self._wait(account_id, tier, model)
            waited_s = asyncio.get_running_loop().time() - begin
            metrics.QUEUE_SECONDS.labels(tier).observe(waited_s)
        try:
            yield
        finally:
            self._leave(model)

    def check_room(self, account_id: str, tier: str) -> None:
        """Refuses what would wait too long, whatever model it is for.

        Raises:
            MeshError: OVERLOADED.
        """
        if not self._has_place:
            self._check(account_id, tier)

    def advance(self) -> None:
        """Gives free places to those that wait, in their order; call it when nodes have room."""
        while self._has_place and (entry := self._next()):
            self._virtual_time, _, waiter = entry
            self._forget(entry)
            if not waiter.place.done():
                self._enter(waiter.model)
                self._departures.append(asyncio.get_running_loop().time())
                waiter.place.set_result(None)

    def _next(self) -> tuple[float, int, _Waiter] | None:
        open_to = {
            model
            for model in self._waiting_models
            if not self._is_crowded(model, self._planning_models[model])
        }
        if not open_to:
            return None
        return next(each for each in self._waiting if each[2].model in open_to)

    @property
    def _has_place(self) -> bool:
        """Whether a place is free; whoever waits all the same waits for the nodes of a model."""
        return self._planning_count < self._limits.planning_count_max

    def _check(self, account_id: str, tier: str) -> None:
        wait_s = self._wait_s(account_id)
        if (
            wait_s <= self._limits.queue_wait_s_max
            and len(self._waiting) < self._limits.waiting_count_max
            and self._waiting_count[account_id] < self._limits.account_waiting_count_max
        ):
            return
        raise self._refusal(tier, wait_s)

    async def _wait(self, account_id: str, tier: str, model: str) -> None:
        waiter = _Waiter(account_id, model, asyncio.get_running_loop().create_future())
        tag = self._tag(account_id)
        entry = (tag, next(self._arrivals), waiter)
        self._next_tag[account_id] = tag + 1 / self._limits.tier_weight[tier]
        insort(self._waiting, entry)
        self._count(waiter, 1)
        try:
            async with asyncio.timeout(2 * self._limits.queue_wait_s_max):
                await waiter.place
        except BaseException as error:
            if waiter.place.done() and not waiter.place.cancelled():
                self._leave(model)  # it came as the caller went
            else:
                self._forget(entry)
            if isinstance(error, TimeoutError):
                raise self._refusal(tier, self._wait_s(account_id)) from None
            raise

    def _forget(self, entry: tuple[float, int, _Waiter]) -> None:
        index = bisect_left(self._waiting, entry[:2])
        if index < len(self._waiting) and self._waiting[index] is entry:
            del self._waiting[index]
            self._count(entry[2], -1)

    def _enter(self, model: str) -> None:
        self._planning_count += 1
        self._planning_models[model] += 1

    def _leave(self, model: str) -> None:
        """Gives the place to the next."""
        self._planning_count -= 1
        self._planning_models[model] -= 1
        if not self._planning_models[model]:
            del self._planning_models[model]
        self.advance()
        if not self._waiting:
            self._virtual_time = 0.0
            self._next_tag.clear()
            self._departures.clear()

    def _tag(self, account_id: str) -> float:
        return max(self._virtual_time, self._next_tag.get(account_id, 0.0))

    def _count(self, waiter: _Waiter, more: int) -> None:
        account_id = waiter.account_id
        self._waiting_models[waiter.model] += more
        if not self._waiting_models[waiter.model]:
            del self._waiting_models[waiter.model]
        self._waiting_count[account_id] += more
        if not self._waiting_count[account_id]:
            del self._waiting_count[account_id]
            if self._next_tag.get(account_id, inf) <= self._virtual_time:
                del self._next_tag[account_id]
        metrics.QUEUE_WAITING.set(len(self._waiting))

    def _wait_s(self, account_id: str) -> float:
        """How long a turn of the account would wait, by what was served lately; 0: not known."""
        if len(self._departures) < DEPARTURES_MIN:
            return 0.0
        passed_s = asyncio.get_running_loop().time() - self._departures[0]
        ahead = bisect_right(self._waiting, (self._tag(account_id), inf))
        return (ahead + 1) * passed_s / len(self._departures)

    def _refusal(self, tier: str, wait_s: float) -> MeshError:
        metrics.QUEUE_REFUSALS.labels(tier).inc()
        retry_after_s = max(RETRY_AFTER_S_MIN, wait_s - self._limits.queue_wait_s_max)
        return public(
            errors.OVERLOADED,
            f"More is asked than can be answered now; try again in {retry_after_s:.0f} s.",
            retry_after_s=retry_after_s,
        )
