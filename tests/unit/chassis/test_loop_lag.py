"""The measure of a late event loop."""

import asyncio
import contextlib
import time

from prometheus_client import REGISTRY

from mesh.chassis.loop_lag import INTERVAL_S, watch_loop_lag

NAME = "chatmesh_loop_lag_seconds"


def late_in_all_s() -> float:
    return REGISTRY.get_sample_value(f"{NAME}_sum") or 0.0


async def test_a_loop_that_is_held_up_is_seen_to_be_late():
    before_s = late_in_all_s()
    watching = asyncio.create_task(watch_loop_lag())
    await asyncio.sleep(INTERVAL_S / 2)
    time.sleep(3 * INTERVAL_S)  # noqa: ASYNC251 - it is what is tested
    await asyncio.sleep(2 * INTERVAL_S)  # it was held up at once, and is measured at once
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert late_in_all_s() - before_s > INTERVAL_S
