"""Work that must be done although the request that caused it is over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from mesh.chassis import deadlines

log = structlog.get_logger()


class Background:
    """Tasks that outlive their request; at most as many as there were turns in `limit_s`."""

    def __init__(self, limit_s: float = 30.0) -> None:
        """Each task is cancelled after `limit_s` seconds."""
        self._limit_s = limit_s
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """Runs `work` to its end, whatever becomes of the caller; its failure is logged."""
        task = asyncio.create_task(self._run(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began
        return task

    async def _run(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        # The deadline of the request is not that of its bookkeeping.
        deadlines.enter(None)
        try:
            async with asyncio.timeout(self._limit_s):
                await work
        except Exception as error:
            log.error("background_failed", work=name, error=repr(error)[:300])

    async def finish(self) -> None:
        """Waits until all that was started has ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def wait_at_most(task: "asyncio.Task[Any]", seconds: float) -> None:
    """Waits for a task without ever cancelling it."""
    await asyncio.wait([task], timeout=seconds)
