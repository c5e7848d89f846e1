"""What may be stored, how threads are titled, which messages a turn gets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversation_svc import statements
from conversation_svc.thread import (
    ANSWER_BYTE_COUNT_MAX,
    CONTENT_BYTE_COUNT_MAX,
    MADE_TITLE_CHARACTER_COUNT_MAX,
    ROLE_SYSTEM,
    BadRequestError,
    Message,
    NewMessage,
    Tail,
    Thread,
    ThreadNotFoundError,
    appended,
    check_name,
    check_new_messages,
    check_thread_id,
    checked_title,
    content_digest,
    is_thread_id,
    message_parts,
    selected,
    title_of,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
THREAD = Thread("thr_01ARZ3NDEKTSV4RRFFQ69G5FAV", "", "m", NOW, NOW)


def new(role: int = 2, content: str = "x", tokens: int = 1) -> NewMessage:
    return NewMessage(role, content, tokens, "", "")


def stored(roles: list[int], tokens: list[int], content: str = "x") -> tuple[Message, ...]:
    return tuple(
        Message(f"msg_{i}", role, content, token_count, "t", NOW, "", "")
        for i, (role, token_count) in enumerate(zip(roles, tokens, strict=True))
    )


@settings(deadline=None)
@given(st.text())
def test_titles_are_one_short_line_of_the_message(text: str) -> None:
    title = title_of([new(1, "system"), new(2, text)])
    assert len(title) <= MADE_TITLE_CHARACTER_COUNT_MAX
    assert title == " ".join(title.split())
    assert "\0" not in title
    line = " ".join("".join(" " if category(c) == "Cc" else c for c in text).split())
    assert title == line or line.startswith(title.removesuffix("…"))


def test_titles_are_cut_at_a_word() -> None:
    assert title_of([new(2, "How do I   bake\nbread?")]) == "How do I bake bread?"
    title = title_of([new(2, "word " * 40)])
    assert title == "word " * 15 + "word…"
    assert title_of([new(2, "w" * 200)]) == "w" * 79 + "…"
    assert title_of([new(3, "an answer")]) == ""
    assert title_of([new(2, " "), new(2, "second")]) == "second"


def test_appending_counts_and_keeps_time_forward() -> None:
    thread = replace(THREAD, message_count=2, total_token_count=5)
    messages = [new(2, "Hello", 3), new(3, "Hi", 4)]
    changed, added = appended(
        thread, messages, ["a", "b"], turn_id="turn", model="n", now=NOW - timedelta(hours=1)
    )
    assert (changed.message_count, changed.total_token_count) == (4, 12)
    assert (changed.title, changed.model, changed.update_time) == ("Hello", "n", NOW)
    assert [(m.id, m.turn_id, m.create_time) for m in added] == [
        ("a", "turn", NOW),
        ("b", "turn", NOW),
    ]
    kept, _ = appended(
        replace(thread, title="Mine"), messages, ["a", "b"], turn_id="t", model="", now=NOW
    )
    assert (kept.title, kept.model) == ("Mine", "m")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=30),
    st.integers(0, 120),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_selected_is_the_longest_newest_run_that_fits(
    drawn: list[tuple[int, int]], token_max: int, message_max: int, omitted: int
) -> None:
    roles, tokens = [role for role, _ in drawn], [count for _, count in drawn]
    messages = stored(roles, tokens)
    tail = Tail(replace(THREAD, message_count=len(messages) + omitted), messages)
    answer = selected(tail, token_max, message_max, is_all_there_is=True)
    assert answer is not None
    system = [m for m in messages if m.role == ROLE_SYSTEM]
    others = [m for m in messages if m.role != ROLE_SYSTEM]
    kept = [m for m in answer.messages if m.role != ROLE_SYSTEM]
    assert [m for m in answer.messages if m.role == ROLE_SYSTEM] == system
    assert kept == others[len(others) - len(kept) :]
    assert list(answer.messages) == [m for m in messages if m in answer.messages]
    assert answer.omitted_message_count == omitted + len(others) - len(kept)

    def fits(run: list[Message]) -> bool:
        all_tokens = sum(m.token_count for m in [*system, *run])
        return len(system) + len(run) <= message_max and (not token_max or all_tokens <= token_max)

    assert not kept or fits(kept)
    if len(kept) < len(others):
        assert not fits(others[len(others) - len(kept) - 1 :])
    partial = selected(tail, token_max, message_max, is_all_there_is=False)
    more_would_help = len(kept) == len(others) and len(system) + len(kept) < message_max
    assert (partial is None) == (omitted > 0 and more_would_help)


def test_an_answer_is_bounded_by_bytes_but_never_empty() -> None:
    messages = stored([2] * 5, [1] * 5, "x" * CONTENT_BYTE_COUNT_MAX)
    tail = Tail(replace(THREAD, message_count=5), messages)
    answer = selected(tail, 0, 100, is_all_there_is=True)
    assert answer is not None
    assert len(answer.messages) == ANSWER_BYTE_COUNT_MAX // CONTENT_BYTE_COUNT_MAX
    assert answer.omitted_message_count == 2


def field_of(call: object) -> str:
    with pytest.raises(BadRequestError) as caught:
        call()  # type: ignore[operator]
    return caught.value.field


def test_limits() -> None:
    assert field_of(lambda: check_new_messages([])) == "messages"
    assert field_of(lambda: check_new_messages([new()] * 257)) == "messages"
    assert field_of(lambda: check_new_messages([new(), new(0)])) == "messages[1].role"
    assert field_of(lambda: check_new_messages([new(5)])) == "messages[0].role"
    long = "ä" * (CONTENT_BYTE_COUNT_MAX // 2)
    check_new_messages([new(2, long)])
    assert field_of(lambda: check_new_messages([new(2, long + "x")])) == "messages[0].content"
    bad = replace(new(), finish_reason="a\0b")
    assert field_of(lambda: check_new_messages([bad])) == "messages[0].finish_reason"
    assert field_of(lambda: check_name("account_id", "")) == "account_id"
    assert field_of(lambda: check_name("model", "m" * 201)) == "model"
    assert field_of(lambda: check_name("request_id", "a\0")) == "request_id"
    assert field_of(lambda: checked_title("t" * 201)) == "title"
    assert field_of(lambda: checked_title(" \n\0")) == "title"
    assert checked_title(" a\n b\0") == "a b"


@pytest.mark.parametrize("text", ["", "thr_", "thr_" + "0" * 25, "thr_" + "8" * 26, "x", "thr_\0"])
def test_what_is_no_thread_id_is_not_found(text: str) -> None:
    assert not is_thread_id(text)
    with pytest.raises(ThreadNotFoundError):
        check_thread_id(text)


@settings(deadline=None)
@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_digests_tell_requests_apart(left: list[str], right: list[str]) -> None:
    assert (content_digest(*left) == content_digest(*right)) == (left == right)


def test_every_field_of_a_message_counts() -> None:
    base = NewMessage(2, "x", 1, "stop", "m")
    others = [replace(base, role=3), replace(base, content="y"), replace(base, token_count=2)]
    others += [replace(base, finish_reason="length"), replace(base, model="n")]
    assert len({content_digest(*message_parts([m])) for m in [base, *others]}) == 6


@settings(deadline=None)
@given(st.text(st.sampled_from("\0\x1a01ab")) | st.text())
def test_any_text_fits_a_column(text: str) -> None:
    escaped = statements._escaped(text)
    assert "\0" not in escaped
    assert statements._unescaped(escaped) == text
