"""The load client's reader: what counts as an answer, and where its times come from."""

import json

import pytest

from tests.bench import mock_openai
from tests.bench.reply import ANSWERED, FAILED, OVERLOAD, POLICY, Answer, Reply


def streamed(*, tokens: int = 2, finish: str | None = "length", done: bool = True) -> bytes:
    """An answer of three words whose usage says `tokens`."""
    events = [mock_openai.FIRST, *mock_openai.TOKENS[:3]]
    if finish:
        events.append(mock_openai.delta({}, finish))
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
        events.append(mock_openai.event([], usage))
    if done:
        events.append(mock_openai.framed(b"data: [DONE]\n\n"))
    return mock_openai.HEAD + b"".join(events) + b"0\r\n\r\n"


def refused(status: str, code: str, *headers: str) -> bytes:
    body = json.dumps({"error": {"message": "No.", "code": code}}).encode()
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read(data: bytes, expected: int | None = 2, piece: int = 0) -> Answer:
    """Reads all of it in pieces of so many bytes, a second from one to the next."""
    reply, now_s, piece = Reply(0.0, expected), 0.0, piece or len(data)
    for at in range(0, len(data), piece):
        now_s += 1.0
        complete = reply.feed(data[at : at + piece], now_s)
        assert complete == (at + piece >= len(data))
    return reply.answer(now_s)


@pytest.mark.parametrize("piece", [1, 2, 7, 100, 0])
def test_a_whole_answer_is_one_however_it_is_cut(piece: int) -> None:
    answer = read(streamed(), piece=piece)
    assert (answer.kind, answer.token_count) == (ANSWERED, 2)


@pytest.mark.parametrize(
    "cut",
    [{"finish": None}, {"done": False}, {"tokens": 3}, {"tokens": 0}],
)
def test_an_answer_counts_only_when_whole(cut: dict[str, object]) -> None:
    assert read(streamed(**cut)).kind == FAILED


def test_any_number_of_tokens_is_whole_where_the_engine_ends_answers() -> None:
    assert read(streamed(tokens=3, finish="stop"), expected=None).kind == ANSWERED


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("400 Bad Request", "content_filter", POLICY),
        ("503 Service Unavailable", "overloaded", OVERLOAD),
        ("429 Too Many Requests", "rate_limit_exceeded", OVERLOAD),
        ("429 Too Many Requests", "insufficient_quota", FAILED),
        ("503 Service Unavailable", "service_unavailable", FAILED),
        ("504 Gateway Timeout", "timeout", FAILED),
    ],
)
def test_refusals_by_kind(status: str, code: str, kind: str) -> None:
    assert read(refused(status, code), piece=5).kind == kind


def test_a_refusal_keeps_its_status_code_and_wait() -> None:
    answer = read(refused("503 Service Unavailable", "overloaded", "Retry-After: 3"))
    assert (answer.detail, answer.retry_after_s) == ("503 overloaded", 3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("content_filter", POLICY), ("overloaded", OVERLOAD), ("service_unavailable", FAILED)],
)
def test_an_error_in_the_stream(code: str, kind: str) -> None:
    error = mock_openai.framed(b'data: {"error": {"code": "%s"}}\n\n' % code.encode())
    data = mock_openai.HEAD + mock_openai.FIRST + mock_openai.TOKENS[0] + error + b"0\r\n\r\n"
    assert read(data).kind == kind


def test_an_answer_that_the_policy_ends() -> None:
    assert read(streamed(finish="content_filter")).kind == POLICY


def test_times_of_the_first_token_and_of_the_longest_pause() -> None:
    reply = Reply(10.0, 2)
    role, first, second = mock_openai.FIRST, mock_openai.TOKENS[0], mock_openai.TOKENS[1]
    ping = mock_openai.framed(b": ping\n\n")
    rest = streamed()[len(mock_openai.HEAD + role + b"".join(mock_openai.TOKENS[:3])) :]
    for now_s, data in (
        (11.0, mock_openai.HEAD + role),  # a role is no token
        (12.0, first),
        (12.5, second),
        (14.0, ping),  # a ping is no progress
        (17.5, mock_openai.TOKENS[2]),
    ):
        assert not reply.feed(data, now_s)
    assert reply.feed(rest, 18.0)
    answer = reply.answer(18.0)
    assert (answer.first_s, answer.gap_s, answer.seconds) == (2.0, 5.0, 8.0)


def test_the_body_of_a_short_answer() -> None:
    data = b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"output_tokens": 7}'
    assert read(data[:-1] + b"", piece=3).body == b'{"output_tokens": 7'
