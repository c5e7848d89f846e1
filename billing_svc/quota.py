"""Holds as values: what to reserve, and what becomes of a turn when its gateway speaks.

    money left = monthly budget - spent in the month (the ledger) - reserved
    tokens left = tokens a minute - what was reserved in this minute and not given back
    turns left = most at once - open turns

Reserving is one function in the database (`billing.reserve`), since only there parallel calls meet;
all that needs no meeting is decided here.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from billing_svc.prices import Price
from billing_svc.turn import SettledCounts, State, Turn


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


def settled(
    turn: Turn, counts: Sequence[SettledCounts], now: dt.datetime, *, cut_short: bool = False
) -> Turn:
    """The turn after Settle; the first settlement counts, a repeated one changes nothing.

    Args:
        turn: the turn.
        counts: of each step by its number. A step that only nodes know of is settled with zeros:
            what they generated there was in flight.
        now: when.
        cut_short: a node may yet report more than these.
    """
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    count = max(len(turn.steps), len(counts))
    known = [*counts, *(SettledCounts(),) * (count - len(counts))]
    steps = tuple(replace(turn.step(n), settled=known[n]) for n in range(count))
    amount = sum(cost_nanousd(turn.price, step) for step in known)
    after = replace(
        turn,
        state=State.SETTLED,
        amount_nanousd=amount,
        steps=steps,
        settle_time=now,
        is_cut_short=cut_short,
    )
    if cut_short:
        return after
    used = sum(step.prompt + step.output for step in known)
    return _unused_back(after, used).closed_if_complete()


def released(turn: Turn, now: dt.datetime) -> Turn:
    """The turn after Release, its hold's time over; what was settled stays settled."""
    if turn.state in (State.SETTLED, State.CLOSED):
        return turn
    after = replace(turn, state=State.RELEASED, expire_time=min(turn.expire_time, now))
    return _unused_back(after, 0)


def expired(turn: Turn, now: dt.datetime) -> Turn:
    """The turn when its hold's time is over."""
    if turn.state is State.OPEN and turn.expire_time <= now:
        return replace(turn, state=State.EXPIRED)
    return turn


class Raise(NamedTuple):
    """What Extend asks for in addition to what a turn holds.

    Attributes:
        fixed_nanousd: money that is needed whatever is granted.
        prompt_count: further prompt tokens.
        output_count_min: further output tokens, at least.
        output_count_max: and at most.
        is_reopened: the hold had expired.
    """

    fixed_nanousd: int
    prompt_count: int
    output_count_min: int
    output_count_max: int
    is_reopened: bool

    @property
    def is_none(self) -> bool:
        """Nothing is to be reserved."""
        return not (self.is_reopened or self.prompt_count or self.output_count_max)


class Counts(NamedTuple):
    """Tokens of all steps of a turn: of the prompts, and of the answers at least and at most."""

    prompt: int
    output_min: int
    output_max: int


def raise_of(turn: Turn, counts: Counts) -> Raise:
    """What a hold lacks of the counts; counts below those held, and ended turns, lack nothing."""
    if turn.state not in (State.OPEN, State.EXPIRED):
        return Raise(0, 0, 0, 0, is_reopened=False)
    prompt = max(0, counts.prompt - turn.held_prompt_count)
    is_reopened = turn.state is State.EXPIRED
    kept = max(0, turn.amount_nanousd - turn.ledger_nanousd) if is_reopened else 0
    return Raise(
        kept + turn.price.input_nanousd * prompt,
        prompt,
        max(0, counts.output_min - turn.held_output_count),
        max(0, counts.output_max - turn.held_output_count),
        is_reopened,
    )


def extended(
    turn: Turn, asked: Raise, granted_count: int, minute: int, expire_time: dt.datetime
) -> Turn:
    """The turn after Extend; a hold that had expired is open again, an ended turn stays as it is.

    Args:
        turn: before.
        asked: what was reserved for it.
        granted_count: output tokens of it.
        minute: since the epoch, of which they are.
        expire_time: the new one; a later one stays.
    """
    if turn.state not in (State.OPEN, State.EXPIRED):
        return turn
    price, tokens = turn.price, asked.prompt_count + granted_count
    # Of an earlier minute nothing comes back: only the last one's are remembered.
    before = turn.minute_token_count if minute <= turn.minute else 0
    return replace(
        turn,
        state=State.OPEN,
        amount_nanousd=turn.amount_nanousd
        + price.input_nanousd * asked.prompt_count
        + price.output_nanousd * granted_count,
        expire_time=max(expire_time, turn.expire_time),
        held_prompt_count=turn.held_prompt_count + asked.prompt_count,
        held_output_count=turn.held_output_count + granted_count,
        minute=max(minute, turn.minute) if tokens else turn.minute,
        minute_token_count=before + tokens if tokens else turn.minute_token_count,
    )


def _unused_back(turn: Turn, used_count: int) -> Turn:
    """The turn without what it reserved of its minute and did not use."""
    unused = max(0, turn.held_prompt_count + turn.held_output_count - used_count)
    kept = max(0, turn.minute_token_count - unused)
    return turn if kept == turn.minute_token_count else replace(turn, minute_token_count=kept)
