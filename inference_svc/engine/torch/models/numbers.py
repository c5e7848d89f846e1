"""Kinds of numbers that weights are kept in, with numpy alone: bfloat16 as the bits of a uint16.

int8 is symmetric: value = q * scale with q in [-127, 127], one scale for each row of a matrix (an
output channel). -128 is not used, so that no product of two of them overflows a pair of int16.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["f32", "bf16", "int8"]
INT8_MAX = 127
_SLAB_BYTES = 1 << 20  # rows are converted in slabs that stay in the cache


def to_f32(values: Array) -> npt.NDArray[np.float32]:
    """float32 of float32, float16 or bfloat16 bits; exact."""
    if values.dtype != np.uint16:
        return values.astype(np.float32, copy=False)
    return (values.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """bfloat16 bits, rounded to nearest, ties to even; NaN stays NaN."""
    if values.dtype == np.uint16:
        return values
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def to_int8(values: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rows as int8 and their scales, [rows]; a row of zeros has scale 0."""
    rows, columns = values.shape
    quantised, scales = np.empty(values.shape, np.int8), np.empty(rows, np.float32)
    step = max(1, _SLAB_BYTES // (4 * columns))
    for begin in range(0, rows, step):
        part = to_f32(values[begin : begin + step])
        largest = np.abs(part).max(1)
        scales[begin : begin + step] = largest / INT8_MAX
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.where(largest > 0, INT8_MAX / largest, 0).astype(np.float32)
            quantised[begin : begin + step] = np.rint(part * inverse[:, None])
    return quantised, scales
