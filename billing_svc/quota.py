"""Holds as values: what to reserve, and what becomes of a turn when its gateway speaks.

    available = monthly budget - spent in the month (the ledger) - reserved

Reserving is one conditional update in the database (`billing.reserve`), since only there parallel
calls meet; all that needs no meeting is decided here.
"""

import datetime as dt
from dataclasses import replace

from billing_svc.prices import Price
from billing_svc.turn import Counts, State, Turn


def worst_case_nanousd(price: Price, prompt_count: int, output_count_max: int) -> int:
    """Most that a turn can cost: no prompt token cached, every answer token generated.

    The n answers of a turn share one prompt, which is paid once.
    """
    return price.input_nanousd * prompt_count + price.output_nanousd * output_count_max


def cost_nanousd(price: Price, counts: Counts) -> int:
    """What a turn costs by the gateway's count; withheld tokens were generated and are paid."""
    computed = counts.prompt - counts.cached
    return (
        price.input_nanousd * computed
        + price.cached_input_nanousd * counts.cached
        + price.output_nanousd * counts.output
    )


def settled(turn: Turn, counts: Counts, now: dt.datetime) -> Turn:
    """The turn after Settle; the first settlement counts, a repeated one changes nothing."""
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    amount = cost_nanousd(turn.price, counts)
    after = replace(
        turn, state=State.SETTLED, amount_nanousd=amount, counts=counts, settle_time=now
    )
    return after.closed_if_complete()


def released(turn: Turn) -> Turn:
    """The turn after Release; what was settled stays settled."""
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    return replace(turn, state=State.RELEASED)


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
