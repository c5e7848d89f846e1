"""Arithmetic whose result for a row does not depend on the other rows.

A BLAS library picks its kernel, and with it the order of additions, by the shape of the whole
product: the same row alone and in a batch of 32 differ in the last bits, and greedy answers part
at the first near-tie. Three rules keep every row's additions in one order:

- `FloatLinear` multiplies blocks of a fixed number of rows, padded with zeros; that the library
  treats all rows of such a block alike is measured when weights are loaded, not assumed.
  `Int8Linear` needs nothing of the kind: sums of integers are exact in any order.
- Sums over keys go over blocks of 16 and then pairwise (`tree_sum`): blocks that a longer
  neighbour adds hold zeros, and x + 0 = x.
- `exp` is torch.exp, whose tail elements are computed as the others; `silu` and `softmax` of torch
  are not used: their tails are computed by other code.
"""

from typing import Protocol

import numpy as np
import torch

from inference_svc.engine.torch.models.numbers import INT8_MAX, to_f32
from inference_svc.engine.torch.models.weights import Matrix

# The block of rows: small, so that decoding a few sequences wastes little.
ROW_COUNT_CANDIDATES = (8, 4, 16, 1)
# Sums of this many products of two int8 are whole numbers below 2**24: exact in float32.
_EXACT_TERM_COUNT = 2**24 // INT8_MAX**2


class Linear(Protocol):
    """x @ weight.T + bias on [rows, in]."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product, [rows, out]."""


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


def quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The last dimension as int8 with one scale: values = q * scale, |q| <= 127.

    Returns:
        q, int8, as `values`; scale, float32, without the last dimension. Zeros have scale 0.
    """
    largest = values.abs().amax(-1)
    inverse = torch.where(largest > 0, INT8_MAX / largest, 0)
    return torch.round(values * inverse[..., None]).to(torch.int8), largest / INT8_MAX


class FloatLinear:
    """In float32, for rows that are a multiple of `row_count`."""

    def __init__(self, matrix: Matrix, row_count: int) -> None:
        self.weight = torch.from_numpy(to_f32(matrix.values))
        self._bias = None if matrix.bias is None else torch.from_numpy(matrix.bias)
        self._row_count = row_count

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product, [rows, out]."""
        out = torch.empty(rows.shape[0], self.weight.shape[0])
        transposed, step = self.weight.t(), self._row_count
        for begin in range(0, rows.shape[0], step):
            block = slice(begin, begin + step)
            torch.mm(rows[block], transposed, out=out[block])
        return out if self._bias is None else out.add_(self._bias)


class Int8Linear:
    """int8 weights and activations: each row is quantised by its own largest value."""

    def __init__(self, matrix: Matrix) -> None:
        assert matrix.scales is not None
        self._weight = torch.from_numpy(matrix.values)
        self._scales = torch.from_numpy(matrix.scales)
        self._bias = None if matrix.bias is None else torch.from_numpy(matrix.bias)
        self._product = torch._int_mm if _int_mm_is_exact() else _product_of_floats

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The product, [rows, out]."""
        values, scales = quantised(rows)
        out = self._product(values, self._weight.t()).float()
        # NaN has no int8: its scale carries it into every output of the row.
        out.mul_(scales[:, None]).mul_(self._scales)
        return out if self._bias is None else out.add_(self._bias)


def _int_mm_is_exact() -> bool:
    """Some CPUs without VNNI add pairs of products in 16 bits, which saturate."""
    rows = torch.full((2, 256), INT8_MAX, dtype=torch.int8)
    weight = torch.full((32, 256), INT8_MAX, dtype=torch.int8)
    weight[1::2] = -INT8_MAX
    product = torch._int_mm(rows, weight.t())
    return torch.equal(product, (rows.long() @ weight.t().long()).int())


def _product_of_floats(rows: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
    """The exact integer product, by float32 sums that are short enough to be exact."""
    out = torch.zeros(rows.shape[0], transposed.shape[1], dtype=torch.int32)
    for begin in range(0, rows.shape[1], _EXACT_TERM_COUNT):
        part = slice(begin, begin + _EXACT_TERM_COUNT)
        out += (rows[:, part].float() @ transposed[part].float()).int()
    return out


def row_count_for(shapes: set[tuple[int, ...]]) -> int:
    """The first candidate for which this machine's matrix product treats all rows alike.

    Args:
        shapes: of the weights, (outputs, inputs).
    """
    for count in ROW_COUNT_CANDIDATES:
        if all(_rows_are_alike(shape, count) for shape in shapes):
            return count
    raise AssertionError("one row is always alike")


def _rows_are_alike(shape: tuple[int, ...], count: int) -> bool:
    numbers = np.random.default_rng(count)
    weight = numbers.standard_normal(shape, np.float32)
    rows = torch.from_numpy(numbers.standard_normal((count, shape[1]), np.float32))
    linear = FloatLinear(Matrix(weight), count)
    expected = linear(rows)
    if any(
        not torch.equal(linear(rows.roll(shift, 0)).roll(-shift, 0), expected)
        for shift in range(1, count)
    ):
        return False
    alone = torch.zeros_like(rows)
    alone[0] = rows[0]
    return torch.equal(linear(alone)[0], expected[0])
