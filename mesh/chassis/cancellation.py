"""Whose cancellation is it?

grpc.aio raises CancelledError out of a read or write whose *call* was ended on this side, whoever
ended it. In a task that nobody cancelled that is a broken call, and must not end the task: what
waits for the task would wait for ever.
"""

import asyncio


def is_cancelled() -> bool:
    """Whether somebody cancelled the running task; ask it where a CancelledError was caught."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
