"""Until when a turn's hold stands for certain, and when it is to be renewed. Pure.

Billing gives back what an expired hold reserved, and others take it: a turn that cannot renew its
hold ends before that.
"""

# Of a hold's lifetime: when it is renewed, and when its turn ends unless it was. The rest is for a
# gateway that adopts the turn, and does not know when it was renewed.
RENEWED_AT, OVER_AT, ADOPTED_FOR = 0.5, 0.75, 0.2
RETRY_S = 1.0


class HoldClock:
    """The hold of one turn; times are of the loop's clock, in seconds."""

    def __init__(self, lifetime_s: float, now: float, *, is_adopted: bool) -> None:
        self._lifetime_s = lifetime_s
        self._due_at = now if is_adopted else now + RENEWED_AT * lifetime_s
        self._over_at = now + (ADOPTED_FOR if is_adopted else OVER_AT) * lifetime_s
        self._is_asked = False

    def is_due(self, now: float) -> bool:
        """Whether it is to be renewed now."""
        return now >= self._due_at and not self._is_asked

    def is_over(self, now: float) -> bool:
        """Whether it may not stand any more."""
        return now >= self._over_at

    def asked(self) -> None:
        """It is being renewed."""
        self._is_asked = True

    def renewed(self, asked_at: float) -> None:
        """It was, by a request that was sent then."""
        self._is_asked = False
        self._due_at = asked_at + RENEWED_AT * self._lifetime_s
        self._over_at = asked_at + OVER_AT * self._lifetime_s

    def refused(self, now: float) -> None:
        """It could not be; perhaps it can soon."""
        self._is_asked, self._due_at = False, now + RETRY_S
