"""Paged attention in plain torch, exact before fast: every query sees the same additions whoever
else is in the batch and however its prompt was cut into chunks.

The unit is a tile: up to `TILE_TOKEN_COUNT` consecutive tokens of one sequence and its blocks. All
products have fixed shapes: [rows, head_dim] x [head_dim, 16] and [rows, 16] x [16, head_dim].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.models.invariant import tree_sum

TILE_TOKEN_COUNT = 4
# Tiles x blocks that are gathered at once: bounds the scratch memory of one step.
GATHER_BLOCK_COUNT_MAX = 2048
# exp of less costs 30x as much (it underflows), and exp(-80) is 1e-35 already.
LOGIT_MIN = -80.0


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles that are computed together.

    Attributes:
        rows: row of the step of each tile's tokens, [tiles, TILE_TOKEN_COUNT]; padding: row 0.
        real: which of them are tokens, not padding; same shape, bool.
        positions: position of each token in its sequence; same shape.
        tables: block numbers, [tiles, blocks]; padding: 0.
    """

    rows: torch.Tensor
    real: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor


@dataclass(slots=True)
class _Tile:
    rows: list[int]
    positions: list[int]
    blocks: list[int]


def tile_groups(
    chunks: list[tuple[int, int, int, list[int]]],
) -> list[TileGroup]:
    """Cuts chunks, given as (first row, begin, end, block table), into groups of alike tiles."""
    tiles = [tile for chunk in chunks for tile in _tiles(*chunk)]
    tiles.sort(key=lambda tile: len(tile.blocks))
    groups: list[TileGroup] = []
    members: list[_Tile] = []
    for tile in tiles:
        # A group is as wide as its last tile: at most twice its first, and bounded in all.
        too_wide = len(tile.blocks) > 2 * len(members[0].blocks) if members else False
        too_many = (len(members) + 1) * len(tile.blocks) > GATHER_BLOCK_COUNT_MAX
        if members and (too_wide or too_many):
            groups.append(_group(members))
            members = []
        members.append(tile)
    return [*groups, _group(members)]


def _tiles(first_row: int, begin: int, end: int, blocks: list[int]) -> Iterator[_Tile]:
    for at in range(begin, end, TILE_TOKEN_COUNT):
        stop = min(at + TILE_TOKEN_COUNT, end)
        rows = [first_row + position - begin for position in range(at, stop)]
        used = -(-stop // BLOCK_TOKEN_COUNT)
        yield _Tile(rows, list(range(at, stop)), blocks[:used])


def _group(tiles: list[_Tile]) -> TileGroup:
    width = max(len(tile.blocks) for tile in tiles)
    shape = (len(tiles), TILE_TOKEN_COUNT)
    rows, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    real = np.zeros(shape, bool)
    tables = np.zeros((len(tiles), width), np.int64)
    for index, tile in enumerate(tiles):
        count = len(tile.rows)
        rows[index, :count], positions[index, :count] = tile.rows, tile.positions
        real[index, :count] = True
        tables[index, : len(tile.blocks)] = tile.blocks
    return TileGroup(*(torch.from_numpy(array) for array in (rows, real, positions, tables)))


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: TileGroup,
    window: int,
) -> torch.Tensor:
    """Attention of the tokens of one group.

    Args:
        query: [rows of the step, heads, head_dim], rotated and scaled.
        keys, values: the layer's cache, [blocks, KV heads, 16, head_dim].
        window: newest positions that a token sees; 0: all.

    Returns:
        [tiles, TILE_TOKEN_COUNT, heads, head_dim]; padding rows hold nothing of use.
    """
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    tile_count, width = group.tables.shape
    shared = query.shape[1] // kv_heads  # query heads of one KV head
    # [tiles, 1, KV heads, shared * tokens, head_dim]
    tiles = query[group.rows].view(tile_count, TILE_TOKEN_COUNT, kv_heads, shared, head_dim)
    tiles = tiles.permute(0, 2, 3, 1, 4).reshape(tile_count, 1, kv_heads, -1, head_dim)
    gathered = _gather(keys, group)
    scores = torch.matmul(tiles, gathered.transpose(-1, -2))
    scores = scores.view(tile_count, width, kv_heads, shared, TILE_TOKEN_COUNT, BLOCK_TOKEN_COUNT)
    hidden = _hidden(group, window)[:, :, None, None]
    scores.masked_fill_(hidden, -torch.inf)
    scores.sub_(scores.amax(5, keepdim=True).amax(1, keepdim=True))
    weights = torch.exp_(scores.clamp_min_(LOGIT_MIN)).masked_fill_(hidden, 0)
    total = tree_sum(weights.sum(-1))  # [tiles, KV heads, shared, tokens]
    weights = weights.view(tile_count, width, kv_heads, -1, BLOCK_TOKEN_COUNT)
    mixed = tree_sum(torch.matmul(weights, _gather(values, group)))
    mixed = mixed.view(tile_count, kv_heads, shared, TILE_TOKEN_COUNT, head_dim)
    return (
        (mixed / total[..., None]).permute(0, 3, 1, 2, 4).reshape(tile_count, TILE_TOKEN_COUNT, -1)
    )


def _gather(cache: torch.Tensor, group: TileGroup) -> torch.Tensor:
    """The blocks of each tile, [tiles, blocks, KV heads, 16, head_dim]."""
    chosen = cache.index_select(0, group.tables.view(-1))  # 3x as fast as cache[tables]
    return chosen.view(*group.tables.shape, *cache.shape[1:])


def _hidden(group: TileGroup, window: int) -> torch.Tensor:
    """Which keys a token must not see: [tiles, blocks, tokens, 16]."""
    width = group.tables.shape[1]
    keys = torch.arange(width * BLOCK_TOKEN_COUNT).view(1, width, 1, BLOCK_TOKEN_COUNT)
    positions = group.positions[:, None, :, None]
    hidden = keys > positions
    return hidden | (keys <= positions - window) if window else hidden
