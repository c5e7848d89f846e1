"""The meter, the spool, and the way between them when Redis comes and goes."""

import asyncio
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import redis.asyncio as redis

from chatmesh.billing.v1 import billing_pb2
from inference_svc.engine.stream import GeneratedCounts
from inference_svc.spool import Spool
from inference_svc.usage import Meter, MeterLabel, UsageReporter
from mesh import stores
from mesh.chassis.redis_client import connect

DEADLINE_S = 20
LABEL = MeterLabel("turn", 0, 0, "toy", "inference-1")
KINDS = {
    billing_pb2.USAGE_KIND_INPUT: "in",
    billing_pb2.USAGE_KIND_CACHED_INPUT: "cached",
    billing_pb2.USAGE_KIND_OUTPUT: "out",
}


def ranges(events) -> list[tuple[str, int, int]]:
    return [(KINDS[e.kind], e.first_position, e.end_position) for e in events]


def test_meter_reports_each_position_once() -> None:
    counts = GeneratedCounts()
    meter = Meter(LABEL, counts)
    assert meter.events(0.0) == []
    counts.cached, counts.prefilled = 32, 50
    assert meter.events(0.0) == []  # cancelled here, the turn would cost nothing
    counts.prefilled, counts.output = 60, 1
    assert ranges(meter.events(0.0)) == [("cached", 0, 32), ("in", 32, 60), ("out", 0, 1)]
    counts.output = 4
    (output,) = meter.events(12.5)
    assert ranges([output]) == [("out", 1, 4)]
    assert output.event_time.ToNanoseconds() == 12_500_000_000
    assert meter.events(0.0) == []


def test_meter_of_a_continuation_and_of_a_further_answer() -> None:
    counts = GeneratedCounts(output=7)
    continued = Meter(MeterLabel("turn", 1, 0, "toy", "x"), counts)
    counts.prefilled, counts.output = 10, 9
    assert ranges(continued.events(0.0)) == [("in", 0, 10), ("out", 7, 9)]
    further = Meter(MeterLabel("turn", 0, 2, "toy", "x"), GeneratedCounts(prefilled=10, output=0))
    assert further.events(0.0) == []  # the prompt is reported by the first answer


def test_spool_keeps_order_over_lives_and_drops_a_torn_tail(tmp_path: Path) -> None:
    file = tmp_path / "spool"
    spool = Spool(file, 100)
    spool.append([b"one", b"two"])
    with file.open("ab") as stream:
        stream.write(b"\x09\x00\x00\x00torn")
    again = Spool(file, 100)
    again.append([b"three"])
    assert Spool(file, 100).read() == [b"one", b"two", b"three"]
    assert not again.full
    again.append([b"x" * 80])
    assert again.full
    again.clear()
    assert (again.empty, Spool(file, 100).read(), file.stat().st_mode & 0o777) == (True, [], 0o600)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def wait_for_events(url: str, count: int) -> list:
    async with asyncio.timeout(DEADLINE_S), redis.Redis.from_url(url) as client:
        entries: list = []
        last = "0"
        while len(entries) < count:
            for _, new in await client.xread({"usage": last}, block=1000) or ():
                entries += new
                last = new[-1][0]
    return [billing_pb2.UsageEvent.FromString(fields[b"event"]) for _, fields in entries]


def start(process: stores.StoreProcess, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as stream:
        return subprocess.Popen(
            process.command, env=dict(process.env), stdout=stream, stderr=stream
        )


class WatchedSpool(Spool):
    """Tells when something was appended."""

    def __init__(self, file: Path, byte_count_max: int) -> None:
        super().__init__(file, byte_count_max)
        self.appended = threading.Event()

    def append(self, records) -> None:
        super().append(records)
        self.appended.set()


async def test_redis_goes_and_comes_back(tmp_path: Path) -> None:
    """Events of the outage are spooled, and arrive before later ones, without a restart."""
    process = stores.prepare_redis(tmp_path / "redis")

    server = await asyncio.to_thread(start, process, tmp_path / "log")
    await process.ready()
    spool = WatchedSpool(tmp_path / "spool", 1 << 20)
    usage = UsageReporter(
        connect(process.url, name="test"),
        spool,
        redis_timeout_s=1.0,
        flush_interval_s=0.05,
        pending_event_count_max=100,
    )
    usage.start()
    counts = GeneratedCounts()
    meter = usage.open(LABEL, counts)
    try:
        counts.output = 3
        assert ranges(await wait_for_events(process.url, 1)) == [("out", 0, 3)]
        server.send_signal(process.stop_signal)
        await asyncio.to_thread(server.wait, DEADLINE_S)
        counts.output = 5
        assert await asyncio.to_thread(spool.appended.wait, DEADLINE_S)
        counts.output = 9
        server = await asyncio.to_thread(start, process, tmp_path / "log")
        await process.ready()
        events = ranges(await wait_for_events(process.url, 3))
        assert [e for e in events if e[1] >= 3] == [("out", 3, 5), ("out", 5, 9)]
        usage.close(meter)
        await usage.stop()
        assert spool.empty
    finally:
        server.send_signal(process.stop_signal)
        await asyncio.to_thread(server.wait, DEADLINE_S)


async def test_a_disk_that_refuses_keeps_events_and_stops_admission(tmp_path: Path) -> None:
    usage = UsageReporter(
        connect(f"redis://127.0.0.1:{free_port()}/0", name="test"),
        Spool(tmp_path / "missing-folder" / "spool", 1 << 20),
        redis_timeout_s=1.0,
        flush_interval_s=0.05,
        pending_event_count_max=1,
    )
    meter = usage.open(LABEL, GeneratedCounts(output=0))
    meter._counts.output = 2
    usage.close(meter)
    await usage._flush()
    assert usage.backlogged
    (tmp_path / "missing-folder").mkdir()
    await usage._flush()
    assert not usage.backlogged
    await usage.stop()


@pytest.mark.parametrize("count", [1, 1201])
async def test_many_events_are_sent_in_order(tmp_path: Path, redis_url: str, count: int) -> None:
    usage = UsageReporter(
        connect(redis_url, name="test"),
        Spool(tmp_path / "spool", 1 << 20),
        redis_timeout_s=1.0,
        flush_interval_s=1,
        pending_event_count_max=10_000,
    )
    for number in range(count):
        counts = GeneratedCounts(output=number)
        meter = usage.open(LABEL, counts)
        counts.output += 1
        usage.close(meter)
    await usage.stop()
    events = await wait_for_events(redis_url, count)
    assert [e.first_position for e in events] == list(range(count))


def test_every_event_carries_its_step() -> None:
    counts = GeneratedCounts(cached=2, prefilled=5, output=0)
    meter = Meter(MeterLabel("turn", 0, 0, "toy", "x", step=3), counts)
    counts.output = 4
    assert [(e.step, e.first_position, e.end_position) for e in meter.events(0.0)] == [
        (3, 0, 2),
        (3, 2, 5),
        (3, 0, 4),
    ]
