"""Loading: what is read, what is refused and in which words, and the cache of int8 weights."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.backends import open_backend
from inference_svc.engine.torch.models.config import read_config
from inference_svc.engine.torch.models.numbers import to_bf16, to_f32, to_int8
from inference_svc.model_folder import open_model
from tests.support.toy_folder import write_model
from tests.support.toy_models import LLAMA3
from tests.support.toy_weights import copied, everything, load, same


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    values = np.random.default_rng(0).standard_normal((40, 33), np.float32)
    values[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8]  # the last is a tie
    rounded = to_f32(to_bf16(values))
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(rounded, expected)  # NaN equals NaN here
    assert np.signbit(rounded[0, 1])


def test_int8_is_within_half_a_step_and_keeps_zero_rows() -> None:
    values = np.random.default_rng(0).standard_normal((7, 50), np.float32)
    values[3] = 0
    quantised, scales = to_int8(values)
    assert quantised.min() >= -127
    assert scales[3] == 0
    assert not quantised[3].any()
    error = np.abs(quantised * scales[:, None] - values).max(1)
    assert (error <= scales * 0.501).all()
    assert (np.abs(quantised).max(1)[scales > 0] == 127).all()


def test_projections_are_joined_and_biases_kept(qwen3) -> None:
    tensors = load_file(qwen3.folder / "model.safetensors")
    at = "model.layers.1.self_attn."
    layer = list(load(qwen3.folder).layers())[1]
    for end, got in (("weight", layer.qkv.values), ("bias", layer.qkv.bias)):
        wanted = torch.cat([tensors[f"{at}{name}_proj.{end}"] for name in "qkv"])
        np.testing.assert_array_equal(got, wanted.numpy())
    np.testing.assert_array_equal(layer.query_norm, tensors[at + "q_norm.weight"].numpy())
    assert layer.gate_up.bias is None


def test_shards_of_mixed_numbers_are_one_model(llama, tmp_path) -> None:
    folder = write_model(tmp_path / "m", **json.loads((llama.folder / "config.json").read_text()))
    tensors = load_file(llama.folder / "model.safetensors")
    # What bfloat16 holds exactly, in three spellings, also within one joined matrix.
    tensors = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    tensors = {
        name: tensor.bfloat16() if "k_proj" in name else tensor for name, tensor in tensors.items()
    }
    whole = copied(llama, tmp_path / "whole")
    save_file(tensors, whole / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for shard, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / f"part-{shard}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{shard}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert same(load(folder, "bf16"), load(whole, "bf16"))
    assert {layer.qkv.kind for layer in load(folder, "bf16").layers()} == {"bf16"}
    index.write_text(json.dumps({"weight_map": weight_map | {"model.more": "part-0.safetensors"}}))
    with pytest.raises(EngineError, match=r"lacks model\.more"):
        load(folder)
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "../elsewhere.safetensors"}}))
    with pytest.raises(EngineError, match="outside the folder"):
        load(folder)


def test_float16_is_read(llama, tmp_path) -> None:
    folder = copied(llama, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.half() for n, t in tensors.items()}, folder / "model.safetensors")
    wanted = tensors["model.norm.weight"].half().float().numpy()
    np.testing.assert_array_equal(load(folder).norm, wanted)


def test_old_rope_spelling_is_the_same(llama) -> None:
    config = json.loads((llama.folder / "config.json").read_text())
    new = read_config(config | {"rope_parameters": LLAMA3})
    config.pop("rope_parameters")
    scaling = dict(LLAMA3)
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    for one, other in zip(new.rotations(300), read_config(config).rotations(300), strict=True):
        np.testing.assert_array_equal(one, other)


BAD_CONFIGS = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "rope": ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
    "rope-number": ({"rope_parameters": {"rope_type": "llama3"}}, "factor"),
    "shape": ({"hidden_size": 128}, "do not belong together"),
    "layers": ({"num_hidden_layers": 3, "layer_types": None}, "lack the tensor"),
    "fewer-layers": ({"num_hidden_layers": 1, "layer_types": None}, "has not"),
    "tied": ({"tie_word_embeddings": True, "attention_bias": True}, "lack the tensor"),
    "groups": ({"num_key_value_heads": 3}, "groups"),
    "missing": ({"intermediate_size": None}, "incomplete"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_config_that_cannot_be_served_is_refused(llama, tmp_path, name) -> None:
    change, message = BAD_CONFIGS[name]
    folder = copied(llama, tmp_path / "m", **change)
    with pytest.raises(EngineError, match=message):
        everything(load(folder))


def spoil(folder: Path, how: str) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    tensors = load_file(file)
    if how == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif how == "noise":
        file.write_bytes(b"\xff" * 100 + whole)
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "none":
        file.unlink()
    elif how == "missing":
        save_file({n: t for n, t in tensors.items() if "1.mlp.up" not in n}, file)
    elif how == "head":
        save_file({n: t for n, t in tensors.items() if n != "lm_head.weight"}, file)
    elif how == "shape":
        tensors["model.norm.weight"] = torch.ones(3)
        save_file(tensors, file)
    elif how == "more":
        save_file(tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, file)
    elif how == "dtype":
        save_file({n: t.double() for n, t in tensors.items()}, file)
    elif how == "int8":
        save_file({n: t.to(torch.int8) for n, t in tensors.items()}, file)
    elif how == "altered":
        (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(whole).hexdigest()}  {file.name}\n")
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


SPOILED = {
    "cut": "corrupt or incomplete",
    "noise": "corrupt or incomplete",
    "empty": "corrupt or incomplete",
    "none": r"no \*\.safetensors",
    "missing": r"lack the tensor model\.layers\.1\.mlp\.up_proj",
    "head": "lack the tensor lm_head",
    "shape": "do not belong together",
    "more": r"has not \(model\.layers\.0\.self_attn\.q_norm",
    "dtype": "F64; only",
    "int8": "int8 without scales",
    "altered": "not the file that SHA256SUMS",
}


@pytest.mark.parametrize("how", SPOILED)
def test_weights_that_cannot_be_served_are_refused(llama, tmp_path, how) -> None:
    folder = copied(llama, tmp_path / "m")
    spoil(folder, how)
    with pytest.raises(EngineError, match=SPOILED[how]):
        everything(load(folder))


def test_a_file_cut_short_after_it_was_opened_is_told(llama, tmp_path) -> None:
    folder = copied(llama, tmp_path / "m")
    weights = load(folder)
    spoil(folder, "cut")
    with pytest.raises(EngineError, match="ends within"):
        everything(weights)


def test_sums_that_agree_are_fine_and_buffers_of_old_files_are_passed_over(llama, tmp_path) -> None:
    folder = copied(llama, tmp_path / "m")
    file = folder / "model.safetensors"
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(load_file(file) | buffer, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  another\n{digest} *{file.name}\n")
    assert same(load(folder), load(llama.folder))


@pytest.mark.parametrize(("field", "value"), [("backend", "tpu"), ("weights", "int4"), ("kv", "x")])
def test_unknown_choices_are_refused(llama, field, value) -> None:
    with pytest.raises(EngineError, match="choose one of"):
        open_backend(llama, **{"backend": "torch", field: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(llama) -> None:
    with pytest.raises(EngineError, match="sees no GPU"):
        open_backend(llama, backend="cuda")


# ---- hub ids


def test_a_hub_id_is_found_in_the_offline_cache(llama, tmp_path, monkeypatch) -> None:
    snapshot = tmp_path / "models--someone--toy" / "snapshots" / ("a" * 40)
    copied(llama, snapshot)
    references = tmp_path / "models--someone--toy" / "refs"
    references.mkdir()
    (references / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = open_model("someone/toy")
    assert (model.id, model.folder) == ("toy", snapshot)
    with pytest.raises(EngineError, match="the hub did not give it"):
        open_model("someone/other")
