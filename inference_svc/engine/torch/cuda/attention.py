"""Attention over the paged KV cache on a GPU.

- `varlen`, for steps with prefill: torch's own flash attention. Its FA2 kernel takes block tables
  only with pages of 256 tokens, and ours have 16; so the keys and values of the step are gathered
  into one row first. Many queries share what was gathered, and its cost is small beside theirs.
- `decode`, for steps where every sequence has one token: a Triton kernel that reads the blocks in
  place (`paged_decode.py`); it is also what CUDA graphs capture.
- `reference`: torch's scaled_dot_product_attention, sequence by sequence. On a CPU, for float32,
  and to test the others against.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT


@dataclass(frozen=True, slots=True)
class Paged:
    """Whose keys each query sees.

    Attributes:
        query_starts: [sequences + 1], int32; rows of the step, as Step.chunk_starts.
        lengths: [sequences], int32; positions with keys, those of this step included.
        tables: [sequences, width], int32; block numbers.
        query_count_max, length_max: the largest of a sequence.
        length_sum: of all sequences; 0 where only `decode` is used.
    """

    query_starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    query_count_max: int
    length_max: int
    length_sum: int = 0


class Attention(Protocol):
    """Causal attention of one layer."""

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        paged: Paged,
        window: int,
    ) -> torch.Tensor:
        """Mixes values.

        Args:
            query: [rows, heads, head_dim], rotated, not scaled.
            keys, values: [blocks, 16, KV heads, head_dim].
            window: newest positions that a token sees, itself included; 0: all.

        Returns:
            As `query`.
        """


def key_slots(paged: Paged) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the keys of all sequences lie, one sequence behind the other.

    Returns:
        Slots (block * 16 + offset), [sum of lengths], int64; where each sequence begins among
        them, [sequences + 1], int32.
    """
    starts = torch.zeros(paged.lengths.numel() + 1, dtype=torch.int32, device=paged.lengths.device)
    torch.cumsum(paged.lengths, 0, out=starts[1:])
    sequence = torch.repeat_interleave(paged.lengths.long(), output_size=paged.length_sum)
    position = torch.arange(paged.length_sum, device=starts.device) - starts[sequence]
    block = paged.tables[sequence, position // BLOCK_TOKEN_COUNT].long()
    return block * BLOCK_TOKEN_COUNT + position % BLOCK_TOKEN_COUNT, starts


def varlen(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, paged: Paged, window: int
) -> torch.Tensor:
    """As `Attention`, by flash attention; bfloat16 on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    slots, key_starts = key_slots(paged)
    mixed = varlen_attn(
        query,
        keys.flatten(0, 1).index_select(0, slots),
        values.flatten(0, 1).index_select(0, slots),
        paged.query_starts,
        key_starts,
        paged.query_count_max,
        paged.length_max,
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=True,
        num_splits=1,  # a split that depends on the longest neighbour would change the sums
    )
    assert isinstance(mixed, torch.Tensor)  # a pair only when more is asked for
    return mixed


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, paged: Paged, window: int
) -> torch.Tensor:
    """As `Attention`, one sequence after the other."""
    slots, key_starts = key_slots(paged)
    keys, values = keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots]
    rows, out = paged.query_starts.tolist(), torch.empty_like(query)
    at = key_starts.tolist()
    for index in range(len(at) - 1):
        mine = slice(rows[index], rows[index + 1])
        theirs = slice(at[index], at[index + 1])
        length, count = at[index + 1] - at[index], rows[index + 1] - rows[index]
        key = torch.arange(length, device=query.device)
        own = key[-count:, None]
        seen = key <= own
        if window:
            seen &= key > own - window
        out[mine] = scaled_dot_product_attention(
            query[mine].transpose(0, 1),
            keys[theirs].transpose(0, 1),
            values[theirs].transpose(0, 1),
            attn_mask=seen,
            enable_gqa=True,
        ).transpose(0, 1)
    return out
