"""Chooses the back end and the kinds of its numbers, and loads the model into it.

    INFERENCE_BACKEND=auto:  cuda, where torch sees a GPU  >  kernels, where they were built and the
                             CPU can run them  >  torch

Only the back end that is chosen is imported: a node on the kernels never loads torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch import quality
from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.models.config import ModelConfig, read_config
from inference_svc.engine.torch.models.numbers import Kind
from inference_svc.engine.torch.models.weight_cache import Checkpoints, cache_folder
from inference_svc.engine.torch.models.weights import ModelWeights
from inference_svc.model_folder import ModelFolder

log = structlog.get_logger()

KINDS: tuple[Kind, ...] = ("f32", "bf16", "int8")
EXACT: Kind = "bf16"  # for checkpoints in bfloat16, as nearly all are
# Weights of "auto"; int8 only for models that lose little by it: docs/decisions/0011.
AUTO_WEIGHTS: Mapping[str, Kind] = {"kernels": "int8", "torch": "int8", "cuda": "bf16"}


def open_backend(
    model: ModelFolder,
    *,
    backend: str = "auto",
    weights: str = "auto",
    kv: str = "auto",
    thread_count: int = 1,
    cache: Path | None = None,
    checkpoints: Checkpoints | None = None,
) -> Backend:
    """The back end with the model in it; its KV cache is still to be allocated.

    Args:
        backend: "auto", "kernels", "torch" or "cuda".
        weights, kv: kind of the weights and of the KV cache: "auto", "f32", "bf16" or "int8". The
            KV cache is as the weights when it is "auto".
        thread_count: threads that compute.
        cache: where int8 weights are kept between starts; None: the user's cache folder.
        checkpoints: the model's weights, when they are open already.

    Raises:
        EngineError: the model cannot be served, or not so; the text says why.
    """
    config = read_config(model.config)
    name, make = _chosen(backend, config)
    weight_kind = _kind("INFERENCE_WEIGHTS", weights, AUTO_WEIGHTS[name])
    kv_kind = _kind("INFERENCE_KV", kv, weight_kind)
    opened = checkpoints or open_checkpoints(model, cache)

    def load(weight_kind: Kind, kv_kind: Kind) -> Backend:
        return make(opened.weights(weight_kind), kv_kind, thread_count)

    measured = weights == "auto" and weight_kind == "int8"
    if measured and not _int8_is_acceptable(model, opened.entry, kv_kind, load):
        weight_kind, kv_kind = EXACT, EXACT if kv == "auto" else kv_kind
    loaded = load(weight_kind, kv_kind)
    log.info("model_loaded", backend=name, weights=weight_kind, kv=kv_kind, threads=thread_count)
    return loaded


def open_checkpoints(model: ModelFolder, cache: Path | None = None) -> Checkpoints:
    """The weights of a model, not read yet; `cache` as in `open_backend`.

    Raises:
        EngineError: they are missing, corrupt or altered.
    """
    return Checkpoints(model.folder, read_config(model.config), cache or cache_folder())


def offered_kinds(model: ModelFolder, backend: str) -> list[tuple[Kind, Kind]]:
    """The (weights, KV) that the back end offers which `open_backend` would take, f32 first."""
    name, _ = _chosen(backend, read_config(model.config))
    pairs = [(weights, kv) for weights in KINDS for kv in KINDS]
    if name != "cuda":
        return pairs
    from inference_svc.engine.torch.cuda.backend import CudaBackend

    return [pair for pair in pairs if pair in CudaBackend.KINDS]


def _int8_is_acceptable(
    model: ModelFolder, entry: Path | None, kv: Kind, load: Callable[[Kind, Kind], Backend]
) -> bool:
    """Measures what int8 costs this model, unless that is known already."""
    nats = quality.read_verdict(entry, kv)
    if nats is None:
        ids = quality.sample_token_ids(model.folder, model.context_token_count_max)
        if len(ids) < 2:  # noqa: PLR2004  # nothing to compare
            return False
        exact = quality.sample_logits(load(EXACT, EXACT), ids)
        nats = quality.divergence(exact, quality.sample_logits(load("int8", kv), ids))
        quality.write_verdict(entry, kv, nats)
        log.info("int8_measured", model=model.id, nats=nats, nats_max=quality.DIVERGENCE_MAX)
    return nats < quality.DIVERGENCE_MAX  # NaN is not


# Of NVIDIA's driver: on Linux, in containers, in the Windows subsystem for Linux.
_DRIVER_PATHS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")

_Maker = Callable[[ModelWeights, Kind, int], Backend]


def _chosen(backend: str, config: ModelConfig) -> tuple[str, _Maker]:
    if backend not in ("auto", *_MAKERS):
        names = ", ".join(("auto", *_MAKERS))
        raise EngineError(f"INFERENCE_BACKEND={backend} is unknown; choose one of: {names}.")
    if backend == "cuda" or (backend == "auto" and _has_gpu()):
        if not _has_gpu():
            raise EngineError("INFERENCE_BACKEND=cuda, but torch sees no GPU; use auto.")
        return "cuda", _cuda
    if backend == "torch":
        return "torch", _torch
    if reason := why_no_kernels(config):
        if backend == "kernels":
            raise EngineError(
                f"INFERENCE_BACKEND=kernels cannot serve {config.architecture}: {reason}"
            )
        log.warning("kernels_unavailable", reason=reason, serves="torch, several times slower")
        return "torch", _torch
    return "kernels", _kernels


def why_no_kernels(config: ModelConfig) -> str:
    """Empty when the kernels can serve the model here, else why not, as part of a sentence."""
    from inference_svc.engine.torch.kernels.backend import (
        HEAD_DIM_MAX,
        HEAD_DIM_MULTIPLE,
        unavailable_reason,
    )

    if config.head_dim % HEAD_DIM_MULTIPLE or config.head_dim > HEAD_DIM_MAX:
        wanted = f"a head_dim that is a multiple of {HEAD_DIM_MULTIPLE} up to {HEAD_DIM_MAX}"
        return f"They want {wanted}, not {config.head_dim}."
    return unavailable_reason()


def _has_gpu() -> bool:
    """Looks for the driver first: a node without one need not load torch to know."""
    if not any(Path(path).exists() for path in _DRIVER_PATHS):
        return False
    import torch

    return torch.cuda.is_available()


def _kernels(weights: ModelWeights, kv_kind: Kind, thread_count: int) -> Backend:
    from inference_svc.engine.torch.kernels.backend import KernelsBackend

    return KernelsBackend(weights, kv_kind, thread_count)


def _torch(weights: ModelWeights, kv_kind: Kind, thread_count: int) -> Backend:
    from inference_svc.engine.torch.eager.backend import TorchBackend

    return TorchBackend(weights, kv_kind, thread_count)


def _cuda(weights: ModelWeights, kv_kind: Kind, thread_count: int) -> Backend:
    from inference_svc.engine.torch.cuda.backend import CudaBackend

    return CudaBackend(weights, kv_kind)


_MAKERS: Mapping[str, _Maker] = {"kernels": _kernels, "torch": _torch, "cuda": _cuda}


def _kind(setting: str, value: str, auto: Kind) -> Kind:
    for kind in KINDS:
        if value == kind:
            return kind
    if value == "auto":
        return auto
    raise EngineError(f"{setting}={value} is unknown; choose one of: auto, {', '.join(KINDS)}.")
