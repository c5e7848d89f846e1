"""What is charged: usage events in, ledger entries out, each token of a turn once.

A token is (turn, answer, input or output, position). Nodes may report it twice (a repeated event)
or differently (two attempts, cached here and computed there): the first report is charged, at the
price its hold promised. The n answers of a turn share one prompt, whichever of them reports it.

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
from billing_svc.turn import State, Turn

POSITION_MAX = 2**31 - 1  # the ledger's column is an int4
CHOICE_COUNT_MAX = 16


class Kind(enum.IntEnum):
    """What is counted; the numbers are those of billing.v1.UsageKind."""

    INPUT = 1
    CACHED_INPUT = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class Usage:
    """One report of a node: positions [first, end) of one answer."""

    turn_id: str
    choice_index: int
    kind: Kind
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

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

    @property
    def token_count(self) -> int:
        """How many tokens it charges."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Billed:
    """A turn before and after, and the entries in between."""

    before: Turn
    turn: Turn
    entries: tuple[Entry, ...]
    starts_period: bool  # the turn's first entry in this month


def billed(turn: Turn, reports: Iterable[Usage], month: dt.date) -> Billed:
    """Charges what is new in `reports`, in their order.

    Args:
        turn: the turn they belong to.
        reports: of this turn only.
        month: first day of the month (UTC) in which the entries are written.
    """
    after, parts = turn, []
    for report in reports:
        after, new = _covered(after, report)
        # The prompt is the turn's: its entries stand under the first answer.
        choice = report.choice_index if report.kind is Kind.OUTPUT else 0
        parts += [(choice, report.kind, *part) for part in new]
    entries = [_entry(turn, *part, source="node") for part in _merged(parts)]
    return _charged(turn, after, entries, month)


def reconciled(turn: Turn, month: dt.date) -> Billed:
    """Charges what the gateway settled and no node reported; the turn is closed then."""
    if turn.state is not State.SETTLED or turn.counts is None:
        return Billed(turn, turn, (), starts_period=False)
    prompt, cached = turn.counts.prompt, turn.counts.cached
    parts: list[tuple[int, Kind, int, int]] = []
    for kind, first, end in ((Kind.CACHED_INPUT, 0, cached), (Kind.INPUT, cached, prompt)):
        parts += [(0, kind, *gap) for gap in ranges.missing(turn.covered_input, first, end)]
    owed = max(0, turn.counts.output - turn.billed_output_count)
    known = turn.covered_output[0] if turn.covered_output else ()
    # Exact for one answer; for more the positions are nominal and only the number counts.
    nominal = ranges.take(ranges.missing(known, 0, POSITION_MAX), owed)
    parts += [(0, Kind.OUTPUT, *part) for part in nominal]
    after = replace(
        turn,
        state=State.CLOSED,
        covered_input=ranges.add(turn.covered_input, 0, prompt) if prompt else turn.covered_input,
        output_credit=turn.output_credit + owed,
    )
    entries = [_entry(turn, *part, source="gateway") for part in parts]
    return _charged(turn, after, entries, month)


def drift_token_count(turn: Turn) -> int:
    """Tokens the nodes reported (positive: more, negative: fewer) against the gateway's count.

    0 for a turn that is not settled: nothing to compare.
    """
    if turn.counts is None:
        return 0
    reported = sum(map(ranges.size, turn.covered_output)) + ranges.size(turn.covered_input)
    return reported - turn.counts.prompt - turn.counts.output


def _covered(turn: Turn, report: Usage) -> tuple[Turn, Ranges]:
    """The turn with the report's positions, and the part of them that is to be charged."""
    if report.kind is not Kind.OUTPUT:
        new = ranges.missing(turn.covered_input, report.first, report.end)
        covered = ranges.add(turn.covered_input, report.first, report.end)
        return replace(turn, covered_input=covered), new
    answers = [*turn.covered_output, *((),) * (report.choice_index + 1 - len(turn.covered_output))]
    answer = answers[report.choice_index]
    new = ranges.missing(answer, report.first, report.end)
    answers[report.choice_index] = ranges.add(answer, report.first, report.end)
    used = min(turn.output_credit, ranges.size(new))
    after = replace(turn, covered_output=tuple(answers), output_credit=turn.output_credit - used)
    return after, ranges.skip(new, used)


def _merged(parts: list[tuple[int, Kind, int, int]]) -> list[tuple[int, Kind, int, int]]:
    # Nodes report every few tokens; one entry for what touches keeps the ledger short.
    merged: list[tuple[int, Kind, int, int]] = []
    for choice, kind, first, end in sorted(parts):
        if merged and merged[-1][:2] == (choice, kind) and merged[-1][3] == first:
            merged[-1] = (choice, kind, merged[-1][2], end)
        else:
            merged.append((choice, kind, first, end))
    return merged


def _entry(turn: Turn, choice: int, kind: Kind, first: int, end: int, *, source: str) -> Entry:
    price = {
        Kind.INPUT: turn.price.input_nanousd,
        Kind.CACHED_INPUT: turn.price.cached_input_nanousd,
        Kind.OUTPUT: turn.price.output_nanousd,
    }[kind]
    return Entry(
        turn_id=turn.turn_id,
        account_id=turn.account_id,
        choice_index=choice,
        kind=kind,
        first=first,
        end=end,
        model=turn.model,
        cost_nanousd=price * (end - first),
        price_version=turn.price.version,
        source=source,
    )


def _charged(before: Turn, after: Turn, entries: list[Entry], month: dt.date) -> Billed:
    cost = sum(entry.cost_nanousd for entry in entries)
    starts_period = bool(entries) and before.ledger_period != month
    turn = replace(
        after,
        ledger_nanousd=after.ledger_nanousd + cost,
        ledger_period=month if entries else after.ledger_period,
    ).closed_if_complete()
    return Billed(before, turn, tuple(entries), starts_period)
