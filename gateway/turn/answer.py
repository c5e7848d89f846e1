"""The accounts of one answer: generated = released + withheld, in text and in tokens. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gateway.turn.domain import (
    FINISH_CANCELLED,
    FINISH_CONTENT_FILTER,
    ChoiceFinished,
    Delta,
    Frame,
    Logprob,
)

MASK = "[redacted]"


class Mask(NamedTuple):
    """A span in bytes of the generated text, and what stands there instead."""

    start: int
    end: int
    replacement: str = MASK


class _Held(NamedTuple):
    """A frame that is not released whole: its span in bytes, its tokens."""

    start: int
    end: int
    token_count: int
    logprobs: Sequence[Logprob]


def whole_characters(text: bytearray, size: int) -> int:
    """The largest border between two characters of UTF-8 text that is at most `size` bytes in."""
    if size >= len(text):
        return len(text)
    while size > 0 and text[size] & 0xC0 == 0x80:  # noqa: PLR2004  # 10xxxxxx: inside a character
        size -= 1
    return max(size, 0)


class Answer:
    """What a node generated of one answer, and how much of it safety cleared.

    Text waits here, as UTF-8, until an offset is cleared; offsets count what was generated, not
    what stands in the place of masked text. Tokens count as released once the whole text of their
    frame is.
    """

    def __init__(self, choice_index: int) -> None:
        self.choice_index = choice_index
        # Output tokens in order: what another node needs to continue.
        self.token_ids: list[int] = []
        self.cached_token_count = 0
        self.released_token_count = 0
        # Why it ended; until then, why it would be said to have ended.
        self.finish_reason = FINISH_CANCELLED
        self._filter_category, self._filter_offset = "", 0
        self._node_finish_reason = ""
        self._released: list[str] = []
        self._released_offset = 0
        self._waiting = bytearray()
        self._frames: deque[_Held] = deque()

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

    @property
    def finished(self) -> ChoiceFinished:
        """How it ended, as the client hears it."""
        return ChoiceFinished(
            self.choice_index, self.finish_reason, self._filter_category, self._filter_offset
        )

    def receive(self, frame: Frame) -> None:
        """Notes what the node sent (its token ids are noted by who read them)."""
        start = self._released_offset + len(self._waiting)
        self._waiting += frame.text.encode()
        end = self._released_offset + len(self._waiting)
        if frame.token_count or frame.logprobs:
            self._frames.append(_Held(start, end, frame.token_count, frame.logprobs))
        if frame.finish_reason:
            self._node_finish_reason = frame.finish_reason
            self.cached_token_count = frame.cached_token_count

    def release(self, offset: int, masks: Sequence[Mask] = ()) -> Delta | None:
        """Releases the text up to `offset` (bytes of the whole answer); None when that is none.

        An offset inside a character is taken as the start of that character; one past what was
        received as its end. What of `masks` has not left is masked.
        """
        size = whole_characters(self._waiting, offset - self._released_offset)
        text = self._masked(size, masks) if masks else self._waiting[:size].decode()
        if size:
            del self._waiting[:size]
            self._released_offset += size
        if text:
            self._released.append(text)
        logprobs = self._release_frames(masks)
        if not text and not logprobs:
            return None
        return Delta(self.choice_index, text, self.released_token_count, logprobs)

    def clear(self, masks: Sequence[Mask] = ()) -> Delta | None:
        """Releases all that is left and takes over the node's reason, if it came to one."""
        self.finish_reason = self._node_finish_reason or FINISH_CANCELLED
        return self.release(self._released_offset + len(self._waiting), masks)

    def block(self, category: str = "", offset: int = 0, safe_text: str = "") -> Delta | None:
        """Withholds what was not released, for good; `safe_text` is said in its place."""
        self.finish_reason = FINISH_CONTENT_FILTER
        self._filter_category, self._filter_offset = category, offset
        self._waiting.clear()
        self._frames.clear()
        if not safe_text:
            return None
        text = f"\n\n{safe_text}" if self._released else safe_text
        self._released.append(text)
        return Delta(self.choice_index, text, self.released_token_count)

    def _masked(self, size: int, masks: Sequence[Mask]) -> str:
        """The first `size` bytes that wait, masked."""
        border, kept = 0, bytearray()
        for start, end, replacement in sorted(masks):
            begin = whole_characters(self._waiting, start - self._released_offset)
            if end > start and end > self._released_offset + border and begin < size:
                kept += self._waiting[border : max(begin, border)] + replacement.encode()
                border = whole_characters(self._waiting, min(end - self._released_offset, size))
        return (kept + self._waiting[border:size]).decode()

    def _release_frames(self, masks: Sequence[Mask]) -> Sequence[Logprob]:
        logprobs: list[Logprob] = []
        while self._frames and self._frames[0].end <= self._released_offset:
            frame = self._frames.popleft()
            self.released_token_count += frame.token_count
            # Log probabilities would tell what is masked.
            if not any(frame.start < mask.end and mask.start < frame.end for mask in masks):
                logprobs += frame.logprobs
        return logprobs
