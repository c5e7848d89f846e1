"""The law of conservation, judged: for every turn and step,

    generated = released + withheld + unsent = what the ledger has

Generated is what nodes reported, and what the gateway counted that no node reported. Released,
withheld and unsent are the gateway's words at the settlement; what nodes generated beyond what it
saw (in flight when the client left or a process died) counts as unsent. Prompts are judged alike:
counted = what the ledger has.

Judged by number of tokens: where the gateway's count was charged for several answers, positions of
entries are nominal (see `ledger`).
"""

import datetime as dt
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from billing_svc.ledger import Entry, Kind
from billing_svc.turn import State, Step, Turn


class Finding(enum.IntEnum):
    """What is wrong; the numbers are those of billing.v1.AuditFinding."""

    OVERCHARGED = 1
    UNDERCHARGED = 2
    UNSETTLED = 3
    UNRECONCILED = 4
    TURN_MISSING = 5
    DRIFT = 6


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: `kind` is INPUT (cached or not) or OUTPUT, `token_count` at least 1."""

    finding: Finding
    kind: Kind
    token_count: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a turn may take before it is judged as it stands.

    Attributes:
        unsettled: from the end of its hold, or from its settlement until the ledger has it all.
        unended: from its hold, for a turn that is still open.
    """

    unsettled: dt.timedelta
    unended: dt.timedelta


@dataclass(frozen=True, slots=True)
class StepAudit:
    """One step in the balance, in tokens; names as in billing.v1.AuditedStep."""

    turn_id: str
    account_id: str
    step: int
    ended: bool
    prompt: int
    ledger_prompt: int
    generated: int
    released: int
    withheld: int
    unsent: int
    ledger: int
    found: tuple[Found, ...] = ()

    @property
    def difference(self) -> int:
        """What the ledger has less what it should have."""
        attested = self.released + self.withheld + self.unsent
        wanted = attested if self.ended else self.generated
        return self.ledger - wanted + self.ledger_prompt - self.prompt

    @property
    def balances(self) -> bool:
        """Nothing is to be repaired; drift is charged and balances."""
        return all(found.finding is Finding.DRIFT for found in self.found)


def judged(
    turn: Turn, entries: Iterable[Entry], now: dt.datetime, bounds: Bounds
) -> tuple[StepAudit, ...]:
    """The turn's steps in the balance.

    Args:
        turn: as it stands.
        entries: of its ledger, all of them, oldest first.
        now: when.
        bounds: see `Bounds`.
    """
    by_step: dict[int, list[Entry]] = {number: [] for number in range(len(turn.steps))}
    for entry in entries:
        by_step.setdefault(entry.step, []).append(entry)
    overdue = _is_overdue(turn, now, bounds)
    return tuple(
        _judged_step(turn, number, by_step[number], overdue=overdue) for number in sorted(by_step)
    )


def judged_missing(turn_id: str, entries: Sequence[Entry]) -> tuple[StepAudit, ...]:
    """The entries of a turn that does not exist: all they charge is one too many."""
    steps = sorted({entry.step for entry in entries})
    return tuple(_judged_orphan(turn_id, n, [e for e in entries if e.step == n]) for n in steps)


def ledger_counts(entries: Iterable[Entry]) -> tuple[int, int]:
    """(prompt, output) tokens that entries charge, less those they take back."""
    prompt = output = 0
    for entry in entries:
        if entry.kind is Kind.OUTPUT:
            output += entry.token_count
        else:
            prompt += entry.token_count
    return prompt, output


def _is_overdue(turn: Turn, now: dt.datetime, bounds: Bounds) -> bool:
    """Beyond the time in which somebody should have settled it, or the ledger completed it."""
    match turn.state:
        case State.EXPIRED:
            return turn.expire_time + bounds.unsettled <= now
        case State.SETTLED:
            return turn.settle_time is not None and turn.settle_time + bounds.unsettled <= now
        case State.OPEN:
            return turn.create_time is not None and turn.create_time + bounds.unended <= now
    return False


def _judged_step(turn: Turn, number: int, entries: Sequence[Entry], *, overdue: bool) -> StepAudit:
    step = turn.step(number)
    ledger_prompt, ledger = ledger_counts(entries)
    prompt, generated = step.billed_input_count, step.billed_output_count
    settled = step.settled
    if settled is not None and (turn.state is State.CLOSED or overdue):
        prompt, generated = max(prompt, settled.prompt), max(generated, settled.output)
    released = withheld = unsent = 0
    if settled is not None:
        released, withheld = settled.released, settled.withheld
        unsent = settled.unsent + max(0, generated - settled.output)
    elif turn.state is State.RELEASED:
        unsent = generated  # its gateway saw none of it
    has_entries = turn.ledger_period is not None or bool(entries)
    ended = turn.state in (State.CLOSED, State.RELEASED) or overdue
    ended = ended or (turn.state is State.EXPIRED and not has_entries)
    return StepAudit(
        turn_id=turn.turn_id,
        account_id=turn.account_id,
        step=number,
        ended=ended,
        prompt=prompt,
        ledger_prompt=ledger_prompt,
        generated=generated,
        released=released,
        withheld=withheld,
        unsent=unsent,
        ledger=ledger,
        found=(
            *_charge_findings(turn, step, ledger_prompt, ledger, overdue=overdue),
            *_drift(turn, step, entries),
        ),
    )


def _charge_findings(
    turn: Turn, step: Step, ledger_prompt: int, ledger: int, *, overdue: bool
) -> Iterable[Found]:
    settled = step.settled
    for kind, has, counted, told in (
        (Kind.INPUT, ledger_prompt, step.billed_input_count, settled.prompt if settled else 0),
        (Kind.OUTPUT, ledger, step.billed_output_count, settled.output if settled else 0),
    ):
        wanted = max(counted, told) if turn.state is State.CLOSED else counted
        if has > wanted:
            yield Found(Finding.OVERCHARGED, kind, has - wanted)
        elif has < wanted:
            yield Found(Finding.UNDERCHARGED, kind, wanted - has)
        if overdue and turn.state is State.SETTLED and told > counted:
            yield Found(Finding.UNRECONCILED, kind, told - counted)
        if overdue and turn.state in (State.OPEN, State.EXPIRED) and counted:
            yield Found(Finding.UNSETTLED, kind, counted)


def _drift(turn: Turn, step: Step, entries: Iterable[Entry]) -> Iterable[Found]:
    if turn.state is not State.CLOSED:
        return
    prompt, _ = ledger_counts(entry for entry in entries if entry.source == "gateway")
    if prompt:
        yield Found(Finding.DRIFT, Kind.INPUT, prompt)
    if step.output_credit:
        yield Found(Finding.DRIFT, Kind.OUTPUT, step.output_credit)


def _judged_orphan(turn_id: str, step: int, entries: Sequence[Entry]) -> StepAudit:
    prompt, output = ledger_counts(entries)
    return StepAudit(
        turn_id=turn_id,
        account_id=entries[0].account_id,
        step=step,
        ended=True,
        prompt=0,
        ledger_prompt=prompt,
        generated=0,
        released=0,
        withheld=0,
        unsent=0,
        ledger=output,
        found=tuple(
            Found(Finding.TURN_MISSING, kind, count)
            for kind, count in ((Kind.INPUT, prompt), (Kind.OUTPUT, output))
            if count > 0
        ),
    )
