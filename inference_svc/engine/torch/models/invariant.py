"""Arithmetic whose result for a row does not depend on the other rows.

A BLAS library picks its kernel, and with it the order of additions, by the shape of the whole
product: the same row alone and in a batch of 32 differ in the last bits, and greedy answers part
at the first near-tie. Three rules keep every row's additions in one order:

- `Linear` multiplies blocks of a fixed number of rows, padded with zeros; that the library treats
  all rows of such a block alike is measured when weights are loaded, not assumed.
- Sums over keys go over blocks of 16 and then pairwise (`tree_sum`): blocks that a longer
  neighbour adds hold zeros, and x + 0 = x.
- `exp` is torch.exp, whose tail elements are computed as the others; `silu` and `softmax` of torch
  are not used: their tails are computed by other code.
"""

import torch

# The block of rows: small, so that decoding a few sequences wastes little.
ROW_COUNT_CANDIDATES = (8, 4, 16, 1)


def padded(count: int, multiple: int) -> int:
    """The next multiple of `multiple`, at least one."""
    return max(1, -(-count // multiple)) * multiple


def tree_sum(parts: torch.Tensor) -> torch.Tensor:
    """Sum over dimension 1, pairwise; trailing zeros never change the result."""
    while (count := parts.shape[1]) > 1:
        even = count - count % 2
        summed = parts[:, 0:even:2] + parts[:, 1:even:2]
        parts = torch.cat([summed, parts[:, even:]], 1) if count % 2 else summed
    return parts[:, 0]


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich, 2019)."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    return gate / (1 + torch.exp(-gate)) * up


class Linear:
    """x @ weight.T + bias on [rows, in], rows a multiple of `row_count`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, row_count: int) -> None:
        self._weight, self._bias, self._row_count = weight.contiguous(), bias, row_count

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product, [rows, out]."""
        out = torch.empty(rows.shape[0], self._weight.shape[0])
        transposed, step = self._weight.t(), self._row_count
        for begin in range(0, rows.shape[0], step):
            block = slice(begin, begin + step)
            torch.mm(rows[block], transposed, out=out[block])
        return out if self._bias is None else out.add_(self._bias)


def row_count_for(weights: list[torch.Tensor]) -> int:
    """The first candidate for which this machine's matrix product treats all rows alike."""
    shapes = {tuple(weight.shape): weight for weight in weights}
    for count in ROW_COUNT_CANDIDATES:
        if all(_rows_are_alike(weight, count) for weight in shapes.values()):
            return count
    raise AssertionError("one row is always alike")


def _rows_are_alike(weight: torch.Tensor, count: int) -> bool:
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, weight.shape[1], generator=generator)
    linear = Linear(weight, None, count)
    expected = linear(rows)
    if any(
        not torch.equal(linear(rows.roll(shift, 0)).roll(-shift, 0), expected)
        for shift in range(1, count)
    ):
        return False
    alone = torch.zeros_like(rows)
    alone[0] = rows[0]
    return torch.equal(linear(alone)[0], expected[0])
