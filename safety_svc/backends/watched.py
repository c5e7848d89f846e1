"""Every back end under a time limit, with its metrics."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog
from prometheus_client import Counter, Histogram

from safety_svc.backends.base import Backend, BackendError
from safety_svc.detectors.base import Audience, Finding, PromptFinding, Turn

T = TypeVar("T")

_log = structlog.get_logger()
_failures = Counter(
    "chatmesh_safety_backend_failures_total",
    "Calls of the classifier without an answer, by back end and what failed.",
    ["backend", "cause"],
)
_seconds = Histogram(
    "chatmesh_safety_backend_seconds",
    "Time of a call of the classifier, waiting included, in seconds.",
    ["backend", "what"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5),
)


class Watched:
    """`backend` with a time limit for each call, in seconds."""

    def __init__(self, backend: Backend, timeout_s: float) -> None:
        self.name, self.digest = backend.name, backend.digest
        self.stride_min = backend.stride_min
        self._backend, self._timeout_s = backend, timeout_s

    async def inspect(self, text: str, audience: Audience) -> Sequence[Finding]:
        """See `Backend.inspect`."""
        return await self._watch("look", self._backend.inspect(text, audience))

    async def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """See `Backend.conversation`."""
        return await self._watch("conversation", self._backend.conversation(turns))

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._backend.close()

    async def _watch(self, what: str, call: Awaitable[T]) -> T:
        try:
            with _seconds.labels(self.name, what).time():
                async with asyncio.timeout(self._timeout_s):
                    return await call
        except TimeoutError:
            self._failed("timeout", f"no answer within {self._timeout_s} s")
            raise BackendError(f"{self.name} gave no answer in {self._timeout_s} s") from None
        except BackendError as error:
            self._failed("error", str(error))
            raise

    def _failed(self, cause: str, problem: str) -> None:
        _failures.labels(self.name, cause).inc()
        _log.error("classifier_failed", backend=self.name, cause=cause, problem=problem)
