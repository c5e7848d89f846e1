"""Holds as values: what to reserve, and what becomes of a turn when its gateway speaks.

    available = monthly budget - spent in the month (the ledger) - reserved

Reserving is one conditional update in the database (`billing.reserve`), since only there parallel
calls meet; all that needs no meeting is decided here.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from billing_svc.prices import Price
from billing_svc.turn import SettledCounts, State, Turn


def worst_case_nanousd(price: Price, prompt_count: int, output_count_max: int) -> int:
    """Most that a turn can cost: no prompt token cached, every answer token generated.

    The n answers of a step share one prompt, which is paid once; each step has its own, and the
    counts are those of all steps together.
    """
    return price.input_nanousd * prompt_count + price.output_nanousd * output_count_max


def cost_nanousd(price: Price, counts: SettledCounts) -> int:
    """What a step costs by the gateway's count.

    Withheld and unsent tokens were generated and are paid.
    """
    computed = counts.prompt - counts.cached
    return (
        price.input_nanousd * computed
        + price.cached_input_nanousd * counts.cached
        + price.output_nanousd * counts.output
    )


def settled(turn: Turn, counts: Sequence[SettledCounts], now: dt.datetime) -> Turn:
    """The turn after Settle; the first settlement counts, a repeated one changes nothing.

    Args:
        turn: the turn.
        counts: of each step by its number. A step that only nodes know of is settled with zeros:
            what they generated there was in flight.
        now: when.
    """
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    count = max(len(turn.steps), len(counts))
    known = [*counts, *(SettledCounts(),) * (count - len(counts))]
    steps = tuple(replace(turn.step(n), settled=known[n]) for n in range(count))
    amount = sum(cost_nanousd(turn.price, step) for step in known)
    after = replace(turn, state=State.SETTLED, amount_nanousd=amount, steps=steps, settle_time=now)
    return after.closed_if_complete()


def released(turn: Turn, now: dt.datetime) -> Turn:
    """The turn after Release, its hold's time over; what was settled stays settled."""
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    return replace(turn, state=State.RELEASED, expire_time=min(turn.expire_time, now))


def expired(turn: Turn, now: dt.datetime) -> Turn:
    """The turn when its hold's time is over."""
    if turn.state is State.OPEN and turn.expire_time <= now:
        return replace(turn, state=State.EXPIRED)
    return turn


def extended(
    turn: Turn, prompt_count: int, output_count_max: int, expire_time: dt.datetime
) -> Turn:
    """The turn after Extend; a hold that had expired is open again, an ended turn stays as it is.

    The caller reserves the difference of `reserved_nanousd`, or refuses.
    """
    if turn.state not in (State.OPEN, State.EXPIRED):
        return turn
    wanted = worst_case_nanousd(turn.price, prompt_count, output_count_max)
    amount = max(turn.amount_nanousd, wanted)
    latest = max(expire_time, turn.expire_time)
    return replace(turn, state=State.OPEN, amount_nanousd=amount, expire_time=latest)
