"""The arithmetic of the torch back end: what makes a row's bits its own."""

import numpy as np
import pytest
import torch

from inference_svc.engine.torch.backend import Step
from inference_svc.engine.torch.eager.attention import SMALL_TILE, large_tile, tile_groups
from inference_svc.engine.torch.eager.invariant import (
    FloatLinear,
    Int8Linear,
    _product_of_floats,
    padded,
    quantised,
    row_count_for,
    tree_sum,
)
from inference_svc.engine.torch.models.numbers import to_int8
from inference_svc.engine.torch.models.weights import Matrix

pytestmark = pytest.mark.usefixtures("one_thread")


def padded_rows(rows: torch.Tensor, multiple: int) -> torch.Tensor:
    out = torch.zeros(padded(len(rows), multiple), rows.shape[1])
    out[: len(rows)] = rows
    return out


def test_the_check_sees_a_matrix_product_that_depends_on_the_batch() -> None:
    """Without blocks of fixed rows the last bits differ: what the engine works around is real."""
    weight, rows = torch.randn(768, 256), torch.randn(40, 256)
    free = [torch.equal((rows[:n] @ weight.t())[0], (rows @ weight.t())[0]) for n in range(1, 40)]
    if all(free):
        pytest.skip("this machine's BLAS treats all batch sizes alike")
    linear = FloatLinear(Matrix(weight.numpy()), row_count := row_count_for({(768, 256)}))
    fixed = [linear(padded_rows(rows[:n], row_count))[0] for n in range(1, 40)]
    assert all(torch.equal(one, fixed[0]) for one in fixed)


@pytest.mark.parametrize("bias", [False, True])
def test_an_int8_product_is_that_of_the_rounded_numbers(bias) -> None:
    numbers = np.random.default_rng(1)
    weight = numbers.standard_normal((30, 2100), np.float32)
    values, scales = to_int8(weight)
    added = numbers.standard_normal(30, np.float32) if bias else None
    rows = torch.randn(5, 2100)
    rows[3] = 0
    out = Int8Linear(Matrix(values, scales, added))(rows)
    q, s = quantised(rows)
    weights = torch.from_numpy(values * scales[:, None].astype(np.float64))
    expected = (q.double() * s[:, None].double()) @ weights.T
    expected += torch.from_numpy(added if bias else np.zeros(30))
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-5)
    assert (q.abs().amax(1)[[0, 1, 2, 4]] == 127).all()


def test_the_integer_product_is_exact_without_int8_instructions_too() -> None:
    q = torch.randint(-127, 128, (4, 5000), dtype=torch.int8)
    q[0] = 127
    weight = torch.randint(-127, 128, (9, 5000), dtype=torch.int8)
    weight[0] = 127
    expected = (q.long() @ weight.t().long()).int()
    assert torch.equal(_product_of_floats(q, weight.t()), expected)


def test_trailing_zeros_do_not_change_a_sum() -> None:
    parts = torch.randn(3, 11, 4)
    longer = torch.cat([parts, torch.zeros(3, 20, 4)], 1)
    assert torch.equal(tree_sum(longer), tree_sum(parts))
    torch.testing.assert_close(tree_sum(parts), parts.sum(1))


@pytest.mark.parametrize("large", [32, SMALL_TILE])
def test_every_row_is_in_one_tile_with_its_blocks(large) -> None:
    lengths, begins = [70, 1, 5, 33, 1], [3, 40, 16, 0, 700]
    starts = np.array([0, *np.cumsum(lengths)], np.int32)
    tables = np.arange(5 * 46, dtype=np.int32).reshape(5, 46) + 1
    rows = np.arange(starts[-1], dtype=np.int32)
    step = Step(rows, starts, np.array(begins, np.int32), tables, rows[:0])
    found = {}
    for group in tile_groups(step, large):
        assert group.rows.shape[1] in (large, SMALL_TILE)
        for tile in range(len(group.rows)):
            for token in group.real[tile].nonzero()[:, 0].tolist():
                position = int(group.positions[tile, token])
                used = group.tables[tile, : position // 16 + 1].tolist()
                found[int(group.rows[tile, token])] = (position, used)
    expected = {}
    for chunk, (length, begin) in enumerate(zip(lengths, begins, strict=True)):
        for offset in range(length):
            position = begin + offset
            used = tables[chunk, : position // 16 + 1].tolist()
            expected[int(starts[chunk]) + offset] = (position, used)
    assert found == expected


def test_a_large_tile_is_taken_only_where_it_gives_the_same_bits(monkeypatch) -> None:
    assert large_tile(64, 2) >= SMALL_TILE
    plain = torch.matmul

    def by_rows(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """A library whose sums depend on the number of rows."""
        return plain(one, other) * (1 + one.shape[-2] * 2**-20)

    monkeypatch.setattr(torch, "matmul", by_rows)
    assert large_tile(64, 2) == SMALL_TILE
