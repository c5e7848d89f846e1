"""The second stage: a small transformer over one window of a text, with onnxruntime.

After its first layer it says how much doubt there is; where there is hardly any, the work ends.
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
# Every logit of a window that the first layer found harmless.
SETTLED = -20.0
NO_EXIT = -math.inf  # no doubt is below this limit
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
        doubt: logit of "harmful" after the first layer.
    """

    logits: NDArray[np.float32]
    doubt: float

    @property
    def settled(self) -> bool:
        """True when the first layer found the window harmless."""
        return bool(self.logits.max() <= SETTLED)


def framed(ids: Sequence[int]) -> list[int]:
    """`ids` between the marks for start and end: an even number, as the encoder pairs them."""
    ends = [_END] if len(ids) % 2 == 0 else [_END, _END]
    return [_START, *ids, *ends]


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

    def look(self, window: Window, *, document: bool, limit: float = NO_EXIT) -> WindowScore:
        """Judges one window: about 1.8 ms for a full one.

        With a doubt below `limit` all logits are SETTLED, after two fifths of that time.
        """
        inputs = {
            "ids": np.array(window.ids),
            "segment": np.array([int(document)]),
            "limit": np.array([limit], np.float32),
        }
        logits, doubt = self.session.run(None, inputs)
        return WindowScore(logits, float(doubt[0]))


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
