"""A turn as the meter sees it: what is held for it, what it used, what the ledger has of it.

    open ──settle──> settled ──ledger has it, or reconciled──> closed
      ├──release──> released          (settle still works: something was generated after all)
      └──time──> expired              (settle, and a repeated hold, still work)

What a turn reserves of its account's budget follows from its state alone: see `reserved`.
"""

import datetime as dt
import enum
from dataclasses import dataclass, field, replace

from billing_svc import ranges
from billing_svc.prices import Price
from billing_svc.ranges import Ranges


class State(enum.IntEnum):
    """Where a turn is; the numbers are in the database."""

    OPEN = 1
    SETTLED = 2
    CLOSED = 3
    RELEASED = 4
    EXPIRED = 5


@dataclass(frozen=True, slots=True)
class Counts:
    """What the gateway counted, in tokens. Output includes the withheld ones."""

    prompt: int
    cached: int
    output: int
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. Money in nano-USD.

    Attributes:
        price: as promised by the hold.
        amount_nanousd: the worst case while it is open; what was settled afterwards.
        ledger_nanousd: sum of its ledger entries.
        covered_input: prompt positions the ledger has.
        covered_output: for each answer, the output positions that nodes reported.
        output_credit: output tokens billed from the gateway's count that no node reported yet.
        ledger_period: the last month with an entry of it.
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
    counts: Counts | None = None
    covered_input: Ranges = ()
    covered_output: tuple[Ranges, ...] = field(default=())
    output_credit: int = 0
    ledger_period: dt.date | None = None

    @property
    def reserved_nanousd(self) -> int:
        """What it keeps of the budget: its amount, less what the ledger has charged already."""
        if self.state in (State.OPEN, State.SETTLED):
            return max(0, self.amount_nanousd - self.ledger_nanousd)
        return 0

    @property
    def billed_output_count(self) -> int:
        """Output tokens that the ledger has, whoever counted them."""
        return sum(map(ranges.size, self.covered_output)) + self.output_credit

    def closed_if_complete(self) -> "Turn":
        """Closed when it is settled and the ledger has all that the gateway counted."""
        if self.state is not State.SETTLED or self.counts is None:
            return self
        if ranges.missing(self.covered_input, 0, self.counts.prompt):
            return self
        if self.billed_output_count < self.counts.output:
            return self
        return replace(self, state=State.CLOSED)
