"""int8 weights: kept between starts, and taken by `auto` only where they cost little."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from inference_svc.engine.torch import backends, quality
from inference_svc.engine.torch.backends import open_backend
from inference_svc.engine.torch.models import weight_cache
from inference_svc.engine.torch.models.tensor_files import TensorFiles
from inference_svc.engine.torch.models.weight_cache import CachedWeights
from inference_svc.engine.torch.models.weights import Checkpoint, ModelWeights
from inference_svc.model_folder import open_model
from inference_svc.settings import MODEL_DEFAULT
from tests.support.toy_weights import copied, load, same

# ---- the cache of int8 weights


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_int8_weights_are_quantised_once(request, tmp_path, model) -> None:
    folder = request.getfixturevalue(model).folder
    first, (entry,) = load(folder, "int8", tmp_path), entries(tmp_path)
    made = {file: file.stat().st_mtime_ns for file in entry.iterdir()}
    second = load(folder, "int8", tmp_path)
    assert isinstance(first, CachedWeights)
    assert isinstance(second, CachedWeights)
    assert same(first, load(folder, "int8"))
    assert same(second, first)
    assert {file: file.stat().st_mtime_ns for file in entry.iterdir()} == made


def test_other_weights_have_another_entry(llama, tmp_path) -> None:
    folder, cache = copied(llama, tmp_path / "m"), tmp_path / "cache"
    before = load(folder, "int8", cache)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "model.safetensors")
    after = load(folder, "int8", cache)
    assert len(entries(cache)) == 2
    np.testing.assert_array_equal(after.norm, before.norm + 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "lost"])
def test_a_damaged_entry_is_not_used_and_made_anew(llama, tmp_path, damage) -> None:
    load(llama.folder, "int8", tmp_path)
    (entry,) = entries(tmp_path)
    file = entry / "layer-0001.safetensors"
    whole = file.read_bytes()
    changed = {"flip": whole[:-1] + bytes([whole[-1] ^ 4]), "cut": whole[:99], "lost": None}
    file.unlink() if damage == "lost" else file.write_bytes(changed[damage])
    weights = load(llama.folder, "int8", tmp_path)
    assert same(weights, load(llama.folder, "int8"))
    assert isinstance(load(llama.folder, "int8", tmp_path), CachedWeights)


def test_a_cache_that_cannot_be_written_is_done_without(llama, tmp_path) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    weights = load(llama.folder, "int8", tmp_path / "file" / "cache")
    assert isinstance(weights, Checkpoint)
    assert same(weights, load(llama.folder, "int8"))


def test_the_source_may_be_read_only(llama, tmp_path) -> None:
    folder = copied(llama, tmp_path / "m")
    before = sorted(file.name for file in folder.iterdir())
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert isinstance(load(folder, "int8", tmp_path / "cache"), CachedWeights)
        assert sorted(file.name for file in folder.iterdir()) == before
    finally:
        folder.chmod(0o755)


def test_the_least_recently_used_entries_leave(tmp_path) -> None:
    for age_h, name in enumerate(("newest", "older", "oldest", ".new-left")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(bytes(100))
        at = time.time() - 4000 * (age_h + 0.1)
        os.utime(tmp_path / name, (at, at))
    weight_cache._evict(tmp_path, 250)
    assert [entry.name for entry in entries(tmp_path)] == ["newest", "older"]
    weight_cache._evict(tmp_path, 10)
    assert [entry.name for entry in entries(tmp_path)] == ["newest"]  # it may be in use


def test_the_cache_folder_is_the_users(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weight_cache.cache_folder() == tmp_path / "chatmesh" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weight_cache.cache_folder() == Path.home() / ".cache" / "chatmesh" / "weights"


def test_the_digest_is_of_the_content(llama, tmp_path) -> None:
    one, other = TensorFiles(llama.folder), TensorFiles(copied(llama, tmp_path / "m"))
    assert one.source_digest() == other.source_digest()
    assert len(one.source_digest()) == 64


# ---- INFERENCE_WEIGHTS=auto


class Kinds:
    """Loads toy back ends whose logits differ by what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
        self.loaded: list[tuple[str, str]] = []

        def logits(backend: object, token_ids: list[int]) -> np.ndarray:
            kinds = self.loaded[-1]
            row = np.zeros((len(token_ids) - 1, 4), np.float32)
            row[:, 0] = shift if kinds[0] == "int8" else 0
            return row

        def load(weights: ModelWeights, kv: str, thread_count: int) -> object:
            self.loaded.append((weights.kind, kv))
            return object()

        monkeypatch.setattr(quality, "sample_logits", logits)
        monkeypatch.setitem(backends._MAKERS, "torch", load)
        monkeypatch.setattr(backends, "_torch", load)


@pytest.mark.parametrize("shift", [0.1, 1.0, float("nan")])
def test_auto_measures_int8_once_and_takes_it_where_it_costs_little(
    llama, tmp_path, monkeypatch, shift
) -> None:
    kinds, args = Kinds(monkeypatch, shift), {"backend": "torch", "cache": tmp_path}
    open_backend(llama, **args)
    chosen = ("int8", "int8") if shift == 0.1 else ("bf16", "bf16")
    assert kinds.loaded == [("bf16", "bf16"), ("int8", "int8"), chosen]
    open_backend(llama, **args)
    assert kinds.loaded[3:] == [chosen]
    open_backend(llama, **args, kv="f32")  # another pair, another measurement
    assert kinds.loaded[4:] == [("bf16", "bf16"), ("int8", "f32"), (chosen[0], "f32")]
    open_backend(llama, **args)  # which is not forgotten for it
    assert kinds.loaded[7:] == [chosen]


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8"])
def test_a_choice_is_not_measured_and_the_cache_follows_the_weights(
    llama, tmp_path, monkeypatch, weights
) -> None:
    kinds = Kinds(monkeypatch, 9.0)
    open_backend(llama, backend="torch", weights=weights, cache=tmp_path)
    open_backend(llama, backend="torch", weights=weights, kv="f32", cache=tmp_path)
    assert kinds.loaded == [(weights, weights), (weights, "f32")]


@pytest.mark.parametrize(("name", "chosen"), [("trained", "int8"), ("random", "bf16")])
def test_auto_keeps_the_trained_model_in_int8_and_spares_a_brittle_one(
    llama, tmp_path, name, chosen
) -> None:
    """Random weights of this spread multiply each rounding: nothing that is served does so."""
    model = llama if name == "random" else open_model(str(MODEL_DEFAULT))
    auto = open_backend(model, backend="torch", cache=tmp_path)
    explicit = open_backend(model, backend="torch", weights=chosen, cache=tmp_path)
    assert auto.block_bytes == explicit.block_bytes
    (entry,) = entries(tmp_path)
    nats = quality.read_verdict(entry, "int8")
    assert (nats < quality.DIVERGENCE_MAX) == (chosen == "int8")


def test_auto_measures_each_time_without_a_cache(llama, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    kinds = Kinds(monkeypatch, 0.1)
    for _ in range(2):
        open_backend(llama, backend="torch", cache=tmp_path / "file" / "x")
    assert kinds.loaded == 2 * [("bf16", "bf16"), ("int8", "int8"), ("int8", "int8")]


def test_divergence_is_that_of_the_distributions() -> None:
    exact = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32)) + 3
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32)) - 1
    assert quality.divergence(exact, exact) == 0
    assert quality.divergence(exact, other) == pytest.approx(0.5 * 0.25 * np.log(2), rel=1e-5)


def test_the_sample_is_in_the_tokens_of_the_model() -> None:
    model = open_model(str(MODEL_DEFAULT))
    ids = quality.sample_token_ids(model.folder, 2048)
    assert 200 < len(ids) <= quality.SAMPLE_TOKEN_COUNT_MAX
    assert quality.SAMPLE.startswith(model.vocabulary.join(ids).decode())
    assert quality.sample_token_ids(model.folder, 20) == ids[:20]


def test_a_model_that_knows_no_token_of_the_sample_stays_exact(
    llama, tmp_path, monkeypatch
) -> None:
    kinds = Kinds(monkeypatch, 0.0)
    monkeypatch.setattr(quality, "SAMPLE", "")
    open_backend(llama, backend="torch", cache=tmp_path)
    assert kinds.loaded == [("bf16", "bf16")]
