"""When a newcomer's first token can be expected, from measured rates. Pure.

Built to err on the early side: a request is refused only when even a lucky node would be too late.
"""

SMOOTHING = 0.1  # weight of the newest sample in a moving average


class Rates:
    """What the steps and requests of this node took; nothing is known at first.

    Attributes:
        tokens_per_s: tokens that full steps compute in a second; 0: not known.
        service_s: seconds from admission to end, of an average request; 0: not known.
        computed_share: share of a prompt that the caches do not have, (0, 1].
    """

    def __init__(self, step_token_count_max: int) -> None:
        self._full = step_token_count_max // 2
        self.tokens_per_s = 0.0
        self.service_s = 0.0
        self.computed_share = 1.0

    def step(self, token_count: int, duration_s: float) -> None:
        """A step computed so many tokens. Small steps are slower a token: they lower nothing."""
        if duration_s <= 0:
            return
        rate = token_count / duration_s
        if token_count >= self._full and self.tokens_per_s:
            self.tokens_per_s += SMOOTHING * (rate - self.tokens_per_s)
        else:
            self.tokens_per_s = max(self.tokens_per_s, rate)

    def admitted(self, prompt_count: int, cached_count: int) -> None:
        """A prompt began to run, so many of its tokens cached."""
        share = 1 - cached_count / prompt_count
        self.computed_share += SMOOTHING * (share - self.computed_share)

    def ended(self, service_s: float) -> None:
        """A request ended so long after its admission."""
        self.service_s += (SMOOTHING if self.service_s else 1.0) * (service_s - self.service_s)

    def first_token_s(
        self, token_count: int, *, ahead_token_count: int, ahead_count: int, running_count: int
    ) -> float:
        """Seconds until a newcomer's first token; 0 when nothing is known.

        Args:
            token_count: its own tokens.
            ahead_token_count: tokens of those that go before it and did not begin.
            ahead_count: how many must end before it can begin.
            running_count: how many run.
        """
        if not self.tokens_per_s:
            return 0.0
        token_s = self.computed_share / self.tokens_per_s
        turn_s = ahead_count * self.service_s / max(running_count, 1)
        return max(turn_s, ahead_token_count * token_s) + token_count * token_s
