"""Decode attention over 16-token blocks in place, in Triton (flash decoding, Dao et al., 2023).

A sequence's keys are cut into parts of a fixed length, so that the sums of a sequence, and with
them its bits, do not depend on its neighbours. One program computes one part of one KV head for all
query heads that share it; a second kernel joins the parts.
"""

# Triton compiles the functions below from their source: its arguments carry no Python types, and
# constants are in capitals.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import torch
import triton
import triton.language as tl

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.cuda.attention import Paged

PART_TOKEN_COUNT_MIN = 512
PART_COUNT_MAX = 64  # bounds the partial results of long contexts
KEY_COUNT = 64  # keys of one product
DOT_ROW_COUNT_MIN = 16  # tl.dot wants at least 16 rows


def decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, paged: Paged, window: int
) -> torch.Tensor:
    """As `Attention`, for one query of each sequence."""
    count, heads, dim = query.shape
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    length_max = paged.tables.shape[1] * BLOCK_TOKEN_COUNT  # fixed, so that a graph fits all
    part = part_token_count(length_max)
    parts = -(-length_max // part)
    sums = torch.empty(count, heads, parts, dim, dtype=torch.float32, device=query.device)
    scales = torch.empty(count, heads, parts, 2, dtype=torch.float32, device=query.device)
    out = torch.empty_like(query)
    widths = {"GROUP": group, "DIM": dim, "DIM_PADDED": _power_of_two(dim)}
    _part[(count, kv_heads, parts)](
        query,
        keys,
        values,
        paged.tables,
        paged.lengths,
        sums,
        scales,
        dim**-0.5,
        window,
        paged.tables.stride(0),
        paged.lengths.stride(0),
        query.stride(0),
        parts,
        **widths,
        GROUP_PADDED=max(DOT_ROW_COUNT_MIN, _power_of_two(group)),
        KV_HEADS=kv_heads,
        BLOCK=BLOCK_TOKEN_COUNT,
        KEYS=KEY_COUNT,
        PART=part,
    )
    _join[(count, heads)](
        sums,
        scales,
        paged.lengths,
        out,
        paged.lengths.stride(0),
        parts,
        DIM=dim,
        DIM_PADDED=widths["DIM_PADDED"],
        PART=part,
    )
    return out


def part_token_count(length_max: int) -> int:
    """Keys of one part: a power of two that the longest possible context determines."""
    return max(PART_TOKEN_COUNT_MIN, _power_of_two(-(-length_max // PART_COUNT_MAX)))


def _power_of_two(count: int) -> int:
    """The next one, `count` itself included."""
    return 1 << (count - 1).bit_length()


@triton.jit
def _part(
    query,
    keys,
    values,
    tables,
    lengths,
    sums,
    scales,
    scale,
    window,
    table_stride,
    length_stride,
    query_stride,
    parts,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    PART: tl.constexpr,
):
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence * length_stride)
    begin, end = part * PART, tl.minimum(part * PART + PART, length)
    first = tl.where(window > 0, length - window, 0)  # oldest position that is seen
    row, column = tl.arange(0, GROUP_PADDED), tl.arange(0, DIM_PADDED)
    head = kv_head * GROUP + row
    real = (row < GROUP)[:, None] & (column < DIM)[None, :]
    q = tl.load(
        query + sequence * query_stride + head[:, None] * DIM + column[None, :],
        mask=real,
        other=0.0,
    )
    largest = tl.full([GROUP_PADDED], -1e30, tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    mixed = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
    for start in range(begin, end, KEYS):
        position = start + tl.arange(0, KEYS)
        inside = position < end
        block = tl.load(tables + sequence * table_stride + position // BLOCK, mask=inside, other=0)
        slot = block.to(tl.int64) * BLOCK + position % BLOCK
        at = (slot * KV_HEADS + kv_head)[:, None] * DIM + column[None, :]
        there = inside[:, None] & (column < DIM)[None, :]
        k = tl.load(keys + at, mask=there, other=0.0)
        v = tl.load(values + at, mask=there, other=0.0)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = inside & (position >= first)
        logits = tl.where(seen[None, :], logits, -1e30)
        new_largest = tl.maximum(largest, tl.max(logits, 1))
        weights = tl.where(seen[None, :], tl.exp(logits - new_largest[:, None]), 0.0)
        shrink = tl.exp(largest - new_largest)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest
    place = (sequence * KV_HEADS * GROUP + head) * parts + part
    tl.store(sums + place[:, None] * DIM + column[None, :], mixed, mask=real)
    tl.store(scales + place * 2, largest, mask=row < GROUP)
    tl.store(scales + place * 2 + 1, total, mask=row < GROUP)


@triton.jit
def _join(
    sums,
    scales,
    lengths,
    out,
    length_stride,
    parts,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    PART: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    used = tl.cdiv(tl.load(lengths + sequence * length_stride), PART)
    column = tl.arange(0, DIM_PADDED)
    largest, total = tl.full([], -1e30, tl.float32), tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([DIM_PADDED], tl.float32)
    for part in range(used):
        place = (sequence * heads + head) * parts + part
        part_largest, part_total = tl.load(scales + place * 2), tl.load(scales + place * 2 + 1)
        row = tl.load(sums + place * DIM + column, mask=column < DIM, other=0.0)
        new_largest = tl.maximum(largest, part_largest)
        shrink, grow = tl.exp(largest - new_largest), tl.exp(part_largest - new_largest)
        total = total * shrink + part_total * grow
        mixed = mixed * shrink + row * grow
        largest = new_largest
    result = (mixed / total).to(out.dtype.element_ty)
    tl.store(out + (sequence * heads + head) * DIM + column, result, mask=column < DIM)
