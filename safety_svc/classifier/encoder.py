"""The second stage: a small transformer over one window of a text, with onnxruntime.

After each of its first layers it says how much doubt there is; where there is hardly any, the work
ends.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from safety_svc.fast.library import FastVocabulary, Pieces

# Tokens of one window, the two marks at its ends included, and how many two windows share.
WINDOW_TOKEN_COUNT, OVERLAP_TOKEN_COUNT = 128, 16
CONTENT_TOKEN_COUNT = WINDOW_TOKEN_COUNT - 2
_START, _END = 101, 102  # [CLS] and [SEP] of the BERT vocabulary
# After each of so many layers the work may end.
EXIT_COUNT = 3
# Every logit of a window that such a layer found harmless, and every doubt of the layers after it.
SETTLED = -20.0
NO_EXITS = (-math.inf,) * EXIT_COUNT  # no doubt is below these limits
_LEVEL_ERROR = 3
_NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


class Window(NamedTuple):
    """A part of a text that the encoder sees at once: token ids, see `framed`; its characters."""

    ids: Sequence[int]
    start: int
    end: int


class WindowScore(NamedTuple):
    """What the encoder says of a window.

    Attributes:
        logits: one for each category, shape [COUNT].
        doubts: logits of "harmful" after the first layers, shape [EXIT_COUNT].
    """

    logits: NDArray[np.float32]
    doubts: NDArray[np.float32]

    @property
    def settled(self) -> bool:
        """True when an early layer found the window harmless."""
        return bool(self.logits.max() <= SETTLED)

    @property
    def doubt(self) -> float:
        """The last doubt that was computed."""
        return float(self.doubts[self.doubts > SETTLED][-1])


def framed(ids: Sequence[int]) -> list[int]:
    """`ids` between the marks for start and end."""
    return [_START, *ids, _END]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer and a graph; safe for several threads, which it does not start itself."""

    tokenizer: Tokenizer
    session: onnxruntime.InferenceSession
    fast: FastVocabulary | None = None  # the tokenizer in C++; None where the library is missing

    def pieces(self, text: str) -> Pieces:
        """The tokens of `text`."""
        found = self.fast.pieces(text) if self.fast else None
        if found:
            return found
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        return Pieces(encoding.ids, starts, [end for _, end in encoding.offsets])

    def windows(self, text: str) -> list[Window]:
        """Cuts `text` into windows that overlap; none for a text without tokens."""
        ids, starts, ends = self.pieces(text)
        found = []
        for start in range(0, len(ids), CONTENT_TOKEN_COUNT - OVERLAP_TOKEN_COUNT):
            part = ids[start : start + CONTENT_TOKEN_COUNT]
            last = start + len(part) - 1
            found.append(Window(framed(part), starts[start], ends[last]))
            if last + 1 == len(ids):
                break
        return found

    def look(
        self, window: Window, *, document: bool, limits: Sequence[float] = NO_EXITS
    ) -> WindowScore:
        """Judges one window: about 10 ms for a full one.

        With a doubt below its limit all logits are SETTLED; the first layer takes a sixth of that.

        Args:
            window: of at most WINDOW_TOKEN_COUNT tokens.
            document: True for a document or tool result.
            limits: of the doubts, EXIT_COUNT.
        """
        inputs = {
            "ids": np.array(window.ids),
            "segment": np.array([int(document)]),
            "limits": np.array(limits, np.float32),
        }
        return WindowScore(*self.session.run(None, inputs))


def load(graph: bytes, tokenizer: str) -> Encoder:
    """An encoder of an ONNX file and a tokenizer.json; it computes on the calling thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _LEVEL_ERROR
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return Encoder(Tokenizer.from_str(tokenizer), session, _fast(json.loads(tokenizer)))


def _fast(tokenizer: Mapping[str, Any]) -> FastVocabulary | None:
    """What a tokenizer.json says, for C++; None where it is another than BERT's in lower case."""
    model, special = tokenizer["model"], [one["content"] for one in tokenizer["added_tokens"]]
    if (tokenizer["normalizer"], model["type"]) != (_NORMALIZER, "WordPiece"):
        return None
    vocabulary: Mapping[str, int] = model["vocab"]
    return FastVocabulary.open(vocabulary, vocabulary[model["unk_token"]], special)
