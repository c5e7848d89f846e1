"""Draws tokens from logits: greedy or sampled, one row at a time, in double precision.

The only randomness is `uniform(seed, position)`, a hash: a row drawn again, alone or in another
batch, after a preemption or on another node, gives the same token.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import Sampling, TokenLogprobs

Row = npt.NDArray[np.float64]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that (seed, position) determine: 53 bits of BLAKE2b."""
    key = (seed & (2**64 - 1)).to_bytes(8, "little")
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=8, key=key).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Draw:
    """What a row is drawn with: the sequence's parameters and history."""

    sampling: Sampling
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    logprobs: bool = False
    top_logprob_count: int = 0


def sample(logits: npt.NDArray[np.float32], draw: Draw) -> tuple[int, TokenLogprobs | None]:
    """One token, and its log probabilities when asked for.

    Args:
        logits: one row, [vocabulary].

    Raises:
        FloatingPointError: the row has NaN or +inf.
    """
    if not np.isfinite(logits.max()):  # NaN propagates through max
        raise FloatingPointError("the model gave logits that are no numbers")
    adjusted = _penalised(logits, draw)
    greedy = draw.sampling.temperature == 0
    token_id = int(adjusted.argmax()) if greedy else _drawn(adjusted, draw)
    wanted = draw.logprobs or draw.top_logprob_count
    return token_id, _logprobs(logits, token_id, draw.top_logprob_count) if wanted else None


def _penalised(
    logits: npt.NDArray[np.float32], draw: Draw
) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Penalties as OpenAI and vLLM define them, and biases; the row itself where there are none."""
    sampling = draw.sampling
    counts = sampling.presence_penalty or sampling.frequency_penalty
    if not counts and sampling.repetition_penalty == 1 and not sampling.logit_bias:
        return logits
    row = logits.astype(np.float64)
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.array([*draw.prompt_token_ids, *draw.output_token_ids], dtype=np.int64))
        values = row[seen]
        factor = sampling.repetition_penalty
        row[seen] = np.where(values > 0, values / factor, values * factor)
    if counts and draw.output_token_ids:
        ids, times = np.unique(np.array(draw.output_token_ids, np.int64), return_counts=True)
        row[ids] -= sampling.frequency_penalty * times + sampling.presence_penalty
    for token_id, bias in sampling.logit_bias.items():
        row[token_id] += bias
    return row


def _drawn(logits: npt.NDArray[np.float32] | npt.NDArray[np.float64], draw: Draw) -> int:
    sampling = draw.sampling
    scaled = logits.astype(np.float64) / sampling.temperature
    weights: Row = np.exp(scaled - scaled.max())
    u = uniform(sampling.seed, draw.position)
    if not 0 < sampling.top_k < weights.size and sampling.top_p >= 1 and sampling.min_p <= 0:
        return _pick(weights, u)
    order, kept = _kept(weights, sampling)
    return int(order[_pick(kept, u)])


def _kept(weights: Row, sampling: Sampling) -> tuple[npt.NDArray[np.int64], Row]:
    """Token ids, the likeliest first, and weights of those that min-p, top-k and top-p leave."""
    order = np.argsort(-weights, kind="stable")  # of equals, the smaller id first
    if 0 < sampling.top_k < weights.size:
        order = order[: sampling.top_k]
    kept = weights[order]
    if sampling.min_p > 0:
        kept = kept[kept >= sampling.min_p * kept[0]]
    if sampling.top_p < 1:
        before = np.cumsum(kept) - kept  # mass of the likelier ones
        kept = kept[before < sampling.top_p * kept.sum()]
    return order[: kept.size], kept


def _pick(weights: Row, u: float) -> int:
    """Inverse of the cumulative distribution at u in [0, 1)."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(index, weights.size - 1)


def _logprobs(logits: npt.NDArray[np.float32], token_id: int, top_count: int) -> TokenLogprobs:
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    top: list[int] = []
    if top_count:
        best = np.argpartition(-row, min(top_count, row.size - 1))[:top_count]
        top = sorted((int(i) for i in best), key=lambda i: (-row[i], i))
    return TokenLogprobs((token_id, float(row[token_id])), tuple((i, float(row[i])) for i in top))
