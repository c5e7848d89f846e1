"""A cache whose entries are fresh: one question at a time for each key, old answers in need."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mesh.chassis import deadlines
from mesh.chassis.errors import MeshError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Ages:
    """How old an answer may be, in seconds since the question was sent."""

    # Served without asking.
    fresh_s: float
    # Served, while the question is asked again beside it.
    refresh_s: float
    # A refusal is served without asking.
    refused_s: float
    # Served when there is no answer.
    stale_s: float
    # How long a stale answer waits for a better one.
    patience_s: float = 0.5


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    asked_at: float
    value: V | None = None
    refusal: MeshError | None = None


class FreshCache(Generic[K, V]):
    """Answers of `load` by key; at most `count_max`, the least recently used leave first.

    Refusals are kept apart, at most as many: a flood of them pushes no value out.
    """

    def __init__(
        self,
        load: Callable[[K], Awaitable[V]],
        is_refusal: Callable[[MeshError], bool],
        ages: Ages,
        count_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_refusal` tells an answer ("no such key") from the lack of one ("no connection")."""
        self._load, self._is_refusal = load, is_refusal
        self._ages, self._count_max, self._clock = ages, count_max, clock
        self._values: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._refusals: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[_Entry[V]]] = {}

    async def get(self, key: K) -> V:
        """The value for a key.

        Raises:
            MeshError: the refusal; or what `load` raised, with no usable old answer.
        """
        entry = self._values.get(key) or self._refusals.get(key)
        if entry is None:
            return _result(await asyncio.shield(self._ask(key)))
        (self._refusals if entry.refusal else self._values).move_to_end(key)
        age_s = self._clock() - entry.asked_at
        if entry.refusal:
            fresh_s = self._ages.refused_s
        else:
            fresh_s = self._ages.fresh_s
            if self._ages.refresh_s < age_s < fresh_s:
                self._ask(key)
        if age_s < fresh_s:
            return _result(entry)
        return _result(await self._newer(key, entry, age_s))

    def needs_question(self, key: K) -> bool:
        """Whether `get` has to ask first, and no value of before could help."""
        if key in self._values or key in self._asking:
            return False
        refused = self._refusals.get(key)
        return refused is None or self._clock() - refused.asked_at >= self._ages.refused_s

    async def _newer(self, key: K, entry: _Entry[V], age_s: float) -> _Entry[V]:
        asking = self._ask(key)
        if entry.refusal or age_s > self._ages.stale_s:
            return await asyncio.shield(asking)
        try:
            async with asyncio.timeout(self._ages.patience_s):
                return await asyncio.shield(asking)
        except (TimeoutError, MeshError):
            return entry

    def _ask(self, key: K) -> "asyncio.Task[_Entry[V]]":
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._answer(key))
            asking.add_done_callback(lambda task: self._asked(key, task))
        return asking

    async def _answer(self, key: K) -> _Entry[V]:
        deadlines.enter(None)  # others wait for it too
        asked_at = self._clock()
        try:
            entry: _Entry[V] = _Entry(asked_at, value=await self._load(key))
        except MeshError as error:
            if not self._is_refusal(error):
                raise
            entry = _Entry(asked_at, refusal=error)
        kept, other = self._values, self._refusals
        if entry.refusal:
            kept, other = other, kept
        other.pop(key, None)
        kept[key] = entry
        kept.move_to_end(key)
        while len(kept) > self._count_max:
            kept.popitem(last=False)
        return entry

    def _asked(self, key: K, task: "asyncio.Task[_Entry[V]]") -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # whoever waited was told


def _result(entry: _Entry[V]) -> V:
    if entry.refusal:
        # A copy: the same object raised again and again would gather tracebacks.
        error = entry.refusal
        raise MeshError(
            error.code,
            error.reason,
            error.message,
            metadata=error.metadata,
            retry_after_s=error.retry_after_s,
        )
    assert entry.value is not None
    return entry.value
