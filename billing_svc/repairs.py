"""What makes a turn balance again: entries of source "repair", and a settlement nobody made.

The ledger is only added to. What is missing is charged like anything else; what is too much is
taken back by a credit: an entry about the range of the charge it undoes, whose tokens and cost
count negative. The sums of the ledger are then right for tokens and for money.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from billing_svc import ledger, ranges
from billing_svc.audit import Finding, StepAudit
from billing_svc.ledger import POSITION_MAX, Billed, Entry, Kind, Part
from billing_svc.ranges import Ranges
from billing_svc.turn import SettledCounts, State, Step, Turn

SOURCE = "repair"
# What is taken back first: what was charged twice, what no node reported, then whatever is newest.
_TWICE, _UNREPORTED, _OTHER = range(3)


@dataclass(frozen=True, slots=True)
class _Charged:
    """A part of an entry that stands: neither credited nor to be credited yet."""

    rank: int
    entry: Entry
    first: int
    end: int


def repaired(
    turn: Turn, entries: Sequence[Entry], audits: Iterable[StepAudit], now: dt.datetime
) -> Billed:
    """The turn as it balances, and the entries for that; no change when it balances already.

    Args:
        turn: as it stands.
        entries: of its ledger, all of them, oldest first.
        audits: as `audit.judged` says of these.
        now: when; the entries are of its month.
    """
    month = now.astimezone(dt.UTC).date().replace(day=1)
    found = [(audit.step, one) for audit in audits for one in audit.found]
    wrong = {one.finding for _, one in found} - {Finding.DRIFT}
    if not wrong:
        return Billed(turn, turn, (), starts_period=False)
    new: list[Entry] = []
    for number, one in found:
        mine = _of_kind(entries, number, one.kind)
        step = turn.step(number)
        if one.finding is Finding.OVERCHARGED:
            new += _credits(_standing(step, mine), one.token_count)
        elif one.finding is Finding.UNDERCHARGED:
            parts = _lacking(number, step, mine, one.kind, one.token_count)
            new += [ledger.entry(turn, part, source=SOURCE) for part in parts]
    # What the turn says of its cost follows the ledger, which is what counts.
    after = replace(turn, ledger_nanousd=sum(entry.cost_nanousd for entry in entries))
    if Finding.UNRECONCILED in wrong:
        completed = ledger.reconciled(after, month)
        after = replace(completed.turn, ledger_nanousd=after.ledger_nanousd)
        new += [replace(entry, source=SOURCE) for entry in completed.entries]
    if Finding.UNSETTLED in wrong:
        after = _settled_as_unsent(after, entries, now)
    return ledger.charged(turn, replace(after, repair_time=now), new, month)


def taken_back(entries: Sequence[Entry]) -> list[Entry]:
    """Credits for all that entries without a turn charge."""
    new: list[Entry] = []
    for step in sorted({entry.step for entry in entries}):
        for kind in (Kind.INPUT, Kind.OUTPUT):
            standing = _standing(Step(), _of_kind(entries, step, kind))
            new += _credits(standing, sum(part.end - part.first for part in standing))
    return new


def _settled_as_unsent(turn: Turn, entries: Sequence[Entry], now: dt.datetime) -> Turn:
    """Closed at what the ledger has: nobody attests that a reader got any of it."""
    steps = []
    for number, step in enumerate(turn.steps):
        mine = [e for e in entries if e.step == number and e.kind is Kind.CACHED_INPUT]
        cached = max(0, min(step.billed_input_count, sum(e.token_count for e in mine)))
        output = step.billed_output_count
        counts = SettledCounts(step.billed_input_count, cached, output, unsent=output)
        steps.append(replace(step, settled=counts))
    return replace(
        turn,
        state=State.CLOSED,
        steps=tuple(steps),
        amount_nanousd=max(0, turn.ledger_nanousd),
        settle_time=now,
        is_cut_short=False,
    )


def _of_kind(entries: Iterable[Entry], step: int, kind: Kind) -> list[Entry]:
    is_output = kind is Kind.OUTPUT
    return [e for e in entries if e.step == step and (e.kind is Kind.OUTPUT) == is_output]


def _covered(step: Step, entry: Entry) -> Ranges:
    if entry.kind is not Kind.OUTPUT:
        return step.covered_input
    answers = step.covered_output
    return answers[entry.choice_index] if entry.choice_index < len(answers) else ()


def _standing(step: Step, entries: Sequence[Entry]) -> list[_Charged]:
    """What is charged and not taken back, in the order in which it should be."""
    standing: list[_Charged] = []
    seen: dict[int, Ranges] = {}
    for entry in entries:
        if entry.is_credit:
            standing = _less(standing, entry)
            continue
        before = seen.get(entry.choice_index, ())
        fresh = ranges.missing(before, entry.first, entry.end)
        covered = _covered(step, entry)
        unreported = [part for gap in fresh for part in ranges.missing(covered, *gap)]
        either = tuple(sorted([*ranges.missing(fresh, entry.first, entry.end), *unreported]))
        for rank, parts in (
            (_TWICE, ranges.missing(fresh, entry.first, entry.end)),
            (_UNREPORTED, unreported),
            (_OTHER, ranges.missing(either, entry.first, entry.end)),
        ):
            standing += [_Charged(rank, entry, *part) for part in parts]
        seen[entry.choice_index] = ranges.add(before, entry.first, entry.end)
    return _in_order(standing)


def _in_order(standing: list[_Charged]) -> list[_Charged]:
    """By rank, of each the newest first."""
    newest_first = standing[::-1]
    newest_first.sort(key=lambda part: part.rank)  # stable
    return newest_first


def _less(standing: list[_Charged], credit: Entry) -> list[_Charged]:
    """Without the part that a credit took back."""
    for part in _in_order(standing):
        same = part.entry.kind, part.entry.choice_index
        if same != (credit.kind, credit.choice_index):
            continue
        if part.first <= credit.first and credit.end <= part.end:
            index = standing.index(part)
            rest = ((part.first, credit.first), (credit.end, part.end))
            left = [replace(part, first=a, end=b) for a, b in rest if a < b]
            return [*standing[:index], *left, *standing[index + 1 :]]
    return standing


def _credits(standing: Iterable[_Charged], count: int) -> list[Entry]:
    """Credits for `count` tokens."""
    made: list[Entry] = []
    for part in standing:
        taken = min(count, part.end - part.first)
        if taken <= 0:
            break
        entry = part.entry
        # Exact: an entry costs a whole price a token. One that does not goes back as a whole.
        cost = entry.cost_nanousd * taken // (entry.end - entry.first)
        first = part.end - taken
        credit = replace(entry, first=first, end=part.end, cost_nanousd=-cost, is_credit=True)
        made.append(replace(credit, source=SOURCE))
        count -= taken
    return made


def _lacking(
    number: int, step: Step, entries: Iterable[Entry], kind: Kind, count: int
) -> list[Part]:
    """`count` tokens that were counted and are not in the ledger, as parts to charge."""
    charged: dict[int, Ranges] = {}
    for entry in entries:
        before = charged.get(entry.choice_index, ())
        charged[entry.choice_index] = ranges.add(before, entry.first, entry.end)
    covered = step.covered_output if kind is Kind.OUTPUT else (step.covered_input,)
    parts: list[Part] = []
    for choice, answer in enumerate(covered):
        for first, end in answer:
            gaps = ranges.take(ranges.missing(charged.get(choice, ()), first, end), count)
            parts += [part for gap in gaps for part in _parts(number, choice, kind, step, gap)]
            count -= ranges.size(gaps)
    known = charged.get(0, ())
    for first, end in covered[0] if covered else ():
        known = ranges.add(known, first, end)
    # The number is what is known of the rest; its positions are nominal.
    for gap in ranges.take(ranges.missing(known, 0, POSITION_MAX), count):
        parts += _parts(number, 0, kind, step, gap)
    return parts


def _parts(
    number: int, choice: int, kind: Kind, step: Step, gap: tuple[int, int]
) -> Iterable[Part]:
    first, end = gap
    if kind is Kind.OUTPUT:
        yield Part(number, choice, kind, first, end)
        return
    cached = step.settled.cached if step.settled else 0
    for one, begin, stop in (
        (Kind.CACHED_INPUT, first, min(end, cached)),
        (Kind.INPUT, max(first, cached), end),
    ):
        if begin < stop:
            yield Part(number, choice, one, begin, stop)
