"""A turn as the meter sees it: what is held for it, what it used, what the ledger has of it.

    open ──settle──> settled ──ledger has it, or reconciled──> closed
      ├──release──> released          (settle still works: something was generated after all)
      └──time──> expired              (settle, and a repeated hold, still work)

A turn may call a model more than once; each call is a step with a prompt and answers of its own.
What a turn reserves of its account's budget follows from its state alone: see `reserved_nanousd`.
"""

import datetime as dt
import enum
from dataclasses import dataclass, replace

from billing_svc import ranges
from billing_svc.prices import Price
from billing_svc.ranges import Ranges

STEP_COUNT_MAX = 128


class State(enum.IntEnum):
    """Where a turn is; the numbers are in the database."""

    OPEN = 1
    SETTLED = 2
    CLOSED = 3
    RELEASED = 4
    EXPIRED = 5


@dataclass(frozen=True, slots=True)
class SettledCounts:
    """What the gateway counted of one step, in tokens.

    Attributes:
        output: generated; withheld and unsent ones included.
        withheld: by safety.
        unsent: neither released to a reader nor withheld.
    """

    prompt: int = 0
    cached: int = 0
    output: int = 0
    withheld: int = 0
    unsent: int = 0

    @property
    def released(self) -> int:
        """Output tokens that a reader got."""
        return self.output - self.withheld - self.unsent


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of a turn.

    Attributes:
        covered_input: prompt positions the ledger has.
        covered_output: for each answer, the output positions that nodes reported.
        output_credit: output tokens billed from the gateway's count that no node reported yet.
        settled: what the gateway counted; None: the turn is not settled.
    """

    covered_input: Ranges = ()
    covered_output: tuple[Ranges, ...] = ()
    output_credit: int = 0
    settled: SettledCounts | None = None

    @property
    def billed_input_count(self) -> int:
        """Prompt tokens that the ledger has."""
        return ranges.size(self.covered_input)

    @property
    def reported_output_count(self) -> int:
        """Output tokens that nodes reported."""
        return sum(map(ranges.size, self.covered_output))

    @property
    def billed_output_count(self) -> int:
        """Output tokens that the ledger has, whoever counted them."""
        return self.reported_output_count + self.output_credit

    @property
    def is_complete(self) -> bool:
        """The ledger has all that the gateway counted."""
        if self.settled is None or ranges.missing(self.covered_input, 0, self.settled.prompt):
            return False
        return self.billed_output_count >= self.settled.output


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. Money in nano-USD.

    Attributes:
        price: as promised by the hold.
        amount_nanousd: the worst case while it is open; what was settled afterwards.
        ledger_nanousd: sum of its ledger entries.
        settle_time: when it was settled; None: it is not.
        steps: by number, at least step 0.
        ledger_period: the last month with an entry of it.
        repair_time: when the operator last corrected it; None: never.
        create_time: when its first hold was made; None: not known here.
        key_id: the key that was used; empty: none.
        other_payers: who pays beside the account, as it was at the hold: its key, when that has
            limits, and its organisation.
        held_prompt_count: prompt tokens that are held, of all steps.
        held_output_count: output tokens that are held, and may be generated.
        minute: the minute since the epoch of whose tokens it reserved last.
        minute_token_count: how many; what of them is not used comes back when it is settled.
        is_cut_short: it was settled, and its node may yet report more than the gateway saw: until
            it is reconciled it reserves all that it held.
    """

    turn_id: str
    account_id: str
    model: str
    price: Price
    amount_nanousd: int
    expire_time: dt.datetime
    state: State = State.OPEN
    ledger_nanousd: int = 0
    settle_time: dt.datetime | None = None
    steps: tuple[Step, ...] = (Step(),)
    ledger_period: dt.date | None = None
    repair_time: dt.datetime | None = None
    create_time: dt.datetime | None = None
    key_id: str = ""
    other_payers: tuple[str, ...] = ()
    held_prompt_count: int = 0
    held_output_count: int = 0
    minute: int = 0
    minute_token_count: int = 0
    is_cut_short: bool = False

    @property
    def payers(self) -> tuple[str, ...]:
        """Everyone whose limits it counts against."""
        return (self.account_id, *self.other_payers)

    @property
    def reserved_nanousd(self) -> int:
        """What it keeps of the budget: its amount, less what the ledger has charged already."""
        if self.state not in (State.OPEN, State.SETTLED):
            return 0
        amount = self.amount_nanousd
        if self.is_cut_short:
            price = self.price
            most = price.input_nanousd * self.held_prompt_count
            amount = max(amount, most + price.output_nanousd * self.held_output_count)
        return max(0, amount - self.ledger_nanousd)

    def step(self, number: int) -> Step:
        """The step; an empty one when nothing is known of it yet."""
        if number < len(self.steps):
            return self.steps[number]
        return Step(settled=None if self.settle_time is None else SettledCounts())

    def with_step(self, number: int, step: Step) -> "Turn":
        """The turn with this step instead; steps up to it come into being."""
        steps = [self.step(n) for n in range(max(len(self.steps), number + 1))]
        steps[number] = step
        return replace(self, steps=tuple(steps))

    def closed_if_complete(self) -> "Turn":
        """Closed when it is settled and the ledger has all that the gateway counted."""
        if self.state is not State.SETTLED or self.is_cut_short:
            return self
        if not all(step.is_complete for step in self.steps):
            return self
        return replace(self, state=State.CLOSED)
