"""The accounts of one answer: generated = released + withheld, in text and in tokens. Pure."""

from collections import deque
from collections.abc import Sequence

from gateway.domain import FINISH_CANCELLED, FINISH_CONTENT_FILTER, Delta, Frame, Logprob

MASK = b"[redacted]"


def whole_characters(text: bytearray, size: int) -> int:
    """The largest border between two characters of UTF-8 text that is at most `size` bytes in."""
    if size >= len(text):
        return len(text)
    while size > 0 and text[size] & 0xC0 == 0x80:  # noqa: PLR2004  # 10xxxxxx: inside a character
        size -= 1
    return max(size, 0)


class Answer:
    """What a node generated of one answer, and how much of it safety cleared.

    Text waits here, as UTF-8, until an offset is cleared. Tokens count as released once the whole
    text of their frame is.
    """

    def __init__(self, choice_index: int) -> None:
        self.choice_index = choice_index
        # Output tokens in order: what another node needs to continue.
        self.token_ids: list[int] = []
        self.cached_token_count = 0
        self.released_token_count = 0
        # Why it ended; until then, why it would be said to have ended.
        self.finish_reason = FINISH_CANCELLED
        self._node_finish_reason = ""
        self._released: list[str] = []
        self._released_offset = 0
        self._waiting = bytearray()
        # (end offset, tokens, log probabilities) of each frame that is not released whole.
        self._frames: deque[tuple[int, int, Sequence[Logprob]]] = deque()

    @property
    def text(self) -> str:
        """All released text."""
        return "".join(self._released)

    @property
    def withheld_token_count(self) -> int:
        """Generated tokens that the client did not get."""
        return len(self.token_ids) - self.released_token_count

    @property
    def unreleased_byte_count(self) -> int:
        """Bytes of text that wait for safety."""
        return len(self._waiting)

    def receive(self, frame: Frame) -> None:
        """Notes what the node sent (its token ids are noted by who read them)."""
        self._waiting += frame.text.encode()
        end = self._released_offset + len(self._waiting)
        if frame.token_count or frame.logprobs:
            self._frames.append((end, frame.token_count, frame.logprobs))
        if frame.finish_reason:
            self._node_finish_reason = frame.finish_reason
            self.cached_token_count = frame.cached_token_count

    def release(self, offset: int) -> Delta | None:
        """Releases the text up to `offset` (bytes of the whole answer); None when that is none.

        An offset inside a character is taken as the start of that character; one past what was
        received as its end.
        """
        size = whole_characters(self._waiting, offset - self._released_offset)
        text = self._waiting[:size].decode()
        if text:
            del self._waiting[:size]
            self._released_offset += size
            self._released.append(text)
        logprobs = self._release_frames()
        if not text and not logprobs:
            return None
        return Delta(self.choice_index, text, self.released_token_count, logprobs)

    def clear(self, masks: Sequence[tuple[int, int]] = ()) -> Delta | None:
        """Releases all that is left and takes over the node's reason, if it came to one.

        `masks` are spans in bytes of the whole answer; what of them has not left is masked.
        """
        self.finish_reason = self._node_finish_reason or FINISH_CANCELLED
        if masks:
            self._mask(masks)
        return self.release(self._released_offset + len(self._waiting))

    def block(self) -> None:
        """Withholds what was not released, for good."""
        self.finish_reason = FINISH_CONTENT_FILTER
        self._waiting.clear()
        self._frames.clear()

    def _mask(self, masks: Sequence[tuple[int, int]]) -> None:
        border = 0
        kept = bytearray()
        for start, end in sorted(masks):
            begin = whole_characters(self._waiting, start - self._released_offset)
            if end > start and end > self._released_offset + border:
                kept += self._waiting[border : max(begin, border)] + MASK
                border = whole_characters(self._waiting, end - self._released_offset)
        self._waiting = kept + self._waiting[border:]
        # Their log probabilities would tell what is masked; their count is still released.
        end = self._released_offset + len(self._waiting)
        self._frames = deque((end, count, ()) for _, count, _ in self._frames)

    def _release_frames(self) -> Sequence[Logprob]:
        logprobs: list[Logprob] = []
        while self._frames and self._frames[0][0] <= self._released_offset:
            _, token_count, found = self._frames.popleft()
            self.released_token_count += token_count
            logprobs += found
        return logprobs
