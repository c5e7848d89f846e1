"""What the kernels refuse, how they are built, and what is said where they are missing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.kernels import backend as backend_module
from inference_svc.engine.torch.kernels import library
from inference_svc.engine.torch.kernels.backend import KernelsBackend
from mesh.chassis.native import NativeLibrary
from tests.unit.inference.kernels_reference import (
    RandomWeights,
    Sequence,
    config_of,
    needs_kernels,
    step_of,
)


@pytest.fixture
def kernels():
    backend = KernelsBackend(RandomWeights(config_of()), "f32", 1)
    backend.allocate(4)
    yield backend
    backend.close()
    backend.close()  # a second time does nothing


@needs_kernels
def test_wrong_numbers_are_refused_and_the_next_step_works(kernels: KernelsBackend) -> None:
    def step(token_id: int = 3, block: int = 2):
        return step_of([(Sequence([token_id] * 5, [block]), 5)])

    for wrong in (step(token_id=117), step(token_id=-1)):
        with pytest.raises(EngineError, match="token id"):
            kernels.step(wrong)
    narrow = dataclasses.replace(step(), block_tables=np.empty((1, 0), np.int32))
    for wrong in (step(block=4), step(block=-1), narrow):
        with pytest.raises(EngineError, match="block"):
            kernels.step(wrong)
    for part, numbers in (("chunk_starts", [0, 6]), ("chunk_starts", [1, 5]), ("logit_rows", [5])):
        wrong = dataclasses.replace(step(), **{part: np.array(numbers, np.int32)})
        with pytest.raises(EngineError, match="rows"):
            kernels.step(wrong)
    with pytest.raises(EngineError, match="block"):
        kernels.wipe([4])
    with pytest.raises(EngineError, match="block"):
        kernels.copy_blocks([0], [4])
    assert kernels.step(step()).sound.all()


@needs_kernels
def test_positions_beyond_the_first_table_of_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = RandomWeights(config_of())
    results = []
    for first in (4096, 8):
        monkeypatch.setattr(backend_module, "FIRST_ROTATION_COUNT", first)
        kernels = KernelsBackend(weights, "f32", 1)
        kernels.allocate(4)
        results.append(kernels.step(step_of([(Sequence([7] * 60, [0, 1, 2, 3]), 60)])).logits)
        kernels.close()
    np.testing.assert_array_equal(*results)


@needs_kernels
def test_what_cannot_be_served_is_told(kernels: KernelsBackend) -> None:
    with pytest.raises(EngineError, match="multiple of 16"):
        KernelsBackend(RandomWeights(config_of(head_dim=24)), "f32", 1)
    with pytest.raises(EngineError, match="level 'avx9000'"):
        KernelsBackend(RandomWeights(config_of()), "f32", 1, level="avx9000")
    for count in (1 << 40, 0, -1):
        with pytest.raises(EngineError, match="INFERENCE_KV_CACHE_BYTES"):
            kernels.allocate(count)


def test_a_missing_or_broken_library_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(NativeLibrary, "path", lambda self: tmp_path / "libkernels.so")
    assert library.BUILD_COMMAND in library.unavailable_reason()
    library.load.cache_clear()
    (tmp_path / "libkernels.so").write_bytes(b"not a library")
    assert "does not load" in library.unavailable_reason()
    library.load.cache_clear()
