"""The second stage: a small transformer over one window of a text, with onnxruntime.

After its first layer it says how much doubt there is; where there is hardly any, the work ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

# Tokens of one window, the two marks at its ends included, and how many two windows share.
WINDOW_TOKEN_COUNT, OVERLAP_TOKEN_COUNT = 128, 16
_CONTENT = WINDOW_TOKEN_COUNT - 2
_START, _END = 101, 102  # [CLS] and [SEP] of the BERT vocabulary
# Every logit of a window that the first layer found harmless.
SETTLED = -20.0
NO_EXIT = -math.inf  # no doubt is below this limit
_LEVEL_ERROR = 3


class Window(NamedTuple):
    """A part of a text that the encoder sees at once: token ids, and its characters."""

    ids: Sequence[int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer and a graph; safe for several threads, which it does not start itself."""

    tokenizer: Tokenizer
    session: onnxruntime.InferenceSession

    def windows(self, text: str) -> list[Window]:
        """Cuts `text` into windows that overlap; none for a text without tokens."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        found = []
        for start in range(0, len(ids), _CONTENT - OVERLAP_TOKEN_COUNT):
            part = ids[start : start + _CONTENT]
            last = start + len(part) - 1
            found.append(Window([_START, *part, _END], offsets[start][0], offsets[last][1]))
            if last + 1 == len(ids):
                break
        return found

    def logits(
        self, window: Window, *, document: bool, limit: float = NO_EXIT
    ) -> NDArray[np.float32]:
        """One logit for each category, shape [COUNT]: about 3.2 ms for a full window.

        With a doubt below `limit` all are SETTLED, after a third of that time.
        """
        return self._run(window, document, limit)[0]

    def doubt(self, window: Window, *, document: bool) -> float:
        """Logit of "harmful" after the first layer."""
        return float(self._run(window, document, math.inf)[1][0])

    def _run(self, window: Window, document: bool, limit: float) -> list[NDArray[np.float32]]:
        inputs = {
            "ids": np.array(window.ids),
            "segment": np.array([int(document)]),
            "limit": np.array([limit], np.float32),
        }
        return self.session.run(None, inputs)  # type: ignore[no-any-return]


def load(graph: bytes, tokenizer: str) -> Encoder:
    """An encoder of an ONNX file and a tokenizer.json; it computes on the calling thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _LEVEL_ERROR
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return Encoder(Tokenizer.from_str(tokenizer), session)
