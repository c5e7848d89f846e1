"""The job that removes deleted threads for good, some time after they were deleted."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from prometheus_client import Counter

from conversation_svc.store import Store
from mesh.chassis.postgres import StoreUnavailableError

# Rows of one transaction: long ones would hold up the writers.
BATCH_ROW_COUNT = 500

log = structlog.get_logger()
_purged = Counter("chatmesh_conversation_purged", "Rows removed for good", ["kind"])


async def purge_once(store: Store, now: datetime, keep: timedelta) -> tuple[int, int]:
    """Removes every thread deleted, and every request made, longer than `keep` ago.

    Repeatable, and safe to run in several instances at once.

    Returns:
        How many threads and requests went.

    Raises:
        StoreUnavailableError: PostgreSQL does not answer.
    """
    thread_count = request_count = 0
    while True:
        threads, requests = await store.purge(now - keep, BATCH_ROW_COUNT)
        thread_count, request_count = thread_count + threads, request_count + requests
        _purged.labels("thread").inc(threads)
        _purged.labels("request").inc(requests)
        if max(threads, requests) < BATCH_ROW_COUNT:
            return thread_count, request_count


async def keep_purging(
    store: Store, clock: Callable[[], datetime], keep: timedelta, interval_s: float
) -> None:
    """Purges now and every `interval_s` seconds, until cancelled."""
    while True:
        try:
            threads, requests = await purge_once(store, clock(), keep)
            log.info("purged", threads=threads, requests=requests)
        except StoreUnavailableError:
            log.warning("purge_postponed")
        await asyncio.sleep(interval_s)
