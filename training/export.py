"""Writes the trained model as a folder that any Llama engine loads, with its card and digests."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from training.card import card
from training.recipe import Recipe
from training.text import END_OF_TEXT, END_OF_TEXT_ID, TURN_END, TURN_END_ID

BYTES_MAX = 32_000_000
DIGESTS = "SHA256SUMS"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def _config(model: LlamaForCausalLM) -> dict[str, Any]:
    """`config.json` with the keys that transformers 4 and 5, vLLM and llama.cpp read."""
    own = model.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": own.vocab_size,
        "hidden_size": own.hidden_size,
        "intermediate_size": own.intermediate_size,
        "num_hidden_layers": own.num_hidden_layers,
        "num_attention_heads": own.num_attention_heads,
        "num_key_value_heads": own.num_key_value_heads,
        "head_dim": own.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": own.max_position_embeddings,
        "rms_norm_eps": own.rms_norm_eps,
        "rope_theta": own.rope_parameters["rope_theta"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": own.initializer_range,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID],
        "pad_token_id": END_OF_TEXT_ID,
    }


def _settings(model: LlamaForCausalLM) -> dict[str, Any]:
    return {
        "config.json": _config(model),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "model_max_length": model.config.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
        },
        "generation_config.json": {
            "do_sample": True,
            "temperature": 0.3,
            "top_p": 0.9,
            "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID],
            "pad_token_id": END_OF_TEXT_ID,
        },
    }


def write_digests(folder: Path) -> None:
    """`SHA256SUMS` over every other file of the folder, in the format of `sha256sum`."""
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.name != DIGESTS)
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files]
    (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")


def newest_model(work: Path) -> Path:
    """The folder of the last stage that has a model.

    Raises:
        FileNotFoundError: nothing was trained yet.
    """
    for stage in ("align", "sft", "pretrain"):
        if (work / stage / "model/model.safetensors").exists():
            return work / stage / "model"
    raise FileNotFoundError(f"{work} has no trained model; run `python -m training pretrain` first")


def export(recipe: Recipe, work: Path, out: Path) -> Path:
    """Writes the newest model to `out`, replacing its files; returns `out`.

    Raises:
        ValueError: the weights are larger than what may ship.
    """
    trained = newest_model(work)
    model = LlamaForCausalLM.from_pretrained(trained, dtype=torch.float32)
    weights = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # it is the embedding
    }
    aside = out.with_name(out.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
    size = (aside / "model.safetensors").stat().st_size
    if size > BYTES_MAX:
        raise ValueError(f"{size} bytes of weights; at most {BYTES_MAX} ship: use a smaller model")
    shutil.copyfile(work / "tokenizer.json", aside / "tokenizer.json")
    (aside / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    for name, content in _settings(model).items():
        (aside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (aside / "README.md").write_text(card(recipe, work, model), encoding="utf-8")
    answers = work / "evaluation" / f"{trained.parent.name}.md"
    if answers.exists():
        head = "# Greedy answers to the 60 fixed prompts, none left out\n\n"
        text = head + answers.read_text(encoding="utf-8")
        (aside / "answers.md").write_text(text, encoding="utf-8")
    for path in aside.iterdir():
        path.chmod(0o644)
    write_digests(aside)
    shutil.rmtree(out, ignore_errors=True)
    aside.rename(out)
    return out
