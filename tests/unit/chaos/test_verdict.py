"""The judge sees what it is there for: a byte too few or twice, a token billed twice, a hang."""

from dataclasses import replace

import pytest

from tests.chaos import documented, verdict
from tests.chaos.schedule import Blow
from tests.chaos.verdict import Answer, Choice, Outcome, Seen, Struck, Usage

TEXT = "The sea is wide and deep."
ANSWER = Answer((Choice(TEXT, "stop", ("The", " sea")),), 7, 6)
OTHER = Answer((Choice("One.", "stop"), Choice("Two.", "length")), 5, 4)
REFERENCES = {0: (ANSWER,), 1: (OTHER, ANSWER)}
ACCOUNTS = {"stream": "a", "conversation": "b"}
ALLOWED = {"postgres": frozenset({(503, "service_unavailable")}), "gateway": frozenset()}
GOOD = Outcome(0, "stream", 10.0, 12.0, (ANSWER,))
TALK = Outcome(1, "conversation", 11.0, 14.0, (OTHER, ANSWER))


def struck(kind, at_s, pause_s=0.0):
    return Struck(Blow(at_s, kind, f"{kind}-1", pause_s), at_s)


def with_text(text):
    choice = replace(ANSWER.choices[0], text=text)
    return replace(GOOD, answers=(replace(ANSWER, choices=(choice,)),))


def laws(violations):
    return [one.law for one in violations]


def test_an_equal_answer_is_right():
    assert verdict.wrong_answers(REFERENCES, [GOOD, TALK]) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.replace("i", "", 1), "24 characters instead of 25"),  # missing
        (TEXT.replace("s", "ss", 1), "26 characters instead of 25"),  # doubled
        (TEXT[:-1], "other from 24 on"),  # the last one missing
        (TEXT + TEXT, "other from 25 on"),  # said twice
        (TEXT.replace("wide", "edwi"), "25 characters instead of 25"),  # in another order
        ("", "0 characters"),
    ],
)
def test_a_byte_that_is_missing_or_doubled_or_misplaced_is_seen(text, says):
    (found,) = verdict.wrong_answers(REFERENCES, [with_text(text)])
    assert found.law == "bytes"
    assert says in found.detail


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (replace(ANSWER, choices=(Choice(TEXT, "length", ("The", " sea")),)), "'length'"),
        (replace(ANSWER, choices=(Choice(TEXT, "stop", ("The",)),)), "1 log prob"),
        (replace(ANSWER, choices=(*ANSWER.choices, *ANSWER.choices)), "2 answers instead of 1"),
        (replace(ANSWER, completion_token_count=7), "7 + 7 tokens instead of 7 + 6"),
        (replace(ANSWER, prompt_token_count=8), "8 + 6 tokens instead of 7 + 6"),
    ],
)
def test_other_differences_are_seen(answer, says):
    (found,) = verdict.wrong_answers(REFERENCES, [replace(GOOD, answers=(answer,))])
    assert found.law == "bytes"
    assert says in found.detail


def test_a_conversation_without_its_second_turn_is_seen():
    (found,) = verdict.wrong_answers(REFERENCES, [replace(TALK, answers=(OTHER,))])
    assert "1 turns instead of 2" in found.detail


def test_a_client_without_an_answer_is_seen():
    failed = replace(GOOD, answers=(), failure="TurnError: 404 turn_not_found")
    (found,) = verdict.wrong_answers(REFERENCES, [failed])
    assert found.law == "failed"
    assert "turn_not_found" in found.detail


def test_answers_that_safety_cuts_are_not_compared():
    cut = Answer((Choice("The", "content_filter"),), 7, 3)
    assert verdict.comparable({**REFERENCES, 2: (cut,), 3: (ANSWER, cut)}) == REFERENCES


def test_the_ledger_that_has_every_turn_once_is_right():
    expected = verdict.expected_usage(REFERENCES, [GOOD, GOOD, TALK], ACCOUNTS)
    assert expected == {"a": Usage(14, 12, 2), "b": Usage(12, 10, 2)}
    assert verdict.wrong_ledger(expected, dict(expected)) == []


@pytest.mark.parametrize(
    "found",
    [
        Usage(14, 13, 2),  # one token twice
        Usage(14, 11, 2),  # one token lost
        Usage(21, 18, 3),  # a whole turn twice
        Usage(7, 6, 1),  # a turn lost
        Usage(14, 12, 3),  # the tokens of two turns, on three
        Usage(21, 12, 2),  # a prompt twice
    ],
)
def test_a_ledger_that_is_off_by_one_token_is_seen(found):
    expected = verdict.expected_usage(REFERENCES, [GOOD, GOOD, TALK], ACCOUNTS)
    (violation,) = verdict.wrong_ledger(expected, {**expected, "a": found})
    assert violation.law == "ledger"
    assert "account a" in violation.detail


def test_an_account_without_any_usage_is_seen():
    expected = verdict.expected_usage(REFERENCES, [GOOD], ACCOUNTS)
    assert laws(verdict.wrong_ledger(expected, {})) == ["ledger"]


def met(at_s, status, code):
    return [replace(GOOD, troubles=(Seen(at_s, status, code),))]


def test_a_documented_status_after_its_blow_is_no_violation():
    blows = [struck("gateway", 5.0), struck("postgres", 10.0)]
    outcomes = met(11.0, 503, "service_unavailable")
    assert verdict.wrong_statuses(outcomes, blows, ALLOWED) == []


@pytest.mark.parametrize(
    ("trouble", "blows"),
    [
        ((11.0, 503, "service_unavailable"), [struck("gateway", 10.0)]),  # not of a gateway
        ((11.0, 503, "overloaded"), [struck("postgres", 10.0)]),  # another code
        ((11.0, 500, "service_unavailable"), [struck("postgres", 10.0)]),  # another status
        ((9.0, 503, "service_unavailable"), [struck("postgres", 10.0)]),  # before the blow
        ((26.0, 503, "service_unavailable"), [struck("postgres", 10.0)]),  # long after it
        ((11.0, 503, "service_unavailable"), []),  # for no reason
        ((11.0, 404, "turn_not_found"), [struck("postgres", 10.0)]),
    ],
)
def test_an_unexpected_status_is_seen(trouble, blows):
    (found,) = verdict.wrong_statuses(met(*trouble), blows, ALLOWED)
    assert found.law == "status"
    assert f"{trouble[1]} {trouble[2]}" in found.detail


def test_what_follows_a_pause_counts_from_its_end():
    late = met(26.0, 503, "service_unavailable")
    assert verdict.wrong_statuses(late, [struck("postgres", 10.0, 3.0)], ALLOWED) == []


def test_a_reconnect_is_no_violation_and_is_counted():
    outcomes = met(11.0, 0, "ConnectionResetError") + met(12.0, 503, "overloaded")
    assert len(verdict.wrong_statuses(outcomes, [], ALLOWED)) == 1
    assert verdict.statuses(outcomes) == {"cut (ConnectionResetError)": 1, "503 overloaded": 1}


@pytest.mark.parametrize(
    ("begin_s", "end_s", "is_hung"),
    [
        (10, 30, False),
        (10, 159, False),  # 59 s after the last blow
        (10, 161, True),
        (120, 181, True),  # began after the last blow
        (10, 99, False),  # long, but struck again and again
    ],
)
def test_a_hang_is_seen(begin_s, end_s, is_hung):
    one = replace(GOOD, begin_s=begin_s, end_s=end_s)
    found = verdict.hung([one], last_blow_s=100, bound_s=60)
    assert laws(found) == (["hang"] if is_hung else [])


def test_the_gap_is_the_longest_silence_of_any_client_around_a_kill():
    outcomes = [
        replace(GOOD, silences=((9.8, 10.3), (40.0, 45.0))),  # begun before the kill
        replace(GOOD, silences=((10.2, 11.4),)),  # begun right after it
        replace(GOOD, silences=((10.8, 19.0),)),  # begun too late to be its doing
        replace(GOOD, silences=((5.0, 9.9),)),  # over before
    ]
    blows = [struck("gateway", 10.0), struck("gateway", 100.0), struck("envoy", 40.0, 2.0)]
    found = verdict.gaps(outcomes, blows)
    assert [round(gap, 3) for gap in found.by_kind["gateway"]] == [1.2, 0.0]
    assert round(found.worst("gateway"), 3) == 1.2
    assert found.median("envoy") is None  # paused, not killed


def test_gaps_over_their_targets_are_seen():
    found = verdict.Gaps({"gateway": [0.2, 1.1, 1.2], "envoy": [0.5, 0.6, 9.0], "redis": [9.0]})
    (violation,) = verdict.too_slow(found)
    assert violation.law == "gap"
    assert "gateway: 1.10 s" in violation.detail


# -- what is documented ----------------------------------------------------------------------


def test_the_table_is_read():
    text = """
    | `gateway` | none | | no |
    | `redis` | 503 | `service_unavailable` | why |
    | `redis` | 504 | `timeout` | why |
    """
    assert documented.parse(text) == {
        "gateway": frozenset(),
        "redis": {(503, "service_unavailable"), (504, "timeout")},
    }
    with pytest.raises(ValueError, match="name the code"):
        documented.parse("| `redis` | 503 | | why |")


def test_every_kind_of_process_is_documented_and_promises_what_it_must():
    table = documented.load()
    assert set(table) == {
        "gateway", "envoy", "edge", "control", "inference", "tokenizer", "safety", "billing",
        "conversation", "postgres", "redis",
    }  # fmt: skip
    for kind in ("gateway", "envoy", "edge", "control", "inference"):
        assert not table[kind], f"the death of {kind} must cost nobody a status"
    for pairs in table.values():
        assert all(status in (503, 504) for status, _ in pairs)
