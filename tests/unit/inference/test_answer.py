"""Text, stop strings, ends: a function of the tokens, however they are batched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import FinishReason, StopRule
from inference_svc.engine.vocabulary import Vocabulary

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], frozenset({256}), "")
EOS = 256


def run(data: bytes, rule: StopRule) -> tuple[str, AnswerState]:
    answer = AnswerState(rule, BYTES)
    text = ""
    for token_id in data:
        text += answer.push(token_id)
        if answer.finish:
            return text + answer.finish.text, answer
    return text, answer


def rule(*strings: str, limit: int = 1000) -> StopRule:
    return StopRule(limit, frozenset({EOS}), strings)


def test_stop_string_over_many_tokens_is_cut_and_named() -> None:
    text, answer = run(b"abc STOP def", rule("STOP"))
    assert text == "abc "
    assert answer.finish is not None
    assert (answer.finish.reason, answer.finish.stop_string) == (FinishReason.STOP, "STOP")
    assert answer.token_count == len("abc STOP")


def test_a_start_that_leads_nowhere_is_released() -> None:
    answer = AnswerState(rule("STOP"), BYTES)
    pieces = [answer.push(byte) for byte in b"STOx"]
    assert pieces == ["", "", "", "STOx"]


def test_leftmost_stop_wins_and_the_longer_at_one_place() -> None:
    assert run(b"xxab", rule("ab", "b"))[0] == "xx"
    text, answer = run(b"one", rule("z", "on"))
    assert (text, answer.finish and answer.finish.stop_string) == ("", "on")


def test_end_of_sequence_releases_what_was_held() -> None:
    answer = AnswerState(rule("STOP"), BYTES)
    assert answer.push(ord("S")) == ""
    assert answer.push(EOS) == ""
    assert answer.finish is not None
    assert (answer.finish.reason, answer.finish.text) == (FinishReason.STOP, "S")
    assert answer.token_count == 2


def test_length_ends_and_half_a_character_is_shown_as_replacement() -> None:
    text, answer = run("aé".encode()[:2] + b"rest", rule(limit=2))
    assert text == "a\ufffd"
    assert answer.finish is not None
    assert answer.finish.reason is FinishReason.LENGTH


def test_replay_ends_at_once_when_the_answer_had_ended() -> None:
    answer = AnswerState(rule("STOP", limit=3), BYTES)
    answer.replay(b"abc")
    assert answer.finish is not None
    assert answer.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize("cut", range(12))
def test_continuation_stands_where_the_first_attempt_stood(cut: int) -> None:
    data = "añ STO STOP".encode()
    first = AnswerState(rule("STOP"), BYTES)
    sent = "".join(first.push(byte) for byte in data[:cut])
    second = AnswerState(rule("STOP"), BYTES)
    second.replay(data[:cut])
    rest = "" if second.finish else run_on(second, data[cut:])
    assert sent + rest == "añ STO "
    assert second.token_count == len(data)


def run_on(answer: AnswerState, data: bytes) -> str:
    text = ""
    for byte in data:
        text += answer.push(byte)
        if answer.finish:
            return text + answer.finish.text
    return text


@given(
    data=st.lists(st.sampled_from([*b"STOP e\xc3\xa9\xe2\x82\xac\xff", EOS]), max_size=60),
    stops=st.lists(st.sampled_from(["STOP", "OP e", "é", "€", "S"]), max_size=3, unique=True),
    limit=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_runs_of_any_size_say_the_same(data, stops, limit, cuts) -> None:
    one = AnswerState(rule(*stops, limit=limit), BYTES)
    alone = ""
    for token_id in data:
        if one.finish:
            break
        alone += one.push(token_id)
    many = AnswerState(rule(*stops, limit=limit), BYTES)
    text, taken, at = "", 0, 0
    while at < len(data) and many.finish is None:
        size = cuts[taken % len(cuts)]
        kept, piece = many.push_run(data[at : at + size])
        text, at, taken = text + piece, at + len(kept), taken + 1
    assert (text, many.finish, many.token_count) == (alone, one.finish, one.token_count)
