"""The back ends that this machine can run, for tests that hold for all of them."""

import pytest
import torch

from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.backends import open_backend, why_no_kernels
from inference_svc.engine.torch.cuda.backend import CudaBackend
from inference_svc.engine.torch.kernels.library import unavailable_reason
from inference_svc.engine.torch.models.config import read_config
from inference_svc.engine.torch.models.numbers import Kind
from inference_svc.engine.torch.models.weight_cache import open_weights
from inference_svc.model_folder import ModelFolder

# The CUDA back end's own code, on the CPU: the attention in plain torch, no graphs are captured.
CUDA_ON_CPU = "cuda-on-cpu"


BACKENDS = [
    "torch",
    CUDA_ON_CPU,
    *([] if unavailable_reason() else ["kernels"]),
    *(["cuda"] if torch.cuda.is_available() else []),
]


# All (weights, KV) that tests go through; a back end takes those that it offers.
KINDS: list[tuple[Kind, Kind]] = [
    ("f32", "f32"),
    ("bf16", "bf16"),
    ("int8", "f32"),
    ("int8", "int8"),
]
CASES = [
    (backend, kinds)
    for backend in BACKENDS
    for kinds in KINDS
    if not backend.startswith("cuda") or kinds in CudaBackend.KINDS
]
# Those whose results do not depend on the batch in any bit.
EXACT_CASES = [case for case in CASES if case[0] in ("torch", "kernels")]


def opened(model: ModelFolder, backend: str, weights: Kind, kv: Kind, block_count: int) -> Backend:
    """The back end with the model in it and its KV cache allocated.

    A shape that the kernels do not compute skips the test.
    """
    loaded: Backend
    if backend == "kernels" and (reason := why_no_kernels(read_config(model.config))):
        pytest.skip(reason)
    if backend == CUDA_ON_CPU:
        opened_weights = open_weights(model.folder, read_config(model.config), weights, None)
        loaded = CudaBackend(opened_weights, kv, device="cpu")
    else:
        loaded = open_backend(model, backend=backend, weights=weights, kv=kv, thread_count=1)
    loaded.allocate(block_count)
    return loaded
