"""The work of a back end under a time limit, with its metrics.

The limit is for the work alone, not for the time that it waits for its turn: a long queue says
nothing of the model, and what fails because others are many is asked again and makes them more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from prometheus_client import Counter, Histogram

from safety_svc.backends.base import BackendError

T = TypeVar("T")

# The limit is counted in so many parts: a pause of the whole process takes up only one of them.
_PART_COUNT = 8

_log = structlog.get_logger()
_failures = Counter(
    "chatmesh_safety_backend_failures_total",
    "Looks and conversations without an answer, by back end and what failed.",
    ["backend", "cause"],
)
_seconds = Histogram(
    "chatmesh_safety_backend_seconds",
    "Time of the classifier at one batch of looks, or one conversation, in seconds.",
    ["backend", "what"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5),
)


class OverdueError(BackendError):
    """The work took longer than its limit; a thread may still be at it."""


class Watch:
    """Times the work of one back end.

    Args:
        backend: its name, for metrics and log.
        limit_s: seconds that one piece of work may take.
    """

    def __init__(self, backend: str, limit_s: float) -> None:
        self._backend, self._limit_s = backend, limit_s

    async def over(self, work: Awaitable[T], what: str, count: int = 1) -> T:
        """The result of `work`. A failure is logged once and counted `count` times.

        Args:
            work: begins now; it is cancelled when it is overdue.
            what: "look" or "conversation".
            count: how many looks or conversations it answers.

        Raises:
            BackendError: it failed.
            OverdueError: it is not ready within the limit.
        """
        task = asyncio.ensure_future(work)
        try:
            with _seconds.labels(self._backend, what).time():
                for _ in range(_PART_COUNT):
                    if not task.done():
                        await asyncio.wait({task}, timeout=self._limit_s / _PART_COUNT)
            if task.done():
                return task.result()
        except Exception as error:  # whatever a model raises, nothing was judged
            problem = str(error) if isinstance(error, BackendError) else type(error).__name__
            self._failed("error", what, count, problem)
            raise BackendError(f"{self._backend}: {problem}") from error
        finally:
            task.cancel()
        problem = f"no answer within {self._limit_s} s"
        self._failed("timeout", what, count, problem)
        raise OverdueError(f"{self._backend}: {problem}")

    def at_once(self, work: Callable[[], T], what: str) -> T:
        """The result of work that is short for certain, done here and now.

        Raises:
            BackendError: it failed.
        """
        try:
            with _seconds.labels(self._backend, what).time():
                return work()
        except Exception as error:  # whatever a model raises, nothing was judged
            self._failed("error", what, 1, type(error).__name__)
            raise BackendError(f"{self._backend}: {type(error).__name__}") from error

    def _failed(self, cause: str, what: str, count: int, problem: str) -> None:
        _failures.labels(self._backend, cause).inc(count)
        _log.error(
            "classifier_failed",
            backend=self._backend,
            cause=cause,
            what=what,
            count=count,
            problem=problem,
        )
