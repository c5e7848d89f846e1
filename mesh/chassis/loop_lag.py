"""How late the event loop is: what every call, timer and timeout of this process waits for."""

import asyncio

from prometheus_client import Histogram

INTERVAL_S = 0.1

_seconds = Histogram(
    "chatmesh_loop_lag_seconds",
    "How much later than asked the event loop woke a task, ten times a second",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)


async def watch_loop_lag() -> None:
    """Measures for ever; ends by cancellation."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        _seconds.observe(max(0.0, loop.time() - due))
