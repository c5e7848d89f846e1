"""The law of conservation: what is honest balances, what is not is found and can be repaired."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_svc import audit, ledger, quota, repairs
from billing_svc.audit import Bounds, Finding, Found, StepAudit
from billing_svc.ledger import Entry, Kind, Usage
from billing_svc.prices import Price
from billing_svc.turn import SettledCounts, State, Step, Turn

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
MONTH = dt.date(2026, 11, 1)
BOUNDS = Bounds(unsettled=dt.timedelta(seconds=600), unended=dt.timedelta(days=1))
PRICE = Price(input_nanousd=20, cached_input_nanousd=5, output_nanousd=60, version="1")
TURN = Turn("t", "a", "m", PRICE, 10**9, NOW, create_time=NOW)

usages = st.builds(
    lambda kind, choice, first, length, step: Usage("t", choice, kind, first, first + length, step),
    st.sampled_from(Kind),
    st.integers(0, 2),
    st.integers(0, 30),
    st.integers(1, 10),
    st.sampled_from([0, 0, 2]),
)


@st.composite
def settled_counts(draw: st.DrawFn) -> SettledCounts:
    prompt, output = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    withheld = draw(st.integers(0, output))
    unsent = draw(st.integers(0, output - withheld))
    return SettledCounts(prompt, draw(st.integers(0, prompt)), output, withheld, unsent)


settlements = st.lists(settled_counts(), min_size=1, max_size=3)
ENDINGS = ("settled", "settled late", "released", "expired, then settled", "expired unused")


def ended(
    ending: str, early: list[Usage], late: list[Usage], counts: list[SettledCounts]
) -> tuple[Turn, list[Entry]]:
    """A turn that ended this way, nodes having reported before and after, and its ledger."""
    if ending == "expired unused":
        return quota.expired(TURN, NOW), []
    first = ledger.billed(TURN, early, MONTH)
    turn, entries = first.turn, list(first.entries)
    if ending == "released":
        turn = quota.released(turn, NOW)
    else:
        if ending.startswith("expired"):
            turn = quota.expired(turn, NOW)
        turn = quota.settled(turn, counts, NOW)
    if ending == "settled late":
        between = ledger.reconciled(turn, MONTH)
        turn, entries = between.turn, [*entries, *between.entries]
    last = ledger.billed(turn, late, MONTH)
    done = ledger.reconciled(last.turn, MONTH)
    return done.turn, [*entries, *last.entries, *done.entries]


def judged(turn: Turn, entries: Sequence[Entry], after_s: float = 0) -> tuple[StepAudit, ...]:
    return audit.judged(turn, entries, NOW + dt.timedelta(seconds=after_s), BOUNDS)


@given(
    st.sampled_from(ENDINGS),
    st.lists(usages, max_size=8),
    st.lists(usages, max_size=8),
    settlements,
)
def test_every_ending_balances(
    ending: str, early: list[Usage], late: list[Usage], counts: list[SettledCounts]
) -> None:
    turn, entries = ended(ending, early, late, counts)
    for one in judged(turn, entries):
        assert one.balances, one
        assert (one.ended, one.difference) == (True, 0)
        assert one.generated == one.released + one.withheld + one.unsent == one.ledger
        assert one.prompt == one.ledger_prompt
        settled = turn.step(one.step).settled
        if settled is not None:
            assert (one.released, one.withheld) == (settled.released, settled.withheld)
            assert one.unsent >= settled.unsent


@given(
    st.sampled_from(ENDINGS),
    st.lists(usages, min_size=1, max_size=8),
    settlements,
    st.data(),
)
def test_what_was_tampered_with_is_found_and_repaired(
    ending: str, reports: list[Usage], counts: list[SettledCounts], data: st.DataObject
) -> None:
    turn, entries = ended(ending, reports, [], counts)
    twice = data.draw(st.lists(st.sampled_from(entries), max_size=3)) if entries else []
    gone = data.draw(st.lists(st.sampled_from(entries), max_size=2)) if entries else []
    false = [replace(entry, step=5, source="gateway") for entry in twice[:1]]
    wrong = [entry for entry in entries if entry not in gone] + twice + false
    result = repairs.repaired(turn, wrong, judged(turn, wrong), NOW)
    right = [*wrong, *result.entries]
    assert all(one.balances for one in judged(result.turn, right))
    assert result.turn.ledger_nanousd == sum(entry.cost_nanousd for entry in right)
    assert {entry.source for entry in result.entries} <= {"repair"}
    assert all((e.cost_nanousd <= 0) == e.is_credit for e in result.entries)
    # Once more: nothing.
    again = repairs.repaired(result.turn, right, judged(result.turn, right), NOW)
    assert again.entries == ()
    assert again.turn == result.turn
    if not gone:  # what was charged twice goes back to the last nano-dollar
        assert result.turn.ledger_nanousd == turn.ledger_nanousd


def found(turn: Turn, entries: Sequence[Entry], after_s: float = 0) -> list[Found]:
    return [one for step in judged(turn, entries, after_s) for one in step.found]


def charged(turn: Turn, *reports: Usage) -> tuple[Turn, list[Entry]]:
    result = ledger.billed(turn, reports, MONTH)
    return result.turn, list(result.entries)


PROMPT, ANSWER = Usage("t", 0, Kind.INPUT, 0, 10), Usage("t", 0, Kind.OUTPUT, 0, 5)


def test_tokens_in_flight_count_as_unsent() -> None:
    turn, entries = charged(TURN, PROMPT, ANSWER)
    (cut,) = judged(quota.settled(turn, [SettledCounts(10, 0, 3, 1, 1)], NOW), entries)
    assert (cut.generated, cut.released, cut.withheld, cut.unsent) == (5, 1, 1, 3)
    (released,) = judged(quota.released(turn, NOW), entries)
    assert (released.generated, released.released, released.unsent) == (5, 0, 5)
    assert cut.balances
    assert released.balances


def test_a_running_turn_is_not_judged_but_its_ledger_is() -> None:
    turn, entries = charged(TURN, PROMPT, ANSWER)
    (running,) = judged(turn, entries)
    assert (running.ended, running.difference, running.found) == (False, 0, ())
    assert found(turn, entries[:1]) == [Found(Finding.UNDERCHARGED, Kind.OUTPUT, 5)]
    assert found(turn, [*entries, entries[0]]) == [Found(Finding.OVERCHARGED, Kind.INPUT, 10)]


def test_an_expired_turn_is_unsettled_after_its_time() -> None:
    turn, entries = charged(TURN, PROMPT, ANSWER)
    turn = quota.expired(turn, NOW)
    assert found(turn, entries, after_s=599) == []
    late = [Found(Finding.UNSETTLED, Kind.INPUT, 10), Found(Finding.UNSETTLED, Kind.OUTPUT, 5)]
    assert found(turn, entries, after_s=600) == late
    (audited,) = judged(turn, entries, after_s=600)
    assert (audited.ended, audited.difference) == (True, 5)
    result = repairs.repaired(turn, entries, [audited], NOW)
    assert (result.entries, result.turn.state) == ((), State.CLOSED)
    assert result.turn.steps[0].settled == SettledCounts(10, 0, 5, unsent=5)
    assert result.turn.repair_time == NOW
    assert found(result.turn, entries, after_s=600) == []


def test_a_turn_that_is_open_for_ever_is_unsettled() -> None:
    turn, entries = charged(replace(TURN, expire_time=NOW + dt.timedelta(days=9)), ANSWER)
    assert found(turn, entries, after_s=86_399) == []
    assert found(turn, entries, after_s=86_400) == [Found(Finding.UNSETTLED, Kind.OUTPUT, 5)]
    assert found(TURN, [], after_s=86_400) == []  # nothing of it in the ledger


def test_what_nobody_reconciled_is_a_finding_and_then_drift() -> None:
    turn, entries = charged(TURN, Usage("t", 0, Kind.INPUT, 0, 6), ANSWER)
    turn = quota.settled(turn, [SettledCounts(10, 8, 9)], NOW)
    assert found(turn, entries, after_s=599) == []
    late = [Found(Finding.UNRECONCILED, Kind.INPUT, 4), Found(Finding.UNRECONCILED, Kind.OUTPUT, 4)]
    assert found(turn, entries, after_s=600) == late
    result = repairs.repaired(turn, entries, judged(turn, entries, 600), NOW)
    assert [(e.kind, e.first, e.end, e.source) for e in result.entries] == [
        (Kind.CACHED_INPUT, 6, 8, "repair"),
        (Kind.INPUT, 8, 10, "repair"),
        (Kind.OUTPUT, 5, 9, "repair"),
    ]
    assert result.turn.ledger_nanousd == 6 * 20 + 5 * 60 + 2 * 5 + 2 * 20 + 4 * 60
    assert found(result.turn, [*entries, *result.entries]) == [Found(Finding.DRIFT, Kind.OUTPUT, 4)]


def test_drift_is_what_no_node_reported_and_balances() -> None:
    turn, entries = charged(TURN, PROMPT, ANSWER)
    done = ledger.reconciled(quota.settled(turn, [SettledCounts(12, 0, 9)], NOW), MONTH)
    entries += done.entries
    drift = [Found(Finding.DRIFT, Kind.INPUT, 2), Found(Finding.DRIFT, Kind.OUTPUT, 4)]
    assert found(done.turn, entries) == drift
    assert all(one.balances and one.difference == 0 for one in judged(done.turn, entries))
    late = ledger.billed(done.turn, [Usage("t", 0, Kind.OUTPUT, 0, 8)], MONTH)
    assert found(late.turn, [*entries, *late.entries])[1] == Found(Finding.DRIFT, Kind.OUTPUT, 1)


@pytest.mark.parametrize("source", ["node", "gateway"])
def test_what_stands_twice_is_credited_where_it_stands_twice(source: str) -> None:
    turn, entries = charged(TURN, PROMPT, ANSWER)
    twice = replace(entries[1], first=3, end=5, cost_nanousd=120, source=source)
    late, more = charged(turn, Usage("t", 0, Kind.OUTPUT, 5, 9))
    wrong = [*entries, twice, *more]
    (credit,) = repairs.repaired(late, wrong, judged(late, wrong), NOW).entries
    assert (credit.first, credit.end, credit.is_credit, credit.cost_nanousd) == (3, 5, True, -120)
    assert credit.token_count == -2


def test_what_is_missing_is_charged_at_its_place() -> None:
    turn, entries = charged(
        TURN, Usage("t", 0, Kind.OUTPUT, 0, 2), Usage("t", 1, Kind.OUTPUT, 4, 7)
    )
    (charge,) = repairs.repaired(turn, entries[:1], judged(turn, entries[:1]), NOW).entries
    assert (charge.choice_index, charge.first, charge.end, charge.cost_nanousd) == (1, 4, 7, 180)


def test_entries_without_a_turn_go_back_once() -> None:
    _, entries = charged(TURN, PROMPT, ANSWER, replace(ANSWER, step=1))
    audits = audit.judged_missing("t", entries)
    assert [(one.step, one.difference) for one in audits] == [(0, 15), (1, 5)]
    assert {one.finding for step in audits for one in step.found} == {Finding.TURN_MISSING}
    back = repairs.taken_back(entries)
    assert sum(e.cost_nanousd for e in [*entries, *back]) == 0
    assert all(one.balances for one in audit.judged_missing("t", [*entries, *back]))
    assert repairs.taken_back([*entries, *back]) == []


def test_a_step_that_only_the_ledger_knows_is_one_too_many() -> None:
    turn, entries = charged(TURN, ANSWER)
    wrong = [*entries, replace(entries[0], step=3)]
    assert [(s.step, s.found) for s in judged(turn, wrong) if s.found] == [
        (3, (Found(Finding.OVERCHARGED, Kind.OUTPUT, 5),))
    ]
    assert turn.steps == (Step(covered_output=(((0, 5),),)),)
