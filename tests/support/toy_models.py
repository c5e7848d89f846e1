"""Tiny random checkpoints of every family, written by transformers: what the back ends serve."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inference_svc.model_folder import ModelFolder, open_model
from tests.support.toy_folder import WORDS, write_model

VOCABULARY = 2 + 256 + len(WORDS)
CONTEXT = 512
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
# name -> (family, what differs from SHAPE)
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-one-group": ("llama", {"num_key_value_heads": 4, "hidden_size": 52, "head_dim": 18}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3-biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
}


def make_model(folder: Path, family: str, **config: object) -> ModelFolder:
    """Writes a checkpoint with random weights, the same each time."""
    torch.manual_seed(7)
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **(SHAPE | config)), dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            # Biases and norms start trivial, and small weights hide errors: make all of them count.
            spread = 0.3 if parameter.ndim == 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, spread)
    write_model(folder)
    reference.save_pretrained(folder)
    return open_model(str(folder))


def prompt(seed: int, count: int) -> list[int]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()
