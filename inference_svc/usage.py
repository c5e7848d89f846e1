"""The meter at the engine: what was computed here, durably, on every way a stream can end.

Events go to the Redis stream `usage`. While Redis is away they go to a spool file in the node's
own folder, written through to the disk, and are replayed in order when it is back. An event may
arrive twice; it names positions, so it is billed once.

    meter ──ranges──> UsageReporter ──XADD──> Redis "usage"
                              └──fsync──> spool ──replay──┘
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import redis.asyncio as redis
import structlog
from prometheus_client import Counter, Gauge
from redis.exceptions import RedisError

from chatmesh.billing.v1 import billing_pb2
from inference_svc.engine.stream import GeneratedCounts
from inference_svc.spool import Spool

STREAM = "usage"
BATCH_EVENT_COUNT = 500

log = structlog.get_logger()
_events = Counter("chatmesh_inference_usage_events_total", "Usage events by way", ["way"])
_spooled = Gauge("chatmesh_inference_usage_spool_bytes", "Usage that waits for Redis on disk")


@dataclass(frozen=True, slots=True)
class MeterLabel:
    """What every event of one attempt carries; `step` is the model call of the turn."""

    turn_id: str
    attempt: int
    choice_index: int
    model: str
    instance: str
    step: int = 0


class Meter:
    """Turns the counts of one attempt into events, each position once.

    Prompt tokens are reported by the first of the n answers only: they are the step's; and not
    before its first token, because a turn that is cancelled without one costs nothing.
    """

    def __init__(self, label: MeterLabel, counts: GeneratedCounts) -> None:
        self._label, self._counts = label, counts
        self._output_begin = counts.output
        self._output_reported = counts.output  # earlier attempts reported those before
        self._prompt_reported = 0

    def events(self, now_s: float) -> list[billing_pb2.UsageEvent]:
        """What happened since the last call; `now_s` is seconds since the epoch."""
        counts, found = self._counts, []
        if counts.output == self._output_begin:
            return []
        if self._label.choice_index == 0 and counts.prefilled > self._prompt_reported:
            begin = self._prompt_reported
            if begin < counts.cached:
                kind = billing_pb2.USAGE_KIND_CACHED_INPUT
                found.append(self._event(kind, begin, counts.cached, now_s))
                begin = counts.cached
            if begin < counts.prefilled:
                kind = billing_pb2.USAGE_KIND_INPUT
                found.append(self._event(kind, begin, counts.prefilled, now_s))
            self._prompt_reported = counts.prefilled
        if counts.output > self._output_reported:
            kind = billing_pb2.USAGE_KIND_OUTPUT
            found.append(self._event(kind, self._output_reported, counts.output, now_s))
            self._output_reported = counts.output
        return found

    def _event(
        self, kind: "billing_pb2.UsageKind.ValueType", begin: int, end: int, now_s: float
    ) -> billing_pb2.UsageEvent:
        event = billing_pb2.UsageEvent(
            turn_id=self._label.turn_id,
            step=self._label.step,
            attempt=self._label.attempt,
            choice_index=self._label.choice_index,
            kind=kind,
            first_position=begin,
            end_position=end,
            model=self._label.model,
            instance=self._label.instance,
        )
        event.event_time.FromNanoseconds(int(now_s * 1e9))
        return event


class UsageReporter:
    """Collects events of all meters and gets them out. One task writes, so order is kept.

    Args:
        client: gives up at once instead of trying again: the spool is the retry.
        redis_timeout_s: of one batch.
    """

    def __init__(
        self,
        client: "redis.Redis",
        spool: Spool,
        *,
        redis_timeout_s: float,
        flush_interval_s: float,
        pending_event_count_max: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._spool, self._clock = client, spool, clock
        self._redis_timeout_s = redis_timeout_s
        self._flush_interval_s = flush_interval_s
        self._pending_max = pending_event_count_max
        self._meters: set[Meter] = set()
        self._pending: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the writer; a spool of an earlier life is replayed first."""
        self._task = asyncio.create_task(self._write_forever())

    @property
    def backlogged(self) -> bool:
        """Too much waits to be accounted: the node must not generate more."""
        return len(self._pending) >= self._pending_max or self._spool.full

    def open(self, label: MeterLabel, counts: GeneratedCounts) -> Meter:
        """A meter for one attempt; what it counts is reported while it runs."""
        meter = Meter(label, counts)
        self._meters.add(meter)
        return meter

    def close(self, meter: Meter) -> None:
        """Reports the rest of a meter at once."""
        if meter in self._meters:
            self._meters.discard(meter)
            self._collect(meter)
            self._wake.set()

    def _collect(self, meter: Meter) -> None:
        self._pending.extend(e.SerializeToString() for e in meter.events(self._clock()))

    async def stop(self) -> None:
        """Reports every meter, writes what waits (to the disk if Redis is away), and ends."""
        for meter in list(self._meters):
            self.close(meter)
        # Not cancelled: a write that is under way must not overlap the last one.
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._flush()
        await self._client.aclose()

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        report_s = loop.time() + self._flush_interval_s
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(report_s):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= report_s:  # not on every wake: that would split the ranges finely
                report_s = loop.time() + self._flush_interval_s
                for meter in self._meters:
                    self._collect(meter)
            await self._flush()

    async def _flush(self) -> None:
        """One try: the spool first, then what waits; what Redis does not take is spooled."""
        try:
            await self._replay()
            while self._pending:
                batch = list(islice(self._pending, BATCH_EVENT_COUNT))
                await self._send(batch)
                self._drop(len(batch))
                _events.labels("redis").inc(len(batch))
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            await self._spill(error)

    async def _replay(self) -> None:
        if self._spool.empty:
            return
        async with asyncio.timeout(self._redis_timeout_s):
            await self._client.ping()  # before the file is read for nothing
        events = await asyncio.to_thread(self._spool.read)
        for begin in range(0, len(events), BATCH_EVENT_COUNT):
            await self._send(events[begin : begin + BATCH_EVENT_COUNT])
        await asyncio.to_thread(self._spool.clear)
        _spooled.set(0)
        _events.labels("replayed").inc(len(events))
        log.info("usage_replayed", event_count=len(events))

    async def _send(self, events: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for event in events:
            pipeline.xadd(STREAM, {"event": event})
        async with asyncio.timeout(self._redis_timeout_s):
            await pipeline.execute()

    async def _spill(self, cause: Exception) -> None:
        if not self._pending:
            return
        batch = list(self._pending)
        try:
            await asyncio.to_thread(self._spool.append, batch)
        except OSError as error:
            # Kept in memory, tried again; admission stops at the bound.
            log.error("usage_spool_failed", error=str(error), event_count=len(batch))
            return
        self._drop(len(batch))
        _spooled.set(self._spool.byte_count)
        _events.labels("spooled").inc(len(batch))
        log.warning("usage_spooled", error=type(cause).__name__, event_count=len(batch))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._pending.popleft()
