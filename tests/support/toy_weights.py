"""Weights of toy models: folders to spoil, and whether two models hold the same numbers."""

import json
from pathlib import Path

import numpy as np

from inference_svc.engine.torch.models.config import read_config
from inference_svc.engine.torch.models.weight_cache import open_weights
from inference_svc.engine.torch.models.weights import ModelWeights
from inference_svc.model_folder import ModelFolder
from tests.support.toy_folder import write_model


def copied(model: ModelFolder, folder: Path, **config: object) -> Path:
    base = json.loads((model.folder / "config.json").read_text())
    write_model(folder, **(base | config))
    (folder / "model.safetensors").write_bytes((model.folder / "model.safetensors").read_bytes())
    return folder


def load(folder: Path, kind: str = "f32", cache: Path | None = None) -> ModelWeights:
    config = json.loads((folder / "config.json").read_text())
    return open_weights(folder, read_config(config), kind, cache)


def everything(weights: ModelWeights) -> list[np.ndarray]:
    """All arrays of a model, in a fixed order."""
    found = [weights.embedding, weights.norm, weights.head.values, weights.head.scales]
    for layer in weights.layers():
        found += [layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm]
        for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
            found += [matrix.values, matrix.scales, matrix.bias]
    return [array for array in found if array is not None]


def same(one: ModelWeights, other: ModelWeights) -> bool:
    pairs = list(zip(everything(one), everything(other), strict=True))
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
