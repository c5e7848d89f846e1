"""Counts turns as they pass."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway import metrics
from gateway.turn.domain import Delta, Event
from mesh.chassis.errors import MeshError


async def observed(
    events: AsyncGenerator[Event, None],
) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of a turn, each with its number from 0."""
    begin, outcome, waiting, sequence = time.perf_counter(), "cancelled", True, 0
    try:
        async with aclosing(events):
            async for event in events:
                if waiting and isinstance(event, Delta):
                    waiting = False
                    metrics.FIRST_TEXT_SECONDS.observe(time.perf_counter() - begin)
                yield sequence, event
                sequence += 1
        outcome = "finished"
    except MeshError as error:
        outcome = error.reason.lower() or "internal_error"
        raise
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception:
        outcome = "internal_error"
        raise
    finally:
        metrics.TURNS.labels(outcome).inc()
