"""Paged attention in plain torch, exact before fast: every query sees the same additions whoever
else is in the batch and however its prompt was cut into chunks.

The unit is a tile: a few consecutive tokens of one sequence and its blocks. All products have one
of two fixed shapes, [rows, head_dim] x [head_dim, 16] and [rows, 16] x [16, head_dim], with the
rows of a small tile for decoding or of a large one for prompts. That both sizes give the same bits
is measured when a model is loaded; where they do not, all tiles are small.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.backend import Step
from inference_svc.engine.torch.eager.invariant import tree_sum
from inference_svc.engine.torch.eager.kv_cache import Half

SMALL_TILE = 4  # tokens
LARGE_TILES = (32, 16)
# Tiles x blocks that are gathered at once: bounds the scratch memory of one step.
GATHER_BLOCK_COUNT_MAX = 2048
# exp of less costs 30x as much (it underflows), and exp(-80) is 1e-35 already.
LOGIT_MIN = -80.0


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles that are computed together.

    Attributes:
        rows: row of the step of each tile's tokens, [tiles, tokens]; padding: row 0.
        real: which of them are tokens, not padding; same shape, bool.
        positions: position of each token in its sequence; same shape.
        tables: block numbers, [tiles, blocks]; padding: 0.
    """

    rows: torch.Tensor
    real: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor


def large_tile(head_dim: int, shared: int) -> int:
    """Tokens of a large tile: the most that give every token the bits that a small tile gives it.

    Args:
        shared: query heads of one KV head.
    """
    numbers = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 8, BLOCK_TOKEN_COUNT, head_dim, generator=numbers)
    rows = shared * LARGE_TILES[0]
    query = torch.randn(8, rows, head_dim, generator=numbers)
    weights = torch.rand(8, rows, BLOCK_TOKEN_COUNT, generator=numbers)
    small = _products(query, weights, keys, values, shared * SMALL_TILE)
    for tile in LARGE_TILES:
        if torch.equal(_products(query, weights, keys, values, shared * tile), small):
            return tile
    return SMALL_TILE


def _products(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: int
) -> torch.Tensor:
    """Scores and mixed values of all rows, computed `rows` at a time."""
    scores = [torch.matmul(part, keys.transpose(-1, -2)) for part in torch.split(query, rows, 1)]
    mixed = [torch.matmul(part, values) for part in torch.split(weights, rows, 1)]
    return torch.cat([torch.cat(scores, 1), torch.cat(mixed, 1)], -1)


def tile_groups(step: Step, large: int) -> list[TileGroup]:
    """Cuts the chunks of a step into groups of tiles of one size that are alike in length."""
    lengths = np.diff(step.chunk_starts)
    large_counts = lengths // large
    tile_counts = large_counts + -(-(lengths - large_counts * large) // SMALL_TILE)
    chunk = np.repeat(np.arange(lengths.size), tile_counts)
    within = np.arange(chunk.size) - np.repeat(np.cumsum(tile_counts) - tile_counts, tile_counts)
    behind = within - large_counts[chunk]  # of its chunk's large tiles; negative: is one
    sizes = np.where(behind < 0, large, SMALL_TILE)
    first = np.where(behind < 0, within * large, large_counts[chunk] * large + behind * SMALL_TILE)
    counts = np.minimum(lengths[chunk] - first, sizes)
    begins = step.chunk_begins[chunk] + first
    widths = -(-(begins + counts) // BLOCK_TOKEN_COUNT)
    groups = []
    for members in _runs(np.lexsort((widths, sizes)), widths, sizes):
        tokens = np.arange(sizes[members[0]])
        real = tokens < counts[members, None]
        rows = (step.chunk_starts[chunk[members]] + first[members])[:, None] + tokens
        width = int(widths[members[-1]])
        tables = step.block_tables[chunk[members], :width].astype(np.int64)
        tables[np.arange(width) >= widths[members, None]] = 0
        positions = np.where(real, begins[members, None] + tokens, 0).astype(np.int64)
        arrays = (np.where(real, rows, 0).astype(np.int64), real, positions, tables)
        groups.append(TileGroup(*(torch.from_numpy(array) for array in arrays)))
    return groups


def _runs(order: np.ndarray, widths: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Cuts `order`, ascending in size and then in width, into groups.

    A group is as wide as its last tile: at most twice its first, and bounded in all.
    """
    start = 0
    for at in range(1, order.size + 1):
        if at < order.size:
            this, first = order[at], order[start]
            alike = sizes[this] == sizes[first] and widths[this] <= 2 * widths[first]
            if alike and (at + 1 - start) * widths[this] <= GATHER_BLOCK_COUNT_MAX:
                continue
        yield order[start:at]
        start = at


def attend(
    query: torch.Tensor, keys: Half, values: Half, group: TileGroup, window: int
) -> torch.Tensor:
    """Attention of the tokens of one group.

    Args:
        query: [rows of the step, heads, head_dim], rotated and scaled.
        keys, values: the layer's cache.
        window: newest positions that a token sees; 0: all.

    Returns:
        [tiles, tokens, heads * head_dim]; padding rows hold nothing of use.
    """
    _, kv_heads, _, head_dim = keys.values.shape
    (tile_count, width), tokens = group.tables.shape, group.rows.shape[1]
    shared = query.shape[1] // kv_heads  # query heads of one KV head
    # [tiles, 1, KV heads, shared * tokens, head_dim]
    tiles = query[group.rows].view(tile_count, tokens, kv_heads, shared, head_dim)
    tiles = tiles.permute(0, 2, 3, 1, 4).reshape(tile_count, 1, kv_heads, -1, head_dim)
    scores = torch.matmul(tiles, keys.gather(group.tables).transpose(-1, -2))
    scores = scores.view(tile_count, width, kv_heads, shared, tokens, BLOCK_TOKEN_COUNT)
    hidden = _hidden(group, window)[:, :, None, None]
    scores.masked_fill_(hidden, -torch.inf)
    scores.sub_(scores.amax(5, keepdim=True).amax(1, keepdim=True))
    weights = torch.exp_(scores.clamp_min_(LOGIT_MIN)).masked_fill_(hidden, 0)
    total = tree_sum(weights.sum(-1))  # [tiles, KV heads, shared, tokens]
    weights = weights.view(tile_count, width, kv_heads, -1, BLOCK_TOKEN_COUNT)
    mixed = tree_sum(torch.matmul(weights, values.gather(group.tables)))
    mixed = mixed.view(tile_count, kv_heads, shared, tokens, head_dim)
    return (mixed / total[..., None]).permute(0, 3, 1, 2, 4).reshape(tile_count, tokens, -1)


def _hidden(group: TileGroup, window: int) -> torch.Tensor:
    """Which keys a token must not see: [tiles, blocks, tokens, 16]."""
    width = group.tables.shape[1]
    keys = torch.arange(width * BLOCK_TOKEN_COUNT).view(1, width, 1, BLOCK_TOKEN_COUNT)
    positions = group.positions[:, None, :, None]
    hidden = keys > positions
    return hidden | (keys <= positions - window) if window else hidden
