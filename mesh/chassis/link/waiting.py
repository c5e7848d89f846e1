"""Tasks that wait for something to happen to a call.

A call that ends wakes those that wait for it and they look what became of it; it never cancels
them. grpc.aio raises CancelledError in a task whose call another task ended, which that task cannot
tell from its own end.
"""

import asyncio


class Waiting:
    """Wakes its waiters; each looks itself whether what it waits for has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Handed on, not asked for: in Python 3.11 asking is a system call.
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Returns at the next `wake`.

        Raises:
            asyncio.CancelledError: the waiting task itself was cancelled.
        """
        # One for each waiter: who is cancelled cancels his own.
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def wake(self) -> None:
        """Wakes all that wait now."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
