"""The audit that never ends: judges each turn when it has ended, and again when it changed.

Several instances may run it at once: turns that one judges are skipped by the others.
"""

import asyncio
import datetime as dt

import structlog
from prometheus_client import Counter, Gauge
from ulid import ULID

from billing_svc.audit import Finding
from billing_svc.audit_store import AUDIT_TURN_COUNT_MAX, SEARCH_ENTRY_COUNT_MAX, AuditStore
from billing_svc.jobs import guarded
from billing_svc.ledger import Kind
from billing_svc.settings import Settings

# Longer than any transaction of ours: an entry with a lower number may still be uncommitted.
SEARCH_INTERVAL_S = 30.0

log = structlog.get_logger()
_turns = Counter("chatmesh_billing_audit_turns", "Turns judged, once for each change after the end")
_drift = Gauge(
    "chatmesh_billing_audit_drift_tokens",
    "Tokens that the gateway counted and no node reported, in turns that are remembered",
    ["kind"],
)
_lag = Gauge("chatmesh_billing_audit_lag_seconds", "Age of the oldest ended turn not yet judged")
_findings = Gauge(
    "chatmesh_billing_audit_findings", "Turns that do not balance, by finding", ["finding"]
)


class AuditJob:
    """The job; each method is one bounded round at the time given."""

    def __init__(self, store: AuditStore, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._search_end = 0

    async def run(self) -> None:
        """Audits for ever; a round that fails is tried again in the next."""
        loop = asyncio.get_running_loop()
        last_search = -SEARCH_INTERVAL_S
        while True:
            await guarded(self.audit)
            if loop.time() - last_search >= SEARCH_INTERVAL_S:
                last_search = loop.time()
                await guarded(self.search)
            await guarded(self.measure)
            await asyncio.sleep(self._settings.audit_interval_s)

    async def audit(self, now: dt.datetime) -> int:
        """Judges all turns that are due; gives how many."""
        count = 0
        while True:
            done = await self._store.audit_due(now)
            _turns.inc(done)
            count += done
            if done < AUDIT_TURN_COUNT_MAX:
                return count

    async def search(self, now: dt.datetime) -> int:
        """Looks at the entries that were there at the last search; gives how many."""
        end, self._search_end = self._search_end, await self._store.last_entry_id()
        retention = dt.timedelta(days=self._settings.turn_retention_days)
        oldest = str(ULID.from_datetime(now - retention))
        count = 0
        while True:
            done = await self._store.search_ledger(end, oldest, now)
            count += done
            if done < SEARCH_ENTRY_COUNT_MAX:
                return count

    async def measure(self, now: dt.datetime) -> int:
        """Sets the metrics; gives the number of turns that do not balance."""
        _lag.set(await self._store.lag_s(now))
        counts = await self._store.finding_counts()
        for finding in Finding:
            turns = sum(count.turn_count for count in counts if count.finding is finding)
            if finding is not Finding.DRIFT:
                _findings.labels(finding.name.lower()).set(turns)
        for kind in (Kind.INPUT, Kind.OUTPUT):
            tokens = [c.token_count for c in counts if (c.finding, c.kind) == (Finding.DRIFT, kind)]
            _drift.labels(kind.name.lower()).set(sum(tokens))
        total = sum(c.turn_count for c in counts if c.finding is not Finding.DRIFT)
        if total:
            log.warning("audit_findings", turn_count=total)
        return total
