"""Logits before the draw: biases and penalties, as OpenAI and vLLM define them."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import Sampling

Row = npt.NDArray[np.float32]


class History:
    """The tokens of a prompt and of an answer, counted as they come.

    A step costs as much as there are distinct tokens, not as there are tokens.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._seen = TokenFrequencies()
        self._output = TokenFrequencies()
        self._seen.add(prompt_token_ids)
        self.output_count = 0

    def add(self, token_ids: Sequence[int]) -> None:
        """Counts tokens of the answer."""
        self.output_count += len(token_ids)
        self._seen.add(token_ids)
        self._output.add(token_ids)

    def penalise(self, row: Row, sampling: Sampling) -> None:
        """Changes the logits of tokens that stood before: repetition, then frequency and presence.

        Repetition counts the prompt, the other two the answer only.
        """
        if sampling.repetition_penalty != 1:
            seen = self._seen.ids
            values = row[seen]
            factor = np.float32(sampling.repetition_penalty)
            row[seen] = np.where(values > 0, values / factor, values * factor)
        if sampling.frequency_penalty or sampling.presence_penalty:
            less = sampling.frequency_penalty * self._output.times + sampling.presence_penalty
            row[self._output.ids] -= less.astype(np.float32)


class TokenFrequencies:
    """How often each token occurred, in the order of first occurrence.

    Attributes:
        ids: [distinct], int64.
        times: [distinct], int64, each at least 1.
    """

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._ids, self._times = np.zeros(64, np.int64), np.zeros(64, np.int64)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens."""
        return self._ids[: len(self._place)]

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """How often each occurred."""
        return self._times[: len(self._place)]

    def add(self, token_ids: Iterable[int]) -> None:
        """Counts more tokens."""
        for token_id in token_ids:
            place = self._place.setdefault(token_id, len(self._place))
            if place == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._times = np.concatenate([self._times, np.zeros_like(self._times)])
            self._ids[place] = token_id
            self._times[place] += 1


def adjusts(sampling: Sampling) -> bool:
    """Whether logits are changed at all before the draw."""
    return bool(sampling.logit_bias) or remembers(sampling)


def remembers(sampling: Sampling) -> bool:
    """Whether the tokens before matter to the draw."""
    return bool(
        sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
    )


def adjust(row: Row, sampling: Sampling, history: History | None) -> None:
    """Applies biases, then penalties, to a row: the order of vLLM's logits processors.

    Args:
        history: needed where `remembers`.
    """
    for token_id, bias in sampling.logit_bias.items():
        row[token_id] += bias
    if history is not None:
        history.penalise(row, sampling)
