"""The state of one answer: its text, its length, where it ends. Pure; no clock, no I/O.

The state is a function of the tokens alone, never of how they were batched: a continuation that
replays the emitted tokens stands exactly where the first attempt stood, held-back text included.
"""

import codecs
from collections.abc import Sequence

from inference_svc.engine.protocol import Finish, FinishReason, StopRule
from inference_svc.engine.vocabulary import Vocabulary


class TextStream:
    """Bytes in, final text out: half characters and possible starts of a stop string wait."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stop_strings)
        self._held = ""
        self.matched = ""  # the stop string that was found

    def push(self, data: bytes) -> str:
        """Text that became final; after a match, the text before it."""
        return self._release(self._decoder.decode(data))

    def close(self) -> str:
        """The rest, at the end of the answer; half a character becomes U+FFFD."""
        rest = self._release(self._decoder.decode(b"", final=True))
        if not self.matched:
            rest += self._held
        self._held = ""
        return rest

    def _release(self, new: str) -> str:
        if not self._stops or self.matched:
            return "" if self.matched else new
        text = self._held + new
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            # The leftmost match; of two at one place, the longer.
            at, self.matched = min(found, key=lambda item: (item[0], -len(item[1])))
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class AnswerState:
    """One answer while it grows.

    Attributes:
        token_count: tokens of the answer up to now, replayed ones included.
        finish: how it ended, or None.
    """

    def __init__(self, rule: StopRule, vocabulary: Vocabulary) -> None:
        self._rule, self._vocabulary = rule, vocabulary
        self._text = TextStream(rule.strings)
        self.token_count = 0
        self.finish: Finish | None = None

    def replay(self, emitted: Sequence[int]) -> None:
        """Takes the state that an earlier attempt had after `emitted`; its text was sent by it.

        Tokens behind an end are ignored, as they would have been.
        """
        for token_id in emitted:
            self.push(token_id)
            if self.finish is not None:
                return

    def push(self, token_id: int) -> str:
        """Adds one token; returns the text that became final with it and sets `finish` at the end.

        The token that ends an answer counts as generated, and its own text is not shown.
        """
        self.token_count += 1
        if token_id in self._rule.token_ids:
            self.finish = Finish(FinishReason.STOP, text=self._text.close())
            return ""
        text = self._text.push(self._vocabulary.token_bytes(token_id))
        if self._text.matched:
            self.finish = Finish(FinishReason.STOP, stop_string=self._text.matched)
        elif self.token_count >= self._rule.max_token_count:
            self._close(FinishReason.LENGTH)
        return text

    def push_run(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str]:
        """Adds a run; returns the tokens that still belong to the answer, and their final text."""
        if self._rule.strings or not self._rule.token_ids.isdisjoint(token_ids):
            return self._push_each(token_ids)
        kept = token_ids[: self._rule.max_token_count - self.token_count]
        self.token_count += len(kept)
        text = self._text.push(self._vocabulary.join(kept))
        if self.token_count >= self._rule.max_token_count:
            self._close(FinishReason.LENGTH)
        return kept, text

    def _push_each(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str]:
        texts = []
        for index, token_id in enumerate(token_ids):
            texts.append(self.push(token_id))
            if self.finish is not None:
                return token_ids[: index + 1], "".join(texts)
        return token_ids, "".join(texts)

    def _close(self, reason: FinishReason) -> None:
        rest = self._text.close()
        if self._text.matched:  # the last half character completed a stop string
            self.finish = Finish(FinishReason.STOP, self._text.matched, rest)
        else:
            self.finish = Finish(reason, text=rest)
