"""What a copy takes of its disk is looked at before it starts, and measured."""

import asyncio
import contextlib
import os

import pytest
from prometheus_client import REGISTRY

from mesh import disk
from tests.support.disk import full, root_only, small_disk


def fill(folder):
    (folder / "log").mkdir(parents=True)
    (folder / "log" / "a.log").write_bytes(b"x" * 100_000)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_bytes(b"x" * 300_000)
    (folder / "deep" / "gone").symlink_to("nowhere")


def test_every_part_is_measured(tmp_path):
    fill(tmp_path)
    parts = disk.measure(tmp_path)
    assert 100_000 <= parts["log"] < 130_000
    assert 300_000 <= parts["deep"] < 340_000


def test_a_budget_that_is_exceeded_is_told_with_what_takes_most(tmp_path):
    fill(tmp_path)
    assert disk.check(tmp_path, 1 << 20) == ""
    warning = disk.check(tmp_path, 1000)
    assert warning.index("deep") < warning.index("log")
    assert "CHATMESH_DISK_MIB_MAX" in warning


def test_what_nobody_needs_goes_and_the_rest_stays(tmp_path):
    now_s, day_s = 1_800_000_000.0, 86_400.0
    kept = {
        "log/gateway-1.log": 29 * day_s,
        "nodes/inference-9/usage.spool": 400 * day_s,
        "nodes/edge-1/envoy.json": 400 * day_s,
        "control/ca.key": 400 * day_s,
        "control/my.new": 400 * day_s,
    }
    gone = {
        "log/gateway-9.log": 31 * day_s,
        "log/gateway-9.log.1": 60 * day_s,
        "control/registry.json.0123456789abcdef.new": 0.0,
        "nodes/edge-1/envoy.json.0123456789abcdef.new": 0.0,
        "nodes/edge-1/sds/identity.json.0123456789abcdef.new": 0.0,
    }
    for name, age_s in (kept | gone).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now_s - age_s, now_s - age_s))
    removed = disk.sweep(tmp_path, now_s)
    assert {str(path.relative_to(tmp_path)) for path in removed} == gone.keys()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == kept.keys()


async def test_what_is_measured_is_a_metric(tmp_path):
    fill(tmp_path)
    watching = asyncio.create_task(disk.watch(tmp_path, 5000))

    def value(name, **labels):
        return REGISTRY.get_sample_value(name, labels)

    async with asyncio.timeout(20):
        while not value("chatmesh_home_bytes", part="deep"):  # noqa: ASYNC110 - a metric
            await asyncio.sleep(0.01)
    assert value("chatmesh_home_bytes", part="deep") >= 300_000
    assert value("chatmesh_home_free_bytes") > 0
    assert value("chatmesh_home_budget_bytes") == 5000
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


@root_only
def test_nothing_starts_on_a_disk_that_is_full(tmp_path):
    with (
        small_disk(tmp_path / "disk", "300m") as folder,
        full(folder),
        pytest.raises(disk.DiskError, match=r"only 0 MiB are free .* make room"),
    ):
        disk.check(folder, 1 << 30)
