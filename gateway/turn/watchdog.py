"""Notices what should have ended: nothing is due from elsewhere, and yet nothing moves. Pure."""


class Watchdog:
    """Watches one thing that makes progress in numbers.

    Args:
        patience_s: how long nothing may move.
        now: on any clock that only goes forward, in seconds.
    """

    def __init__(self, patience_s: float, now: float) -> None:
        self._patience_s = patience_s
        self._progress: int | None = None
        self._moved_at = now

    def is_stuck(self, now: float, progress: int, *, is_due: bool) -> bool:
        """Whether it has been due, without any progress, for longer than the patience.

        Args:
            now: on the same clock.
            progress: any other number than at the last look is progress.
            is_due: nobody else is waited for.
        """
        if not is_due or progress != self._progress:
            self._progress, self._moved_at = progress, now
        return now - self._moved_at > self._patience_s
