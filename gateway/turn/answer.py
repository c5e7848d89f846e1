"""The accounts of one answer: generated = released + withheld + unsent, in text and tokens. Pure.

The turn that owns the answer is the only one that writes to it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.turn.domain import (
    FINISH_CANCELLED,
    FINISH_CONTENT_FILTER,
    FINISH_LENGTH,
    FINISH_STOP,
    Bound,
    ChoiceFinished,
    Frame,
    Logprob,
    TextDelta,
)

MASK = "[redacted]"


class Mask(NamedTuple):
    """A span in bytes of the generated text, and what stands there instead."""

    start: int
    end: int
    replacement: str = MASK


class HeldFrame(NamedTuple):
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

    Offsets count bytes of the generated UTF-8 text, not what stands in the place of masked text.
    Tokens count as released once the whole text of their frame is (a reader is told more exactly).
    """

    def __init__(self, choice_index: int) -> None:
        self.choice_index = choice_index
        # Output tokens in order: what another node needs to continue.
        self.token_ids: list[int] = []
        # All generated text; bytes up to `released_offset` may leave.
        self.text_bytes = bytearray()
        self.released_offset = 0
        self.released_token_count = 0
        self.cached_token_count = 0
        # Why it ended; until then, why it would be said to have ended.
        self.finish_reason = FINISH_CANCELLED
        # Why it got no more tokens than it has, when that was no wish of the client's.
        self.bound: Bound | None = None
        # Its end was an event.
        self.is_finished = False
        self._filter_category, self._filter_offset = "", 0
        self._node_finish_reason = ""
        # An earlier owner ended it, and knew how.
        self.is_finished_before = False
        self._shown: list[str] = []
        self._held: deque[HeldFrame] = deque()
        self._told = 0

    @property
    def text(self) -> str:
        """All released text, as it was shown."""
        return "".join(self._shown)

    @property
    def unreleased_token_count(self) -> int:
        """Generated tokens that the client did not get."""
        return len(self.token_ids) - self.released_token_count

    @property
    def withheld_token_count(self) -> int:
        """Those of them that safety withheld."""
        return self.unreleased_token_count if self.finish_reason == FINISH_CONTENT_FILTER else 0

    @property
    def is_cut_short(self) -> bool:
        """Its node may have generated more than came here: it had not said that it was through."""
        return not self._node_finish_reason and not self.is_finished_before

    @property
    def unreleased_byte_count(self) -> int:
        """Bytes of text that wait for safety."""
        return len(self.text_bytes) - self.released_offset

    @property
    def held(self) -> Iterable[HeldFrame]:
        """The frames that are not released whole."""
        return self._held

    def receive(self, frame: Frame) -> None:
        """Takes what the node sent."""
        start = len(self.text_bytes)
        self.token_ids.extend(frame.token_ids)
        self.text_bytes += frame.text.encode()
        if frame.token_ids or frame.logprobs:
            end, count = len(self.text_bytes), len(frame.token_ids)
            self._held.append(HeldFrame(start, end, count, frame.logprobs))
        if frame.finish_reason:
            self._node_finish_reason = frame.finish_reason
            self.cached_token_count = frame.cached_token_count

    def release(self, offset: int, masks: Sequence[Mask] = ()) -> TextDelta | None:
        """Releases the text up to `offset` (bytes of the whole answer); None when that is none.

        An offset inside a character is taken as the start of that character; one past what was
        received as its end. What of `masks` has not left is masked.
        """
        end = max(whole_characters(self.text_bytes, offset), self.released_offset)
        text = self._masked(end, masks) if masks else self._between(self.released_offset, end)
        self.released_offset = end
        if text:
            self._shown.append(text)
        logprobs = self._release_frames(masks)
        if not text and not logprobs:
            return None
        return TextDelta(self.choice_index, text, self._told_token_count(), logprobs)

    def clear(self, masks: Sequence[Mask] = ()) -> TextDelta | None:
        """Releases all that is left and takes over the node's reason, if it came to one."""
        self.finish_reason = self._node_finish_reason or FINISH_CANCELLED
        return self.release(len(self.text_bytes), masks)

    def block(self, category: str = "", offset: int = 0, safe_text: str = "") -> TextDelta | None:
        """Withholds what was not released, for good; `safe_text` is said in its place."""
        self.finish_reason = FINISH_CONTENT_FILTER
        self._filter_category, self._filter_offset = category, offset
        # What left of a frame has left for good: the accounts end as the reader was told.
        self.released_token_count = self._told_token_count()
        del self.text_bytes[self.released_offset :]
        self._held.clear()
        if not safe_text:
            return None
        text = f"\n\n{safe_text}" if self._shown else safe_text
        self._shown.append(text)
        return TextDelta(self.choice_index, text, self._told_token_count())

    def finish(self) -> ChoiceFinished:
        """Ends it; how, as the client hears it."""
        self.is_finished = True
        return ChoiceFinished(
            self.choice_index,
            self.finish_reason,
            self._filter_category,
            self._filter_offset,
            self.bound if self.finish_reason == FINISH_LENGTH else None,
        )

    def resume(
        self,
        *,
        token_ids: Iterable[int],
        text: str,
        released_offset: int,
        released_token_count: int,
        held: Iterable[HeldFrame],
        cached_token_count: int,
    ) -> None:
        """Takes over what its last owner journaled since the entry before."""
        self.token_ids.extend(token_ids)
        self.text_bytes += text.encode()
        self.released_offset, self.released_token_count = released_offset, released_token_count
        self.cached_token_count = cached_token_count
        self._held = deque(held)

    def replay(self, event: TextDelta | ChoiceFinished) -> None:
        """Takes over what its last owner showed."""
        if isinstance(event, TextDelta):
            self._shown.append(event.text)
            return
        self.is_finished, self.finish_reason = True, event.finish_reason
        self.is_finished_before = event.finish_reason in (FINISH_LENGTH, FINISH_STOP)
        self._filter_category, self._filter_offset = event.filter_category, event.filter_offset
        self.bound = event.bound

    def _between(self, start: int, end: int) -> str:
        return self.text_bytes[start:end].decode()

    def _told_token_count(self) -> int:
        """Tokens that have left, as a reader is told: of a frame that left in part, that part.

        Which of its bytes are which token's is not known here. Never less than was told before.
        """
        count = self.released_token_count
        if self._held:
            start, end, token_count, _ = self._held[0]
            if start < self.released_offset < end:
                count += token_count * (self.released_offset - start) // (end - start)
        self._told = max(self._told, count)
        return self._told

    def _masked(self, end: int, masks: Sequence[Mask]) -> str:
        """The text from what was released up to `end`, masked."""
        border, kept = self.released_offset, ""
        for mask in sorted(masks):
            begin = max(whole_characters(self.text_bytes, mask.start), border)
            if mask.end > mask.start and mask.end > border and begin < end:
                kept += self._between(border, begin) + mask.replacement
                border = max(whole_characters(self.text_bytes, min(mask.end, end)), begin)
        return kept + self._between(border, end)

    def _release_frames(self, masks: Sequence[Mask]) -> Sequence[Logprob]:
        logprobs: list[Logprob] = []
        while self._held and self._held[0].end <= self.released_offset:
            frame = self._held.popleft()
            self.released_token_count += frame.token_count
            # Log probabilities would tell what is masked.
            if not any(frame.start < mask.end and mask.start < frame.end for mask in masks):
                logprobs += frame.logprobs
        return logprobs
