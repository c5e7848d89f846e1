"""How many unknown keys may be looked up: strangers must not spend billing's connections.

Only a key that was not lately found to be somebody's needs a place here. The bound is on the
answers "no such key": real keys, however many come at once after a start, only wait for each other.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from gateway import errors, metrics
from gateway.errors import public

# Of one gateway and one form of keys. Beside what a balancer of C-core needs to take an instance
# out (20 calls in 2 s, 90 % of them failed, and to it NOT_FOUND is a failure) two such bounds are
# few: mesh/control/render.py, and a test that compares them.
MISSES_PER_S = 3.0
MISS_BURST_MAX = 8
IN_FLIGHT_MAX = 2
WAIT_S_MAX = 1.0
RETRY_AFTER_S = 1.0


class UnknownKeys:
    """A token bucket of misses, and places for the questions of which some will be misses.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._time = clock, clock()
        self._left = float(MISS_BURST_MAX)
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place to ask for one key.

        Raises:
            MeshError: SERVICE_UNAVAILABLE: too many unknown keys came lately, or no place got free.
        """
        self._check()
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await self._places.acquire()
        except TimeoutError:
            raise _too_many() from None
        try:
            self._check()  # those before may have been misses
            yield
        finally:
            self._places.release()

    def note_miss(self) -> None:
        """A key was nobody's."""
        self._refill()
        self._left -= 1

    def _check(self) -> None:
        self._refill()
        if self._left < 1:
            raise _too_many()

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._time) * MISSES_PER_S, float(MISS_BURST_MAX))
        self._time = now


def _too_many() -> Exception:
    metrics.UNKNOWN_KEYS_REFUSED.inc()
    return public(
        errors.SERVICE_UNAVAILABLE,
        "Too many unknown API keys are being tried, and this one was not used lately; try again "
        "in a second.",
        retry_after_s=RETRY_AFTER_S,
    )
