"""One streamed answer, read from the bytes of a connection with next to no work for each byte.

It looks for the first token, for pauses, and at the end for what proves a whole answer: a reason to
finish, the usage, `[DONE]` and the last chunk. Tokens are counted from the usage, never from
events: one event may carry several tokens.
"""

import re
from dataclasses import dataclass

ANSWERED = "answered"
POLICY = "refused by policy"
OVERLOAD = "refused by overload"
FAILED = "failed"

TAIL_BYTE_COUNT = 2_048
HTTP_OK = 200
HTTP_TOO_MANY = 429
# Codes with which a server says that it could, but does not now.
OVERLOAD_CODES = frozenset({"overloaded", "rate_limit_exceeded", "429"})
POLICY_CODE = "content_filter"

_CONTENT = re.compile(rb'"content": ?"[^"]')
_FINISH = re.compile(rb'"finish_reason": ?"(\w+)"')
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_ERROR = re.compile(rb'"error": ?\{')
_CODE = re.compile(rb'"code": ?"(\w+)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request.

    Attributes:
        kind: ANSWERED only when the whole answer arrived and its usage says so.
        detail: the status and code of a refusal, the reason of a failure; "" when answered.
        token_count: completion tokens of the usage.
        first_s: seconds from the sent request to the first content; 0 without content.
        gap_s: the longest pause between two arrivals of events after that.
        seconds: from the sent request to the end.
        retry_after_s: what a refusal asks to wait, if it does.
        body: of a response of known length that is no refusal; b"" of streams.
    """

    kind: str
    detail: str = ""
    token_count: int = 0
    first_s: float = 0.0
    gap_s: float = 0.0
    seconds: float = 0.0
    retry_after_s: int | None = None
    body: bytes = b""


class Reply:
    """The bytes of one response as they come.

    Args:
        sent_s: when the request was sent, of the clock that `feed` is told.
        token_count: tokens of a whole answer; None: as many as its usage says.
    """

    def __init__(self, sent_s: float, token_count: int | None) -> None:
        self._sent_s, self._expected = sent_s, token_count
        self._status, self._byte_count, self._retry_after_s = 0, -1, -1
        self._tail = b""
        self._first_s = self._last_s = self._gap_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether there was a first token."""
        return self._first_s > 0

    def feed(self, data: bytes, now_s: float) -> bool:
        """Takes bytes; True: the response is complete."""
        if not self._status:
            head, end, data = (self._tail + data).partition(b"\r\n\r\n")
            if not end:
                self._tail = head
                return False
            self._read_head(head)
        seen = self._tail + data
        if self._byte_count >= 0:
            self._tail = seen
            return len(seen) >= self._byte_count
        if not self._first_s:
            if _CONTENT.search(seen):
                self._first_s, self._last_s = now_s - self._sent_s, now_s
        elif b"data:" in data:  # a heartbeat is a comment, not progress
            self._gap_s, self._last_s = max(self._gap_s, now_s - self._last_s), now_s
        self._tail = seen[-TAIL_BYTE_COUNT:]
        return seen.endswith(_LAST_CHUNK)

    def _read_head(self, head: bytes) -> None:
        self._status, self._tail = int(head.split(b" ", 2)[1]), b""
        if length := _LENGTH.search(head):
            self._byte_count = int(length[1])
        if wait := _RETRY_AFTER.search(head):
            self._retry_after_s = int(wait[1])

    def answer(self, now_s: float) -> Answer:
        """What it was; only after `feed` returned True."""
        kind, detail, tokens = self._judged()
        wait = self._retry_after_s if self._retry_after_s >= 0 else None
        body = self._tail if self._byte_count >= 0 and self._status == HTTP_OK else b""
        return Answer(
            kind, detail, tokens, self._first_s, self._gap_s, now_s - self._sent_s, wait, body
        )

    def failure(self, detail: str, now_s: float) -> Answer:
        """The answer of a response that never became complete."""
        return Answer(FAILED, detail, 0, self._first_s, self._gap_s, now_s - self._sent_s)

    def _judged(self) -> tuple[str, str, int]:
        if self._status != HTTP_OK or _ERROR.search(self._tail):
            return (*self._refused(), 0)
        finish, usage = _FINISH.findall(self._tail), _USAGE.findall(self._tail)
        tokens = int(usage[-1]) if usage else 0
        if finish and finish[-1].decode() == POLICY_CODE:
            return POLICY, "in the answer", tokens
        if not (finish and tokens and b"[DONE]" in self._tail):
            return FAILED, "no whole answer", tokens
        if self._expected not in (None, tokens):
            return FAILED, f"{tokens} of {self._expected} tokens", tokens
        return ANSWERED, "", tokens

    def _refused(self) -> tuple[str, str]:
        found = _CODE.search(self._tail)
        code = found[1].decode() if found else "without a code"
        if code == POLICY_CODE:
            return POLICY, "at the prompt" if self._status != HTTP_OK else "in the answer"
        overload = code in OVERLOAD_CODES or (self._status == HTTP_TOO_MANY and not found)
        return OVERLOAD if overload else FAILED, f"{self._status} {code}"
