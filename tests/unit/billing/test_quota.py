"""Holds as values."""

import datetime as dt
from dataclasses import replace

from billing_svc import ledger, quota
from billing_svc.prices import Price
from billing_svc.quota import Counts
from billing_svc.turn import SettledCounts, State, Step, Turn

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
PRICE = Price(input_nanousd=20, cached_input_nanousd=5, output_nanousd=60, version="1")


def turn(**changes: object) -> Turn:
    made = Turn(
        turn_id="t",
        account_id="a",
        model="m",
        price=PRICE,
        amount_nanousd=10 * 20 + 100 * 60,
        held_prompt_count=10,
        held_output_count=100,
        minute=7,
        minute_token_count=110,
        expire_time=NOW + dt.timedelta(seconds=120),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_cost_by_the_gateways_count() -> None:
    counts = SettledCounts(prompt=10, cached=4, output=7, withheld=3)
    assert quota.cost_nanousd(PRICE, counts) == 6 * 20 + 4 * 5 + 7 * 60


def test_what_is_reserved_shrinks_as_the_ledger_grows() -> None:
    assert turn().reserved_nanousd == 6200
    assert turn(ledger_nanousd=200).reserved_nanousd == 6000
    assert turn(ledger_nanousd=9999).reserved_nanousd == 0
    for state in (State.CLOSED, State.RELEASED, State.EXPIRED):
        assert turn(state=state).reserved_nanousd == 0


def test_settled_keeps_the_cost_reserved_until_the_ledger_has_it() -> None:
    after = quota.settled(turn(), [SettledCounts(10, 0, 5)], NOW)
    assert (after.state, after.reserved_nanousd) == (State.SETTLED, 500)
    assert quota.settled(after, [SettledCounts(10, 0, 99)], NOW) == after


def test_settled_closes_at_once_when_the_ledger_has_it_all() -> None:
    step = Step(covered_input=((0, 10),), covered_output=(((0, 3),), ((0, 2),)))
    done = turn(steps=(step,), ledger_nanousd=500)
    assert quota.settled(done, [SettledCounts(10, 0, 5)], NOW).state is State.CLOSED
    assert quota.settled(done, [SettledCounts(11, 0, 5)], NOW).state is State.SETTLED
    assert quota.settled(done, [SettledCounts(10, 0, 6)], NOW).state is State.SETTLED


def test_settle_works_after_expiry_and_after_release() -> None:
    for state in (State.EXPIRED, State.RELEASED):
        after = quota.settled(turn(state=state), [SettledCounts(10, 0, 5)], NOW)
        assert (after.state, after.reserved_nanousd) == (State.SETTLED, 500)


def test_release_does_not_undo_a_settlement() -> None:
    settled = quota.settled(turn(), [SettledCounts(10, 0, 5)], NOW)
    assert quota.released(settled, NOW) == settled
    assert quota.released(turn(), NOW).reserved_nanousd == 0
    assert quota.released(turn(), NOW).expire_time == NOW


def test_a_hold_expires_at_its_time_and_only_while_open() -> None:
    end = turn().expire_time
    assert quota.expired(turn(), end - dt.timedelta(microseconds=1)) == turn()
    assert quota.expired(turn(), end).state is State.EXPIRED
    settled = quota.settled(turn(), [SettledCounts(10, 0, 5)], NOW)
    assert quota.expired(settled, end) == settled


def test_extend_opens_again_and_never_shortens() -> None:
    later = NOW + dt.timedelta(hours=1)
    after = extended(turn(state=State.EXPIRED), Counts(10, 110, 110), later)
    assert (after.state, after.amount_nanousd, after.expire_time) == (State.OPEN, 6800, later)
    assert extended(after, Counts(10, 110, 110), later) == after  # repeatable
    assert extended(turn(), Counts(0, 0, 0), NOW).expire_time == turn().expire_time
    settled = quota.settled(turn(), [SettledCounts(10, 0, 5)], NOW)
    assert extended(settled, Counts(10, 110, 110), later) == settled


def test_what_is_asked_for_is_what_is_missing() -> None:
    assert quota.raise_of(turn(), Counts(12, 90, 130)) == (40, 2, 0, 30, False)
    assert quota.raise_of(turn(), Counts(0, 0, 0)).is_none
    # Expired: all of it again, less what the ledger has.
    lapsed = turn(state=State.EXPIRED, ledger_nanousd=200)
    assert quota.raise_of(lapsed, Counts(0, 0, 0)) == (6000, 0, 0, 0, True)


def test_tokens_of_a_minute_come_back_when_they_were_not_used() -> None:
    used = [SettledCounts(10, 0, 5)]
    assert quota.settled(turn(), used, NOW).minute_token_count == 15
    assert quota.released(turn(), NOW).minute_token_count == 0
    # Of what was reserved in an earlier minute nothing comes back.
    later = extended(turn(), Counts(10, 120, 120), NOW, minute=8)
    assert (later.minute, later.minute_token_count) == (8, 20)
    assert quota.settled(later, used, NOW).minute_token_count == 0
    assert quota.settled(later, [SettledCounts(10, 0, 115)], NOW).minute_token_count == 15
    same = extended(turn(), Counts(10, 120, 120), NOW, minute=7)
    assert (same.minute, same.minute_token_count) == (7, 130)


def test_an_answer_that_was_cut_short_keeps_what_it_held_until_its_nodes_are_heard() -> None:
    counts = [SettledCounts(10, 0, 5, unsent=1)]
    after = quota.settled(turn(), counts, NOW, cut_short=True)
    assert (after.amount_nanousd, after.reserved_nanousd) == (500, 6200)
    step = Step(covered_input=((0, 10),), covered_output=(((0, 8),),))
    more = replace(after, steps=(replace(after.steps[0], **vars_of(step)),), ledger_nanousd=680)
    assert more.closed_if_complete() == more
    assert more.reserved_nanousd == 6200 - 680
    done = ledger.reconciled(more, NOW.date()).turn
    assert (done.state, done.reserved_nanousd) == (State.CLOSED, 0)


def vars_of(step: Step) -> dict[str, object]:
    return {"covered_input": step.covered_input, "covered_output": step.covered_output}


def extended(before: Turn, counts: Counts, until: dt.datetime, minute: int = 7) -> Turn:
    asked = quota.raise_of(before, counts)
    return quota.extended(before, asked, asked.output_count_max, minute, until)


def test_a_settlement_has_counts_for_each_step() -> None:
    counts = [SettledCounts(10, 0, 5), SettledCounts(20, 10, 3, withheld=1, unsent=1)]
    after = quota.settled(turn(), counts, NOW)
    assert after.amount_nanousd == sum(quota.cost_nanousd(PRICE, one) for one in counts)
    assert [step.settled for step in after.steps] == counts
    assert [step.settled.released for step in after.steps if step.settled] == [5, 1]
    first = Step(covered_input=((0, 10),), covered_output=(((0, 5),),))
    second = Step(covered_input=((0, 20),), covered_output=(((0, 3),),))
    for steps, state in (
        ((first, second), State.CLOSED),
        ((first,), State.SETTLED),
        ((first, replace(second, covered_output=(((0, 2),),))), State.SETTLED),
    ):
        assert quota.settled(turn(steps=steps), counts, NOW).state is state


def test_a_step_that_only_nodes_know_of_is_settled_with_nothing() -> None:
    steps = (Step(((0, 10),), (((0, 5),),)), Step(((0, 7),), (((0, 2),),)))
    after = quota.settled(turn(steps=steps), [SettledCounts(10, 0, 5)], NOW)
    assert after.state is State.CLOSED
    assert after.steps[1].settled == SettledCounts()
