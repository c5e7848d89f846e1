"""Each token is charged once, whatever is reported how often, in which order, by whom."""

import datetime as dt
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from billing_svc import ledger, quota
from billing_svc.ledger import Billed, Entry, Kind, Usage
from billing_svc.prices import Price
from billing_svc.turn import SettledCounts, State, Turn

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
MONTH = dt.date(2026, 11, 1)
PRICE = Price(input_nanousd=20, cached_input_nanousd=5, output_nanousd=60, version="1")
TURN = Turn("t", "a", "m", PRICE, 10**9, NOW)


def usage(kind: Kind, first: int, end: int, choice: int = 0, step: int = 0) -> Usage:
    return Usage("t", choice, kind, first, end, step)


usages = st.builds(
    lambda kind, choice, first, length, step: usage(kind, first, first + length, choice, step),
    st.sampled_from(Kind),
    st.integers(0, 3),
    st.integers(0, 30),
    st.integers(1, 10),
    st.sampled_from([0, 0, 1, 3]),
)
# (step, choice, is output, position)
Token = tuple[int, int, bool, int]


def tokens(entries: tuple[Entry, ...]) -> list[Token]:
    return [
        (entry.step, entry.choice_index, entry.kind is Kind.OUTPUT, position)
        for entry in entries
        for position in range(entry.first, entry.end)
    ]


def union(reports: list[Usage]) -> set[Token]:
    """The prompt is the step's, so its positions stand under answer 0."""
    return {
        (report.step, report.choice_index if is_output else 0, is_output, position)
        for report in reports
        for is_output in [report.kind is Kind.OUTPUT]
        for position in range(report.first, report.end)
    }


def in_batches(reports: list[Usage], size: int, start: Turn = TURN) -> list[Billed]:
    turn, results = start, []
    for begin in range(0, len(reports), size):
        results.append(ledger.billed(turn, reports[begin : begin + size], MONTH))
        turn = results[-1].turn
    return results


@given(st.lists(usages, max_size=12), st.integers(1, 12), st.data())
def test_billed_is_the_union_of_what_was_reported(
    reports: list[Usage], size: int, data: st.DataObject
) -> None:
    repeated = data.draw(st.permutations(reports + reports[: len(reports) // 2]))
    results = in_batches(list(repeated), size)
    charged = [token for result in results for token in tokens(result.entries)]
    assert len(charged) == len(set(charged))  # once
    assert set(charged) == union(reports)  # and all
    last = results[-1].turn if results else TURN
    assert last.ledger_nanousd == sum(e.cost_nanousd for r in results for e in r.entries)


settlements = st.lists(
    st.builds(
        lambda prompt, cached, output: SettledCounts(prompt, min(cached, prompt), output),
        st.integers(0, 60),
        st.integers(0, 60),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(usages, max_size=8), st.lists(usages, max_size=8), settlements)
def test_late_reports_after_the_reconciler_are_never_charged_twice(
    early: list[Usage], late: list[Usage], counts: list[SettledCounts]
) -> None:
    first = ledger.billed(TURN, early, MONTH)
    second = ledger.reconciled(quota.settled(first.turn, counts, NOW), MONTH)
    third = ledger.billed(second.turn, late, MONTH)
    entries = (*first.entries, *second.entries, *third.entries)
    reported, reported_early = union(early + late), union(early)
    for number in range(4):
        settled = counts[number] if number < len(counts) else SettledCounts()
        mine = {token for token in reported if token[0] == number}
        before = sum(output for step, _, output, _ in reported_early if step == number)
        outputs = sum(e.token_count for e in entries if e.kind is Kind.OUTPUT and e.step == number)
        # Whichever count is higher is charged: the gateway's at the settlement, the nodes' later.
        assert outputs == max(sum(token[2] for token in mine), settled.output, before)
        inputs = [token for token in tokens(entries) if token[0] == number and not token[2]]
        wanted = {token for token in mine if not token[2]}
        wanted |= {(number, 0, False, position) for position in range(settled.prompt)}
        assert len(inputs) == len(set(inputs))
        assert set(inputs) == wanted
    assert third.turn.reserved_nanousd == 0
    assert ledger.reconciled(third.turn, MONTH).entries == ()


def test_the_first_report_of_a_prompt_token_sets_its_price() -> None:
    reports = [usage(Kind.CACHED_INPUT, 0, 4), usage(Kind.INPUT, 2, 10, choice=1)]
    result = ledger.billed(TURN, reports, MONTH)
    costs = [(e.choice_index, e.kind, e.first, e.end, e.cost_nanousd) for e in result.entries]
    assert costs == [(0, Kind.INPUT, 4, 10, 120), (0, Kind.CACHED_INPUT, 0, 4, 20)]


def test_touching_reports_become_one_entry() -> None:
    reports = [usage(Kind.OUTPUT, n, n + 1) for n in range(100)]
    (entry,) = ledger.billed(TURN, reports, MONTH).entries
    assert (entry.first, entry.end, entry.cost_nanousd, entry.source) == (0, 100, 6000, "node")


def test_reconciled_fills_the_gaps_at_the_gateways_word() -> None:
    seen = ledger.billed(TURN, [usage(Kind.INPUT, 8, 10), usage(Kind.OUTPUT, 0, 3)], MONTH).turn
    settled = quota.settled(seen, [SettledCounts(prompt=10, cached=4, output=5)], NOW)
    result = ledger.reconciled(settled, MONTH)
    found = [(e.kind, e.first, e.end, e.source) for e in result.entries]
    assert found == [
        (Kind.CACHED_INPUT, 0, 4, "gateway"),
        (Kind.INPUT, 4, 8, "gateway"),
        (Kind.OUTPUT, 3, 5, "gateway"),
    ]
    assert result.turn.state is State.CLOSED
    assert ledger.drift_token_count(settled) == 5 - 15


def test_a_settled_turn_closes_with_its_last_report() -> None:
    settled = quota.settled(TURN, [SettledCounts(2, 0, 3)], NOW)
    first = ledger.billed(settled, [usage(Kind.INPUT, 0, 2), usage(Kind.OUTPUT, 0, 2)], MONTH)
    assert first.turn.state is State.SETTLED
    assert first.turn.reserved_nanousd == 60
    second = ledger.billed(first.turn, [usage(Kind.OUTPUT, 2, 3)], MONTH)
    assert second.turn.state is State.CLOSED
    assert second.turn.reserved_nanousd == 0


def test_each_step_has_its_own_prompt_and_answers() -> None:
    reports = [usage(Kind.INPUT, 0, 4), usage(Kind.OUTPUT, 0, 3)]
    again = [replace(report, step=2) for report in reports]
    result = ledger.billed(TURN, reports + again + again, MONTH)
    found = [(e.step, e.kind, e.token_count) for e in result.entries]
    assert found == [
        (0, Kind.INPUT, 4),
        (0, Kind.OUTPUT, 3),
        (2, Kind.INPUT, 4),
        (2, Kind.OUTPUT, 3),
    ]
    assert len(result.turn.steps) == 3


def test_a_turn_counts_once_a_month() -> None:
    first = ledger.billed(TURN, [usage(Kind.OUTPUT, 0, 2)], MONTH)
    again = ledger.billed(first.turn, [usage(Kind.OUTPUT, 2, 4)], MONTH)
    next_month = ledger.billed(again.turn, [usage(Kind.OUTPUT, 4, 5)], dt.date(2026, 12, 1))
    nothing = ledger.billed(next_month.turn, [usage(Kind.OUTPUT, 0, 5)], dt.date(2027, 1, 1))
    flags = [result.starts_period for result in (first, again, next_month, nothing)]
    assert flags == [True, False, True, False]


def test_only_settled_turns_are_reconciled() -> None:
    for state in (State.OPEN, State.EXPIRED, State.RELEASED, State.CLOSED):
        assert ledger.reconciled(replace(TURN, state=state), MONTH).entries == ()
    assert ledger.drift_token_count(TURN) == 0
