"""Where the production code looks at the world by itself: clock, ids, logs. Replaced for a run."""

import contextlib
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import structlog

from gateway.turn import plan, threads, turns
from tests.simulation.loop import VirtualLoop

BEGIN_UNIX_S = 1_795_000_000
# Turns that ended while the journal was away are let go sooner, so that runs are short.
UNWRITTEN_S = 5.0


@contextlib.contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute for a while."""
    before = place.__dict__[name]
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextlib.contextmanager
def simulated(loop: VirtualLoop, seed: int, note: Callable[..., None] | None) -> Iterator[None]:
    """The seams, replaced."""
    rng = random.Random(f"ids {seed}")

    def ulid() -> str:
        return f"{rng.getrandbits(64):016X}"

    clock = SimpleNamespace(time_ns=lambda: BEGIN_UNIX_S * 10**9 + int(loop.now * 1e9))
    with contextlib.ExitStack() as stack:
        for module in (turns, threads):
            stack.enter_context(replaced(module, "ULID", ulid))
        stack.enter_context(replaced(plan, "time", clock))
        stack.enter_context(replaced(turns, "UNWRITTEN_S_MAX", UNWRITTEN_S))
        stack.enter_context(_logged(note))
        yield


@contextlib.contextmanager
def _logged(note: Callable[..., None] | None) -> Iterator[None]:
    """Logs go into the trace, or nowhere."""

    def hear(logger: Any, method: str, event: dict[str, Any]) -> Any:
        if note:
            note("log", str(dict(sorted(event.items()))))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[hear], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
