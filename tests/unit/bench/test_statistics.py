"""The benchmarks' statistics, their arrivals and their prompts."""

import math
from collections import Counter
from itertools import islice, pairwise

import pytest

from tests.bench.figures import percentile, shown, table, without_nan
from tests.bench.load import Wave
from tests.bench.measure import Cell, Measured
from tests.bench.open_loop import Arrival, Outcome, arrivals
from tests.bench.overload import around_pause, back_after_s, figures
from tests.bench.prompts import endless, natural
from tests.bench.reply import ANSWERED, FAILED, OVERLOAD, POLICY, Answer
from tests.bench.report import medians, ratios, shares, tables


def wave(count: int, seconds: float) -> Wave:
    whole = [Answer(ANSWERED, "", 128, 0.01 * number) for number in range(1, count + 1)]
    return Wave(64, seconds, [*whole, Answer(POLICY, "at the prompt")])


def measured(count: int, seconds: float = 1.0) -> Measured:
    return Measured(wave(count, seconds), {"gateway": 2.0, "safety_svc": 3.0}, 0.5, 0.1, 0.0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.25, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)]
)
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], share) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 0.5))
    assert shown(math.nan) == "–"
    assert without_nan({"a": [math.nan, 1.0]}) == {"a": [None, 1.0]}


def test_a_table_has_columns_of_one_width() -> None:
    lines = table(["", "turns/s"], [["a", "1"], ["router", "1,000.5"]]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "router  1,000.5"


def test_a_wave_counts_whole_answers_only() -> None:
    found = wave(10, 2.0)
    assert (found.turns_per_s, found.token_count) == (5.0, 1280)
    assert found.first_token_ms(0.5) == pytest.approx(50.0)
    assert found.others() == {"refused by policy: at the prompt": 1}


def test_medians_of_rounds_and_sums_of_refusals() -> None:
    found = medians([measured(10), measured(30), measured(20)])
    assert found["turns_per_s"] == 20
    assert found["cpu_ms_per_turn"] == 5.0
    assert found["cpu_ms_by_service"] == {"gateway": 2.0, "safety_svc": 3.0}
    assert found["not_answered"] == {"refused by policy: at the prompt": 3}
    assert math.isnan(found["metered_tokens_per_s"])


def test_ratios_and_shares_are_of_medians() -> None:
    base, wide = Cell(64, 128, 1.0), Cell(256, 128, 1.0)
    results = {
        ("chatmesh", base): [measured(30)],
        ("litellm", base): [measured(10)],
        ("chatmesh", wide): [measured(15)],
    }
    assert ratios(results, "chatmesh") == {"chatmesh / litellm": {"64 × 128": 3.0}}
    assert shares(results, base) == {"chatmesh": {"256 × 128": 0.5}}
    report = tables(results, {"chatmesh": {"gateway": 2048.0}, "litellm": {"other": 1024.0}})
    assert "256 × 128 tokens, medians of 1" in report
    assert "safety_svc" in report


def test_arrivals_are_a_poisson_process_of_the_seed() -> None:
    coming = arrivals(100.0, 100.0, [0.5, 0.25, 0.25], seed=7)
    assert coming == arrivals(100.0, 100.0, [0.5, 0.25, 0.25], seed=7)
    assert coming != arrivals(100.0, 100.0, [0.5, 0.25, 0.25], seed=8)
    times = [one.at_s for one in coming]
    assert times == sorted(times)
    assert times[-1] < 100
    assert len(coming) == pytest.approx(10_000, rel=0.05)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    longer = sum(pause > 0.01 for pause in pauses) / len(pauses)
    assert longer == pytest.approx(math.exp(-1), abs=0.02)  # exponential: a share of 1/e
    askers = Counter(one.asker for one in coming)
    assert askers[0] / len(coming) == pytest.approx(0.5, abs=0.03)


def outcome(at_s: float, ended_s: float, kind: str = ANSWERED, asker: int = 0) -> Outcome:
    answer = Answer(kind, "", 128, 0.2, 0.0, ended_s - at_s, 1 if kind == OVERLOAD else None)
    return Outcome(Arrival(at_s, asker), answer, ended_s)


def test_goodput_is_what_ended_within_the_load() -> None:
    outcomes = [
        outcome(0.5, 1.0),  # while it settled
        outcome(4.0, 5.0),
        outcome(6.0, 7.0, asker=1),
        outcome(12.0, 14.0),  # after the load
        outcome(6.0, 6.02, OVERLOAD),
        outcome(6.0, 9.0, FAILED),
    ]
    found = figures(outcomes, 13.0, ["free-1", "pro-1"])
    assert found["goodput_turns_per_s"] == 0.2
    assert found["served_per_s"] == {"free-1": 0.1, "pro-1": 0.1}
    assert (found["refusals"], found["failed"], found["refusal_p99_ms"]) == (1, 1, 20.0)


def test_turns_around_a_pause() -> None:
    steady = [outcome(at / 10 - 0.1, at / 10) for at in range(1, 100)]
    touched = [outcome(9.5, 12.5), outcome(11.0, 12.6, FAILED), outcome(10.5, 10.6, OVERLOAD)]
    later = [outcome(at / 10 - 0.1, at / 10) for at in range(130, 200)]
    found = around_pause(steady + touched + later, 10.0, 2.0, 20.0)
    assert found["goodput_before_turns_per_s"] == 10.0
    counts = [found[name] for name in ("turns_touched", "recovered", "lost", "refused")]
    assert counts == [3, 1, 1, 1]
    assert found["back_after_s"] == 1.0


def test_goodput_that_never_comes_back() -> None:
    assert back_after_s([10, 10, 0, 0, 2, 30, 0, 0, 0, 9, 9, 9, 8], 10, 1.0) is None


def test_prompts_are_many_distinct_and_in_an_order_of_the_seed() -> None:
    prompts = natural()
    assert len(prompts) >= 350
    assert len({" ".join(prompt.lower().split()) for prompt in prompts}) == len(prompts)
    assert not any(prompt.strip() == "" or "\n%%" in prompt for prompt in prompts)
    drawn = list(islice(endless(3), len(prompts)))
    assert sorted(drawn) == sorted(prompts)
    assert drawn == list(islice(endless(3), len(prompts)))
    assert drawn != list(islice(endless(4), len(prompts)))


def test_no_two_prompts_begin_with_the_same_words() -> None:
    """Templates would: the prompts are to be as different as people are."""
    beginnings = Counter(" ".join(prompt.lower().split()[:6]) for prompt in natural())
    assert [some for some, count in beginnings.items() if count > 3] == []
