"""The arrays of a step: what a back end is told about chunks."""

from array import array
from dataclasses import dataclass

import numpy as np
import pytest

from inference_svc.engine.torch.backend import Step, StepResult
from inference_svc.engine.torch.model_runner import ModelRunner


@dataclass
class Tokens:
    token_ids: object
    blocks: object


@dataclass
class Piece:
    sequence: Tokens
    begin: int
    end: int
    samples: bool
    draft_token_ids: tuple[int, ...] = ()


class Recorder:
    """A back end that answers with the rows that it was asked for."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, step: Step) -> StepResult:
        self.steps.append(step)
        rows = step.logit_rows
        sound = np.ones(step.chunk_begins.size, bool)
        return StepResult(rows.astype(np.float32)[:, None], rows.copy(), sound)


@pytest.mark.parametrize("row", [list, lambda values: array("i", values)], ids=["list", "array"])
def test_chunks_become_arrays(row) -> None:
    prefill = Piece(Tokens(row(range(100, 140)), row([9, 4, 2])), 0, 20, False)
    last = Piece(Tokens(row(range(200, 233)), row([1, 5, 6])), 17, 33, True)
    decode = Piece(Tokens(row([7] * 17), row([3, 8])), 16, 17, True)
    drafted = Piece(Tokens(row([50, 51]), row([10, 11])), 1, 2, True, (60, 61, 62))
    runner = ModelRunner(backend := Recorder())
    computed = runner.step([prefill, last, decode, drafted])
    (step,) = backend.steps
    expected = [*range(100, 120), *range(217, 233), 7, 51, 60, 61, 62]
    assert step.token_ids.tolist() == expected
    assert step.chunk_starts.tolist() == [0, 20, 36, 37, 41]
    assert step.chunk_begins.tolist() == [0, 17, 16, 1]
    assert step.block_tables.tolist() == [[9, 4, 0], [1, 5, 6], [3, 8, 0], [10, 0, 0]]
    assert step.logit_rows.tolist() == [35, 36, 37, 38, 39, 40]
    assert computed.logit_starts == [0, 0, 1, 2, 6]
    assert computed.greedy_token_ids.tolist() == [35, 36, 37, 38, 39, 40]
    for values in (step.token_ids, step.chunk_starts, step.chunk_begins, step.block_tables):
        assert values.dtype == np.int32
        assert values.flags.c_contiguous


def test_the_arrays_grow_and_hold_nothing_of_the_step_before() -> None:
    runner = ModelRunner(Recorder())
    long = Tokens(array("i", range(9000)), array("i", range(563)))
    step, _ = runner.arrays([Piece(long, 0, 9000, True)])
    assert step.token_ids.tolist() == list(range(9000))
    many = [Piece(Tokens([n, n], [n]), 1, 2, True) for n in range(1, 700)]
    step, starts = runner.arrays([*many, Piece(long, 100, 101, True)])
    assert step.block_tables.shape == (700, 7)
    assert step.block_tables[:699, 0].tolist() == list(range(1, 700))
    assert not step.block_tables[:699, 1:].any()
    assert starts == list(range(701))


def test_logits_of_a_gpu_are_fetched_once_and_only_when_wanted() -> None:
    fetched = []

    def fetch() -> np.ndarray:
        fetched.append(1)
        return np.zeros((1, 3), np.float32)

    result = StepResult(fetch, np.zeros(1, np.int32), np.ones(1, bool))
    assert not fetched
    assert result.logits.shape == (1, 3)
    assert result.logits is result.logits
    assert len(fetched) == 1
