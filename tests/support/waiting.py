"""Waiting for another process: the one place where a test polls."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.05


def eventually(value: Callable[[], T], timeout_s: float) -> T:
    """The first true value, or the last one when the time is up: the caller asserts on it."""
    end = time.monotonic() + timeout_s
    while True:
        found = value()
        if found or time.monotonic() > end:
            return found
        time.sleep(INTERVAL_S)
