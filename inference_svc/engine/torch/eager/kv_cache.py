"""Keys and values of one layer in blocks of 16 tokens, in float32, bfloat16 or int8."""

from collections.abc import Sequence

import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.eager.invariant import quantised
from inference_svc.engine.torch.models.numbers import Kind

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
SCALE_BYTES = 4


def block_bytes(kv_head_count: int, head_dim: int, kind: Kind) -> int:
    """Memory of one block of one layer, keys and values and their scales."""
    scale = SCALE_BYTES if kind == "int8" else 0
    width = head_dim * _DTYPES[kind].itemsize + scale
    return 2 * kv_head_count * BLOCK_TOKEN_COUNT * width


class Half:
    """The keys, or the values: [blocks, KV heads, 16, head_dim].

    int8 has one scale for each token and KV head: [blocks, KV heads, 16].
    """

    def __init__(self, block_count: int, kv_head_count: int, head_dim: int, kind: Kind) -> None:
        shape = (block_count, kv_head_count, BLOCK_TOKEN_COUNT)
        self.values = torch.zeros(*shape, head_dim, dtype=_DTYPES[kind])
        self.scales = torch.zeros(shape) if kind == "int8" else None

    def write(self, blocks: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor) -> None:
        """Keeps `rows` [tokens, KV heads, head_dim] at the blocks and offsets of its tokens."""
        if self.scales is None:
            self.values[blocks, :, offsets] = rows.to(self.values.dtype)
        else:
            self.values[blocks, :, offsets], self.scales[blocks, :, offsets] = quantised(rows)

    def gather(self, tables: torch.Tensor) -> torch.Tensor:
        """Blocks [tiles, blocks] as float32, [tiles, blocks, KV heads, 16, head_dim]."""
        wanted = tables.view(-1)
        chosen = self.values.index_select(0, wanted).float()  # 3x as fast as values[tables]
        if self.scales is not None:
            chosen *= self.scales.index_select(0, wanted)[..., None]
        return chosen.view(*tables.shape, *self.values.shape[1:])

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks."""
        for tensor in self._tensors():
            tensor[list(targets)] = tensor[list(sources)]

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks."""
        for tensor in self._tensors():
            tensor[list(blocks)] = 0

    def _tensors(self) -> list[torch.Tensor]:
        return [self.values] if self.scales is None else [self.values, self.scales]
