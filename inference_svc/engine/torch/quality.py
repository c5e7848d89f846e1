"""What int8 costs a model in quality, measured when the model is first served.

Activations of some models have outliers that one scale a row cannot hold, and nothing short of a
try tells which. So `INFERENCE_WEIGHTS=auto` tries once: the Kullback-Leibler divergence, on a short
text, of the distributions that int8 gives from those that bf16 gives. It is what int8 adds to the
loss on text that the model itself would write, so exp of it is a ratio of perplexities, and unlike
the loss on some text it is never an accident of the text. The verdict lies with the int8 weights.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
from tokenizers import Tokenizer

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.backend import Backend, Logits, Step

log = structlog.get_logger()

DIVERGENCE_MAX = math.log(1.01)  # nats a token: one per cent of perplexity
SAMPLE_TOKEN_COUNT_MAX = 256  # their logits are held at once
_STEP_TOKEN_COUNT = 128
_VERDICT = "verdict.json"

# Prose, a conversation, figures, another language, code: some of it is known to any model.
SAMPLE = """\
The harbour was quiet in the morning. Two fishermen mended their nets and talked about the weather,
and a child counted the boats that came in: one, two, three. When the sun had risen above the
lighthouse, the market opened and the streets filled with people who bought bread and apples.

User: What is the capital of France, and how many people live there?
Assistant: The capital of France is Paris. About two million people live in the city itself, and
more than twelve million in the whole region around it. Would you like to know more?

In 1969 the first humans walked on the Moon. The distance is about 384,400 km; light needs 1.28 s.
Der Zug nach Hamburg fährt um acht Uhr ab. Il fait beau aujourd'hui, et nous allons à la plage.

def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
"""


def logits_of(backend: Backend, token_ids: Sequence[int]) -> Iterator[Logits]:
    """Logits at all positions of a text but the last, some rows at a time: [rows, vocabulary].

    The KV cache must have room for the text; its blocks from the first on are written. What is
    yielded is valid until the next.
    """
    ids = np.array(token_ids, np.int32)
    table = np.arange(-(-ids.size // BLOCK_TOKEN_COUNT), dtype=np.int32)[None]
    for begin in range(0, ids.size - 1, _STEP_TOKEN_COUNT):
        end = min(begin + _STEP_TOKEN_COUNT, ids.size - 1)
        step = Step(
            token_ids=ids[begin:end],
            chunk_starts=np.array([0, end - begin], np.int32),
            chunk_begins=np.array([begin], np.int32),
            block_tables=table[:, : -(-end // BLOCK_TOKEN_COUNT)].copy(),
            logit_rows=np.arange(end - begin, dtype=np.int32),
        )
        yield backend.step(step).logits


def sample_token_ids(folder: Path, context: int) -> list[int]:
    """The beginning of the sample in the tokens of a model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    return ids[: min(SAMPLE_TOKEN_COUNT_MAX, context)]


def sample_logits(backend: Backend, token_ids: Sequence[int]) -> Logits:
    """Logits of a fresh back end on a text; closes it."""
    try:
        backend.allocate(-(-len(token_ids) // BLOCK_TOKEN_COUNT))
        return np.concatenate([logits.copy() for logits in logits_of(backend, token_ids)])
    finally:
        backend.close()


def divergence(exact: Logits, other: Logits) -> float:
    """Mean over rows of the Kullback-Leibler divergence of `other` from `exact`, nats, ≥ 0."""
    total = 0.0
    for one, two in zip(exact, other, strict=True):
        p, q = _log_probabilities(one), _log_probabilities(two)
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(exact)


def _log_probabilities(row: Logits) -> npt.NDArray[np.float64]:
    wide: npt.NDArray[np.float64] = row.astype(np.float64) - row.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def read_verdict(entry: Path | None, kv: str) -> float | None:
    """The divergence that was measured earlier, nats; None when there was no measurement."""
    return _verdicts(entry).get(kv) if entry else None


def write_verdict(entry: Path | None, kv: str, nats: float) -> None:
    """Keeps a measurement; a cache that cannot be written only means another try next time."""
    if entry is None:
        return
    try:
        (entry / _VERDICT).write_text(json.dumps(_verdicts(entry) | {kv: nats}))
    except OSError as error:
        log.warning("verdict_not_kept", folder=str(entry), error=repr(error))


def _verdicts(entry: Path) -> dict[str, float]:
    try:
        found = json.loads((entry / _VERDICT).read_bytes())
        return {str(kv): float(nats) for kv, nats in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
