"""The job that removes decisions when their time is over."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from prometheus_client import Counter

from mesh.chassis.postgres import StoreUnavailableError

# Rows of one statement: a long one would hold up what is recorded meanwhile.
BATCH_ROW_COUNT = 1_000

_log = structlog.get_logger()
_purged = Counter("chatmesh_safety_decisions_purged_total", "Decisions removed for good.")


class PurgeStore(Protocol):
    """Where decisions are."""

    async def purge(self, before: datetime, limit: int) -> int:
        """Removes the oldest decisions made before a time, at most `limit`; returns how many."""
        ...


async def purge_once(store: PurgeStore, now: datetime, keep: timedelta) -> int:
    """Removes every decision made longer than `keep` ago; returns how many there were.

    Repeatable, and safe to run in several instances at once.

    Raises:
        StoreUnavailableError: PostgreSQL does not answer.
    """
    total = 0
    while True:
        count = await store.purge(now - keep, BATCH_ROW_COUNT)
        total += count
        _purged.inc(count)
        if count < BATCH_ROW_COUNT:
            return total


async def keep_purging(
    store: PurgeStore, clock: Callable[[], datetime], keep: timedelta, interval_s: float
) -> None:
    """Purges now and every `interval_s` seconds, until cancelled."""
    while True:
        try:
            count = await purge_once(store, clock(), keep)
            _log.info("decisions_purged", count=count)
        except StoreUnavailableError as error:
            _log.warning("purge_postponed", error=str(error))
        await asyncio.sleep(interval_s)
