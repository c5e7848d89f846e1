"""The measure of a late event loop."""

import asyncio
import contextlib
import time

from prometheus_client import REGISTRY

from mesh.chassis.loop_lag import INTERVAL_S, watch_loop_lag

NAME = "chatmesh_loop_lag_seconds"


def seen() -> tuple[float, float]:
    """(how often, how much in all)"""
    return tuple(REGISTRY.get_sample_value(f"{NAME}_{what}") or 0.0 for what in ("count", "sum"))


async def test_a_loop_that_is_held_up_is_seen_to_be_late():
    count, late_s = seen()
    watching = asyncio.create_task(watch_loop_lag())
    await asyncio.sleep(INTERVAL_S / 2)
    time.sleep(3 * INTERVAL_S)  # noqa: ASYNC251 - it is what is tested
    await asyncio.sleep(2 * INTERVAL_S)  # it was held up at once, and is measured at once
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert seen()[1] - late_s > INTERVAL_S
