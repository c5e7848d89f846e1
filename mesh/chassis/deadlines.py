"""Deadlines are arithmetic, done once.

A server knows when its caller stops waiting; what it calls in turn gets what is left, less a slice
that lets it tell its caller who was slow.
"""

import contextvars
import time

import grpc

from mesh.chassis.errors import MeshError

# Below this a call is not worth starting: a hop costs about 1 ms.
REMAINING_S_MIN = 0.003
SLICE_FRACTION = 0.05
SLICE_S_MAX = 0.05

# Monotonic time at which the call being served must be answered; None outside calls.
_answer_by: contextvars.ContextVar[float | None] = contextvars.ContextVar("answer_by", default=None)


def enter(remaining_s: float | None) -> None:
    """Notes, for this task and those it starts, how long the caller will wait."""
    _answer_by.set(None if remaining_s is None else time.monotonic() + remaining_s)


def remaining_s() -> float | None:
    """Seconds until the call being served must be answered; None when nothing bounds it."""
    answer_by = _answer_by.get()
    return None if answer_by is None else answer_by - time.monotonic()


def timeout_for(method: str, wanted_s: float | None, default_s: float | None) -> float | None:
    """Timeout of an outgoing call in seconds.

    The tightest of what the caller wants (or else the topology's deadline) and of what is left of
    the call being served, less the slice.

    Raises:
        MeshError: DEADLINE_EXCEEDED (DEADLINE_TOO_SHORT) when too little is left to try.
    """
    timeout_s = default_s if wanted_s is None else wanted_s
    left_s = remaining_s()
    if left_s is not None:
        left_s -= min(SLICE_S_MAX, left_s * SLICE_FRACTION)
        timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
    if timeout_s is not None and timeout_s < REMAINING_S_MIN:
        raise MeshError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "DEADLINE_TOO_SHORT",
            f"No time is left to call {method}; allow the request more time.",
            metadata={"method": method},
        )
    return timeout_s
