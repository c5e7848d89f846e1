"""What the meter does by itself, each second: expire, reconcile, retry, forget.

Several instances may run the jobs at once: rows that one works on are skipped by the others.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable

import asyncpg
import structlog
from prometheus_client import Counter, Gauge
from redis.exceptions import RedisError
from ulid import ULID

from billing_svc import ledger, promises, usage_events
from billing_svc.consumer import UsageConsumer
from billing_svc.ledger_store import LedgerStore
from billing_svc.quota_store import QuotaStore
from billing_svc.settings import Settings
from billing_svc.store import Store
from billing_svc.usage_events import BadEventError
from mesh.chassis.errors import MeshError

PURGE_INTERVAL_S = 3600.0

log = structlog.get_logger()
_expired = Counter("chatmesh_billing_holds_expired_total", "Holds whose time was over")
_reconciled = Counter("chatmesh_billing_turns_reconciled_total", "Turns closed by the reconciler")
_drift = Counter(
    "chatmesh_billing_drift_tokens_total",
    "Tokens that only one side counted, seen by the reconciler",
    ["counted_by"],
)
_waiting = Gauge("chatmesh_billing_usage_waiting_events", "Events that wait for their hold")
_failures = Counter("chatmesh_billing_job_failures_total", "Rounds of jobs that failed", ["job"])


class Jobs:
    """The jobs; each method is one bounded round at the time given."""

    def __init__(
        self,
        quota: QuotaStore,
        ledger_store: LedgerStore,
        consumer: UsageConsumer,
        settings: Settings,
        store: Store,
    ) -> None:
        self._quota, self._ledger, self._store = quota, ledger_store, store
        self._consumer, self._settings = consumer, settings

    async def run(self) -> None:
        """All jobs, for ever; one that fails is tried again in the next round."""
        last_purge = -PURGE_INTERVAL_S
        loop = asyncio.get_running_loop()
        while True:
            for job in (self.expire, self.reconcile, self.retry_waiting, self.bury_overdue):
                await guarded(job)
            if loop.time() - last_purge > PURGE_INTERVAL_S:
                hourly = [await guarded(job) for job in (self.check_promises, self.purge)]
                if all(hourly):
                    last_purge = loop.time()
            await asyncio.sleep(self._settings.job_interval_s)

    async def expire(self, now: dt.datetime) -> int:
        """Frees expired holds."""
        count = await self._quota.expire(now)
        _expired.inc(count)
        return count

    async def reconcile(self, now: dt.datetime) -> int:
        """Charges settled turns that no node reported in time."""
        delay = dt.timedelta(seconds=self._settings.reconcile_delay_s)
        results = await self._ledger.reconcile(now - delay, now)
        for result in results:
            _reconciled.inc()
            drift = ledger.drift_token_count(result.before)
            # Of an answer that was given up nodes may know more: that is no disagreement.
            if drift < 0 or (drift and not result.before.is_cut_short):
                _drift.labels("node" if drift > 0 else "gateway").inc(abs(drift))
                log.warning("usage_drift", turn_id=result.turn.turn_id, token_count=drift)
        return len(results)

    async def retry_waiting(self, now: dt.datetime) -> int:
        """Charges events whose hold has come."""
        found = await self._ledger.pending()
        if found:
            reports = {event_id: usage_events.parse(event)[0] for event_id, event in found}
            await self._ledger.append_pending(reports, now)
        _waiting.set(await self._ledger.waiting_count())
        return len(found)

    async def bury_overdue(self, now: dt.datetime) -> int:
        """Gives events up whose hold never came."""
        age = dt.timedelta(seconds=self._settings.pending_age_max_s)
        found = await self._ledger.overdue(now - age)
        for _, event in found:
            await self._consumer.bury(event, BadEventError("turn_id", "no hold came for it"))
        if found:  # after they are safe in the dead letters
            await self._ledger.forget(event_id for event_id, _ in found)
        return len(found)

    async def check_promises(self, now: dt.datetime) -> int:
        """Tells which settings of PostgreSQL risk money."""
        return len(await promises.check(self._store))

    async def purge(self, now: dt.datetime) -> int:
        """Forgets turns that ended long ago; the ledger keeps their entries."""
        oldest = ULID.from_datetime(now - dt.timedelta(days=self._settings.turn_retention_days))
        count = await self._quota.purge(str(oldest)[:10])
        if count:
            log.info("turns_purged", count=count)
        return count


async def guarded(job: Callable[[dt.datetime], Awaitable[int]]) -> bool:
    """Runs a job; a store that is away makes it fail (False) and be counted, no more."""
    try:
        await job(dt.datetime.now(dt.UTC))
    except (MeshError, RedisError, OSError, TimeoutError, asyncpg.PostgresError) as error:
        _failures.labels(job.__name__).inc()
        log.warning("job_failed", job=job.__name__, error=type(error).__name__)
        return False
    return True
