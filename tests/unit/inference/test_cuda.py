"""The CUDA back end's parts that need no GPU, and on a GPU its kernels against the reference."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.backend import Step
from inference_svc.engine.torch.cuda.attention import Paged, key_slots, reference, varlen
from inference_svc.engine.torch.cuda.backend import CudaBackend
from inference_svc.engine.torch.cuda.graphs import (
    FIRST_TABLE,
    LENGTH,
    POSITION,
    TOKEN,
    DecodeGraphs,
    Output,
    batch_sizes,
)
from inference_svc.engine.torch.models.config import read_config
from inference_svc.engine.torch.models.weight_cache import open_weights
from tests.support.toy_models import make_model, prompt

GPU = torch.cuda.is_available()


def test_graph_sizes_are_powers_of_two_up_to_the_largest_batch() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(2) == (1, 2)
    assert batch_sizes(33) == (1, 2, 4, 8, 16, 32, 64)
    assert batch_sizes(64) == (1, 2, 4, 8, 16, 32, 64)


class Echo:
    """A forward pass that returns what it was given."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []

    def __call__(self, inputs: torch.Tensor) -> Output:
        self.inputs.append(inputs.clone())
        rows = inputs.shape[0]
        return Output(inputs.float(), inputs[:, TOKEN], torch.ones(rows, dtype=torch.bool))


def decode_step(count: int, width: int = 2) -> Step:
    rows = np.arange(count, dtype=np.int32)
    tables = np.arange(1, count * width + 1, dtype=np.int32).reshape(count, width)
    starts = np.arange(count + 1, dtype=np.int32)
    return Step(rows + 100, starts, rows + 16, tables, rows)


def test_a_decode_batch_is_padded_to_the_next_graph() -> None:
    graphs = DecodeGraphs(
        echo := Echo(), batch_max=8, width=5, scratch_block=99, device="cpu", captured=False
    )
    assert [graphs.size_for(decode_step(n)) for n in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, 0]
    mixed = Step(*(np.array(v, np.int32) for v in ([1, 2, 3], [0, 1, 3], [4, 0], [[1], [2]], [0])))
    assert graphs.size_for(mixed) == 0
    graphs.run(decode_step(8), 8)  # leaves its rows behind
    graphs.run(decode_step(3), 4)
    inputs = echo.inputs[-1]
    assert inputs.shape == (4, FIRST_TABLE + 5)
    assert inputs[:, TOKEN].tolist() == [100, 101, 102, 0]
    assert inputs[:, POSITION].tolist() == [16, 17, 18, 0]
    assert inputs[:, LENGTH].tolist() == [17, 18, 19, 1]
    assert inputs[:3, FIRST_TABLE : FIRST_TABLE + 2].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert inputs[3, FIRST_TABLE] == 99


def paged_case(lengths: list[int], counts: list[int], seed: int = 0) -> Paged:
    """Sequences on scattered blocks; the newest `counts` positions of each are queries."""
    blocks = [-(-length // 16) for length in lengths]
    numbers = np.random.default_rng(seed).permutation(sum(blocks) + 5)
    tables = np.zeros((len(lengths), max(blocks)), np.int32)
    for row, used in enumerate(blocks):
        tables[row, :used], numbers = numbers[:used], numbers[used:]
    return Paged(
        torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.from_numpy(tables),
        max(counts),
        max(lengths),
        sum(lengths),
    )


def test_keys_of_all_sequences_are_found_in_order() -> None:
    paged = paged_case([3, 17, 40], [3, 1, 8])
    slots, starts = key_slots(paged)
    assert starts.tolist() == [0, 3, 20, 60]
    table = paged.tables
    expected = [
        int(table[s, p // 16]) * 16 + p % 16 for s, n in enumerate([3, 17, 40]) for p in range(n)
    ]
    assert slots.tolist() == expected


@pytest.mark.parametrize("window", [0, 5])
def test_the_reference_is_plain_attention(window) -> None:
    lengths, counts = [3, 21], [3, 4]
    paged, dim = paged_case(lengths, counts), 8
    keys, values = torch.randn(12, 16, 2, dim), torch.randn(12, 16, 2, dim)
    query = torch.randn(sum(counts), 4, dim)
    out = reference(query, keys, values, paged, window)
    slots, starts = key_slots(paged)
    row = 0
    for index, count in enumerate(counts):
        mine = slots[starts[index] : starts[index + 1]]
        for position in range(lengths[index] - count, lengths[index]):
            first = max(0, position - window + 1) if window else 0
            k = keys.flatten(0, 1)[mine[first : position + 1]].repeat_interleave(2, 1)
            v = values.flatten(0, 1)[mine[first : position + 1]].repeat_interleave(2, 1)
            weights = torch.softmax(torch.einsum("hd,khd->hk", query[row], k) * dim**-0.5, 1)
            torch.testing.assert_close(out[row], torch.einsum("hk,khd->hd", weights, v))
            row += 1


def test_a_padded_decode_step_is_the_mixed_step(tmp_path) -> None:
    """Steps of one row each go through padding and the graph's arrays; others do not."""
    model = make_model(tmp_path / "m", "qwen3", head_dim=24)
    weights = open_weights(model.folder, read_config(model.config), "f32", None)
    results = []
    for graph_batch_max in (8, 1):  # three rows: padded to four, or computed as a mixed step
        backend = CudaBackend(weights, "f32", device="cpu", graph_batch_max=graph_batch_max)
        backend.allocate(12)
        ids = np.array(prompt(1, 60), np.int32)
        tables = np.array([[3, 7], [1, 2], [9, 0]], np.int32)
        backend.step(
            Step(ids[:57], np.array([0, 20, 40, 57], np.int32), np.zeros(3, np.int32),
                 np.array([[3, 7], [1, 2], [9, 4]], np.int32), np.zeros(0, np.int32))
        )  # fmt: skip
        result = backend.step(
            Step(ids[57:], np.arange(4, dtype=np.int32), np.array([20, 20, 5], np.int32), tables,
                 np.array([0, 2], np.int32))
        )  # fmt: skip
        assert result.sound.all()
        assert result.greedy_token_ids.tolist() == result.logits.argmax(1).tolist()
        results.append(result.logits)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_kinds_that_a_gpu_does_not_serve_are_refused(tmp_path) -> None:
    model = make_model(tmp_path / "m", "llama")
    weights = open_weights(model.folder, read_config(model.config), "int8", None)
    with pytest.raises(EngineError, match="bf16 for both"):
        CudaBackend(weights, "int8", device="cpu")


DECODE_CASES = [  # heads, KV heads, head_dim, window, lengths
    (4, 2, 32, 0, [1, 17, 70]),
    (2, 2, 24, 0, [600]),  # two parts
    (4, 1, 64, 20, [19, 21, 530]),
]


def check_decode(device: str, dtype: torch.dtype) -> None:
    """The Triton kernel against the reference."""
    from inference_svc.engine.torch.cuda.paged_decode import decode

    torch.manual_seed(0)
    for heads, kv_heads, dim, window, lengths in DECODE_CASES:
        on_host = paged_case(lengths, [1] * len(lengths))
        paged = Paged(
            on_host.query_starts.to(device), on_host.lengths.to(device), on_host.tables.to(device),
            1, on_host.length_max, on_host.length_sum,
        )  # fmt: skip
        blocks = sum(-(-length // 16) for length in lengths) + 5
        keys, values = torch.randn(2, blocks, 16, kv_heads, dim, device=device).to(dtype)
        query = torch.randn(len(lengths), heads, dim, device=device).to(dtype)
        expected = reference(query, keys, values, paged, window)
        tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
        got = decode(query, keys, values, paged, window)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(GPU, reason="the kernel itself is tested below")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_decode_kernel_in_tritons_interpreter() -> None:
    """In a process of its own: the interpreter is chosen when triton is imported."""
    code = (
        "import torch; from tests.unit.inference.test_cuda import check_decode\n"
        "for dtype in (torch.float32, torch.float16): check_decode('cpu', dtype)"
    )
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=100)


@pytest.mark.skipif(not GPU, reason="no GPU")
def test_the_decode_kernel_on_a_gpu() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check_decode("cuda", dtype)


@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize("window", [0, 20])
def test_flash_attention_over_gathered_blocks_on_a_gpu(window) -> None:
    on_host = paged_case([3, 40, 700], [3, 1, 300])
    paged = Paged(
        on_host.query_starts.cuda(), on_host.lengths.cuda(), on_host.tables.cuda(), 300, 700, 743
    )
    keys, values = torch.randn(2, 60, 16, 2, 64, device="cuda").bfloat16()
    query = torch.randn(304, 8, 64, device="cuda").bfloat16()
    expected = reference(query, keys, values, paged, window)
    got = varlen(query, keys, values, paged, window)
    torch.testing.assert_close(got, expected, rtol=4e-2, atol=4e-2)
