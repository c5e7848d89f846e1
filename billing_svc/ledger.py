"""What is charged: usage events in, ledger entries out, each token of a turn once.

A token is (turn, step, answer, input or output, position). Nodes may report it twice (a repeated
event) or differently (two attempts, cached here and computed there): the first report is charged,
at the price its hold promised. The n answers of a step share one prompt, whichever of them reports
it; each step has its own.

Where the gateway settled more than the nodes reported, `reconciled` charges the rest. Those output
tokens have a number but no position: they become a credit, and a node's late report of new
positions uses the credit up before anything more is charged.
"""

import datetime as dt
import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from billing_svc import ranges
from billing_svc.ranges import Ranges
from billing_svc.turn import State, Step, Turn

POSITION_MAX = 2**31 - 1  # the ledger's column is an int4
CHOICE_COUNT_MAX = 16


class Kind(enum.IntEnum):
    """What is counted; the numbers are those of billing.v1.UsageKind."""

    INPUT = 1
    CACHED_INPUT = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class Usage:
    """One report of a node: positions [first, end) of one answer of one step."""

    turn_id: str
    choice_index: int
    kind: Kind
    first: int
    end: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger; a credit takes its tokens back and costs at most 0."""

    turn_id: str
    account_id: str
    choice_index: int
    kind: Kind
    first: int
    end: int
    model: str
    cost_nanousd: int
    price_version: str
    source: str
    step: int = 0
    is_credit: bool = False
    key_id: str = ""

    @property
    def token_count(self) -> int:
        """How many tokens it charges; negative: takes back."""
        return self.first - self.end if self.is_credit else self.end - self.first


@dataclass(frozen=True, slots=True)
class Billed:
    """A turn before and after, and the entries in between."""

    before: Turn
    turn: Turn
    entries: tuple[Entry, ...]
    starts_period: bool  # the turn's first entry in this month


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Positions [first, end) that an entry is to be about."""

    step: int
    choice_index: int
    kind: Kind
    first: int
    end: int


def billed(turn: Turn, reports: Iterable[Usage], month: dt.date) -> Billed:
    """Charges what is new in `reports`, in their order.

    Args:
        turn: the turn they belong to.
        reports: of this turn only.
        month: first day of the month (UTC) in which the entries are written.
    """
    after, parts = turn, []
    for report in reports:
        step, new = _covered(after.step(report.step), report)
        after = after.with_step(report.step, step)
        # The prompt is the step's: its entries stand under the first answer.
        choice = report.choice_index if report.kind is Kind.OUTPUT else 0
        parts += [Part(report.step, choice, report.kind, *part) for part in new]
    entries = [entry(turn, part, source="node") for part in _merged(parts)]
    return charged(turn, after, entries, month)


def reconciled(turn: Turn, month: dt.date) -> Billed:
    """Charges what the gateway settled and no node reported; the turn is closed then."""
    if turn.state is not State.SETTLED:
        return Billed(turn, turn, (), starts_period=False)
    after, parts = replace(turn, state=State.CLOSED, is_cut_short=False), []
    for number, step in enumerate(turn.steps):
        whole, owed = _completed(number, step)
        after = after.with_step(number, whole)
        parts += owed
    entries = [entry(turn, part, source="gateway") for part in parts]
    return charged(turn, after, entries, month)


def _completed(number: int, step: Step) -> tuple[Step, list[Part]]:
    """The step with all that was settled, and what is to be charged for that."""
    if step.settled is None:
        return step, []
    prompt, cached = step.settled.prompt, step.settled.cached
    parts: list[Part] = []
    for kind, first, end in ((Kind.CACHED_INPUT, 0, cached), (Kind.INPUT, cached, prompt)):
        gaps = ranges.missing(step.covered_input, first, end)
        parts += [Part(number, 0, kind, *gap) for gap in gaps]
    owed = max(0, step.settled.output - step.billed_output_count)
    known = step.covered_output[0] if step.covered_output else ()
    # Exact for one answer; for more the positions are nominal and only the number counts.
    nominal = ranges.take(ranges.missing(known, 0, POSITION_MAX), owed)
    parts += [Part(number, 0, Kind.OUTPUT, *part) for part in nominal]
    covered = ranges.add(step.covered_input, 0, prompt) if prompt else step.covered_input
    after = replace(step, covered_input=covered, output_credit=step.output_credit + owed)
    return after, parts


def drift_token_count(turn: Turn) -> int:
    """Tokens the nodes reported (positive: more, negative: fewer) against the gateway's count.

    0 for a turn that is not settled: nothing to compare.
    """
    counted = [step.settled for step in turn.steps if step.settled is not None]
    if not counted:
        return 0
    reported = sum(step.reported_output_count + step.billed_input_count for step in turn.steps)
    return reported - sum(counts.prompt + counts.output for counts in counted)


def _covered(step: Step, report: Usage) -> tuple[Step, Ranges]:
    """The step with the report's positions, and the part of them that is to be charged."""
    if report.kind is not Kind.OUTPUT:
        new = ranges.missing(step.covered_input, report.first, report.end)
        covered = ranges.add(step.covered_input, report.first, report.end)
        return replace(step, covered_input=covered), new
    answers = [*step.covered_output, *((),) * (report.choice_index + 1 - len(step.covered_output))]
    answer = answers[report.choice_index]
    new = ranges.missing(answer, report.first, report.end)
    answers[report.choice_index] = ranges.add(answer, report.first, report.end)
    used = min(step.output_credit, ranges.size(new))
    after = replace(step, covered_output=tuple(answers), output_credit=step.output_credit - used)
    return after, ranges.skip(new, used)


def _merged(parts: Iterable[Part]) -> list[Part]:
    # Nodes report every few tokens; one entry for what touches keeps the ledger short.
    merged: list[Part] = []
    for part in sorted(parts):
        if merged and merged[-1] == replace(part, first=merged[-1].first, end=part.first):
            merged[-1] = replace(merged[-1], end=part.end)
        else:
            merged.append(part)
    return merged


def unit_nanousd(turn: Turn, kind: Kind) -> int:
    """What one token of the turn costs."""
    return {
        Kind.INPUT: turn.price.input_nanousd,
        Kind.CACHED_INPUT: turn.price.cached_input_nanousd,
        Kind.OUTPUT: turn.price.output_nanousd,
    }[kind]


def entry(turn: Turn, part: Part, *, source: str) -> Entry:
    """The entry that charges a part at the turn's price."""
    return Entry(
        turn_id=turn.turn_id,
        account_id=turn.account_id,
        choice_index=part.choice_index,
        kind=part.kind,
        first=part.first,
        end=part.end,
        model=turn.model,
        cost_nanousd=unit_nanousd(turn, part.kind) * (part.end - part.first),
        price_version=turn.price.version,
        source=source,
        step=part.step,
        key_id=turn.key_id,
    )


def charged(before: Turn, after: Turn, entries: Iterable[Entry], month: dt.date) -> Billed:
    """The turn with the cost of the entries."""
    entries = tuple(entries)
    cost = sum(entry.cost_nanousd for entry in entries)
    starts_period = bool(entries) and before.ledger_period != month
    turn = replace(
        after,
        ledger_nanousd=after.ledger_nanousd + cost,
        ledger_period=month if entries else after.ledger_period,
    ).closed_if_complete()
    return Billed(before, turn, entries, starts_period)
