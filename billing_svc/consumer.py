"""The usage stream: Redis "usage" → ledger.

One consumer group; each instance is a consumer of its own. A batch is one transaction in
PostgreSQL, acknowledged after the commit: whatever dies in between, the batch comes again and
changes nothing. What is charged stays in the stream for a while, so that a failover of PostgreSQL
that lost commits can be made good by reading it again (`kept_events.py`). What a dead consumer had
taken is claimed. An event that can never be charged goes to the stream "usage:dead" with the reason
and blocks nobody.
"""

import asyncio
import datetime as dt
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import redis.asyncio as redis
import structlog
from prometheus_client import Counter, Gauge, Histogram
from redis.exceptions import RedisError, ResponseError

from billing_svc import usage_events
from billing_svc.kept_events import Bounds, trim
from billing_svc.ledger_store import LedgerStore, Report
from billing_svc.usage_events import BadEventError
from mesh.chassis.errors import MeshError

STREAM = "usage"
DEAD_STREAM = "usage:dead"
GROUP = "billing"
# After a batch, so that the next one is worth its transaction: a turn's events alone cost 3 ms of
# CPU here and in PostgreSQL, and the ledger may lag behind by 2 s.
GATHER_S = 0.25
BATCH_EVENT_COUNT_MAX = 500
BLOCK_MS = 1000
# Of one batch, the blocking read and all statements included.
STEP_TIMEOUT_S = 20.0
BURY_TIMEOUT_S = 5.0
DEAD_EVENT_COUNT_MAX = 100_000
# Longer than any batch takes, or a slow consumer's batch would be done twice (which is harmless).
CLAIM_IDLE_MS = 15_000
CLAIM_INTERVAL_S = 5.0
TRIM_INTERVAL_S = 1.0
BACKOFF_S = (0.1, 0.2, 0.5, 1.0)

log = structlog.get_logger()
_events = Counter("chatmesh_billing_usage_events_total", "Events read from the stream")
_tokens = Counter("chatmesh_billing_usage_tokens_total", "Tokens charged from events")
_dead = Counter("chatmesh_billing_usage_dead_total", "Events given up", ["field"])
_claimed = Counter("chatmesh_billing_usage_claimed_total", "Events taken over from dead consumers")
_failures = Counter("chatmesh_billing_usage_failures_total", "Batches to repeat", ["store"])
_stream = Gauge("chatmesh_billing_usage_stream_events", "Events in the stream, charged or not")
_waiting = Gauge("chatmesh_billing_usage_stream_wait_seconds", "Age of the oldest that none took")
_lag = Histogram(
    "chatmesh_billing_usage_lag_seconds",
    "From the event at the node to its ledger entry",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, 60, 300, 3600),
)

# (id in the stream, serialised event; None: deleted by somebody meanwhile)
Message = tuple[bytes, bytes | None]


class UsageConsumer:
    """Reads the stream for ever. One a process.

    Args:
        client: without retries: one inside it would leave a batch whose answer was lost unseen;
            `run` repeats it properly.
        store: the ledger.
        name: the consumer's, such as "billing-1"; after a restart it finds its own batch again.
        clock: the time of the entries.
        keep: how long, and how many, charged events stay in the stream.
    """

    def __init__(
        self,
        client: "redis.Redis",
        store: LedgerStore,
        name: str,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        *,
        keep: Bounds,
    ) -> None:
        self._client, self._store, self._name, self._clock = client, store, name, clock
        self._keep = keep
        self._claim_time = self._trim_time = -math.inf
        self._has_group = False
        self._own_cursor: str | None = "0"  # first what this name had taken and not finished

    async def run(self) -> None:
        """Consumes for ever; a store that is away is waited for."""
        delays = iter(BACKOFF_S)
        while True:
            try:
                if await self.step():
                    await asyncio.sleep(GATHER_S)
                delays = iter(BACKOFF_S)
            except (RedisError, MeshError, OSError, TimeoutError) as error:
                store = "postgres" if isinstance(error, MeshError) else "redis"
                _failures.labels(store).inc()
                log.warning("usage_batch_failed", store=store, error=type(error).__name__)
                self._own_cursor = "0"  # the batch stays ours: read it again
                self._has_group = False
                await asyncio.sleep(next(delays, BACKOFF_S[-1]))

    async def step(self, block_ms: int = BLOCK_MS) -> int:
        """One batch; gives how many messages it had.

        Raises:
            RedisError, TimeoutError: Redis is away.
            MeshError: PostgreSQL is.
        """
        async with asyncio.timeout(STEP_TIMEOUT_S):
            return await self._step(block_ms)

    async def _step(self, block_ms: int) -> int:
        if not self._has_group:
            await self._make_group()
        messages = await self._take(block_ms)
        if messages:
            await self._process(messages)
            _events.inc(len(messages))
        if time.monotonic() - self._trim_time > TRIM_INTERVAL_S:
            self._trim_time = time.monotonic()
            now = dt.datetime.now(dt.UTC)  # Redis's, not that of the entries
            state = await trim(self._client, STREAM, GROUP, self._keep, now)
            _stream.set(state.event_count)
            _waiting.set(state.waiting_s)
        return len(messages)

    async def _make_group(self) -> None:
        try:
            await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._has_group = True

    async def _take(self, block_ms: int) -> list[Message]:
        if self._own_cursor is not None:
            own = await self._read(self._own_cursor, None)
            if own:
                return own
            self._own_cursor = None
        if time.monotonic() - self._claim_time > CLAIM_INTERVAL_S:
            claimed = await self._claim()
            if claimed:
                return claimed
            self._claim_time = time.monotonic()
        return await self._read(">", block_ms)

    async def _read(self, cursor: str, block_ms: int | None) -> list[Message]:
        found: Any = await self._client.xreadgroup(
            GROUP, self._name, {STREAM: cursor}, count=BATCH_EVENT_COUNT_MAX, block=block_ms
        )
        return _messages(found[0][1]) if found else []

    async def _claim(self) -> list[Message]:
        reply: Any = await self._client.xautoclaim(
            STREAM, GROUP, self._name, CLAIM_IDLE_MS, count=BATCH_EVENT_COUNT_MAX
        )
        claimed = _messages(reply[1])
        if claimed:
            _claimed.inc(len(claimed))
            log.info("usage_claimed", event_count=len(claimed))
        return claimed

    async def _process(self, messages: Sequence[Message]) -> None:
        reports: list[Report] = []
        times: list[float] = []
        for message_id, data in messages:
            if data is None:
                continue
            try:
                report, event_time = usage_events.parse(data)
            except BadEventError as error:
                await self.bury(data, error, message_id)
            else:
                reports.append(report)
                times.append(event_time)
        await self._append(reports)
        ids = [message_id for message_id, _ in messages]
        await self._client.xack(STREAM, GROUP, *ids)
        now = time.time()
        for event_time in itertools.compress(times, times):
            _lag.observe(max(0.0, now - event_time))

    async def _append(self, reports: list[Report]) -> None:
        try:
            appended = await self._store.append(reports, self._clock())
        except (asyncpg.PostgresError, ValueError) as error:
            if len(reports) == 1:
                await self.bury(reports[0].event, BadEventError("store", str(error)))
                return
            # One event breaks the batch: the halves are tried alone until it stands alone.
            middle = len(reports) // 2
            await self._append(reports[:middle])
            await self._append(reports[middle:])
        else:
            _tokens.inc(appended.new_token_count)
            if appended.waiting_count:
                log.info("usage_waits_for_hold", event_count=appended.waiting_count)

    async def bury(self, data: bytes, error: BadEventError, message_id: bytes = b"") -> None:
        """Puts an event that can never be charged aside."""
        _dead.labels(error.field).inc()
        log.error("usage_event_dead", field=error.field, reason=error.message)
        fields: dict[Any, Any] = {"event": data, "reason": str(error), "id": message_id}
        async with asyncio.timeout(BURY_TIMEOUT_S):
            await self._client.xadd(
                DEAD_STREAM, fields, maxlen=DEAD_EVENT_COUNT_MAX, approximate=True
            )


def _messages(found: Sequence[Any]) -> list[Message]:
    # A message that was deleted while it was pending comes without any field: nothing to charge.
    # One without the field "event" is refused like any other that is not an event.
    return [
        (item[0], item[1].get(b"event", b"") if item[1] else None)
        for item in found
        if item and item[0]
    ]
