"""generated = released + withheld, whatever the frames and the offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turn.answer import Answer, Mask
from gateway.turn.domain import ChoiceFinished, Frame, Logprob

FRAMES = st.lists(st.tuples(st.text(max_size=5), st.integers(0, 3)), max_size=12)


def received(answer: Answer, text: str, tokens: int = 1, **more) -> None:
    answer.receive(Frame(range(tokens), text, **more))


@given(FRAMES, st.lists(st.integers(0, 80)), st.booleans())
def test_conservation(frames, offsets, blocked):
    answer, shown = Answer(0), []
    whole = "".join(text for text, _ in frames)
    for text, tokens in frames:
        received(answer, text, tokens)
        if offsets and (delta := answer.release(offsets.pop())):
            shown.append(delta.text)
        assert answer.released_token_count + answer.unreleased_token_count == len(answer.token_ids)
        assert whole.startswith("".join(shown))
    if blocked:
        answer.block()
        assert answer.finish_reason == "content_filter"
        assert answer.clear() is None
    else:
        answer.receive(Frame(finish_reason="stop"))
        if delta := answer.clear():
            shown.append(delta.text)
        assert "".join(shown) == whole
        assert answer.withheld_token_count == 0
        assert answer.finish_reason == "stop"
    assert answer.text == "".join(shown)


def test_an_offset_inside_a_character_releases_less():
    answer = Answer(1)
    received(answer, "aé✓")
    assert answer.release(2).text == "a"
    assert answer.release(3).text == "é"
    assert answer.release(5) is None
    assert answer.release(6).text == "✓"


def test_tokens_count_once_their_frame_is_out_and_bring_their_log_probabilities():
    answer = Answer(0)
    found = [Logprob(b"ab", -1.0)]
    received(answer, "ab", 1, logprobs=found)
    received(answer, "", 1)
    received(answer, "cd", 2)
    first = answer.release(1)
    assert (first.text, first.token_count, list(first.logprobs)) == ("a", 0, [])
    second = answer.release(2)
    assert (second.text, second.token_count, list(second.logprobs)) == ("b", 2, found)
    assert answer.release(4).token_count == 4


def test_a_reader_is_told_of_tokens_as_their_text_leaves():
    answer = Answer(0)
    words = " one two three four five six seven eight nine ten"
    received(answer, "Hello", 1)
    received(answer, words, 10)
    told = [answer.release(offset).token_count for offset in (5, 25, 45)]
    assert told == [1, 1 + 4, 1 + 8]  # not 1, 1, 1
    assert answer.released_token_count == 1  # accounts are kept in whole frames
    # What is withheld in the end was never told of, and nothing that was is taken back.
    safe = answer.block("violence", 45, "No.")
    assert safe.token_count == told[-1]


@given(FRAMES, st.lists(st.integers(0, 80)))
def test_what_a_reader_is_told_rises_and_never_passes_what_was_generated(frames, offsets):
    answer, told = Answer(0), [0]
    for text, tokens in frames:
        received(answer, text, tokens)
        if offsets and (delta := answer.release(offsets.pop())):
            told.append(delta.token_count)
            assert told[-1] <= len(answer.token_ids)
    answer.receive(Frame(finish_reason="stop"))
    if delta := answer.clear():
        assert delta.token_count == len(answer.token_ids)
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("masks", "rest"),
    [
        ([(6, 8)], "56[redacted]90é"),
        ([(0, 4)], "567890é"),
        ([(0, 5)], "[redacted]67890é"),
        ([(7, 8), (5, 6)], "5[redacted]7[redacted]90é"),
        ([(5, 8), (6, 7)], "5[redacted]90é"),
        ([(10, 99)], "567890[redacted]"),
        ([(11, 12)], "567890[redacted]"),
        ([(3, 3)], "567890é"),
    ],
)
def test_masks_cover_what_has_not_left(masks, rest):
    answer = Answer(0)
    received(answer, "1234567890é", 3, logprobs=[Logprob(b"x", -1.0)])
    answer.release(4)
    delta = answer.clear([Mask(start, end) for start, end in masks])
    assert delta.text == rest
    assert (delta.token_count, list(delta.logprobs)) == (3, [])


def test_masks_come_with_their_release_and_hide_log_probabilities():
    answer = Answer(0)
    seen, hidden, after = Logprob(b"see ", -1.0), Logprob(b"a@b.de", -2.0), Logprob(b" now", -3.0)
    for token in (seen, hidden, after):
        received(answer, token.text.decode(), 1, logprobs=[token])
    assert answer.release(4).text == "see "
    masked = answer.release(10, [Mask(4, 10, "[email]")])
    assert (masked.text, masked.token_count, list(masked.logprobs)) == ("[email]", 2, [])
    assert answer.release(14).logprobs == [after]
    assert answer.text == "see [email] now"


def test_a_blocked_answer_may_end_with_a_safe_text():
    answer = Answer(0)
    received(answer, "Well, bad", 2)
    answer.release(5)
    delta = answer.block("violence", 6, "Let us talk about something else.")
    assert delta.text == "\n\nLet us talk about something else."
    assert answer.finish() == ChoiceFinished(0, "content_filter", "violence", 6)
    assert answer.release(9) is None


def test_offsets_never_fall_back():
    answer = Answer(0)
    received(answer, "abc")
    assert answer.release(2).text == "ab"
    assert answer.release(1) is None
    assert answer.release(99).text == "c"
