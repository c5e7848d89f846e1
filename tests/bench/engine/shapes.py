"""Random Llama checkpoints of the benchmark: folders that every peer loads.

The weights are random, so the text is nonsense; the arithmetic and the bytes are those of a real
model of that shape. The values are drawn from one seed: two runs compare the same models.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONTEXT = 4096
DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama model; the output matrix is the embedding."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer's matrices."""
        kv = self.kv_heads * self.head_dim
        return self.hidden * (2 * self.hidden + 2 * kv + 3 * self.mlp)

    @property
    def parameters(self) -> int:
        """All parameters that a token's matrix products read, the output matrix included."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    def config(self) -> dict[str, object]:
        """The config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 0,
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("27m", 512, 8, 8, 4, 1376, 8192),
        Shape("110m", 768, 12, 12, 4, 2048, 32000),
        Shape("500m", 1024, 28, 16, 4, 4096, 64000),
    )
}


def checkpoint(shape: Shape, folder: Path) -> Path:
    """The model's folder below `folder`, written when it is not there."""
    home = folder / shape.name
    if (home / "config.json").exists():
        return home
    home.mkdir(parents=True, exist_ok=True)
    save_file(_tensors(shape), home / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(shape.vocabulary).save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast"}
            # CTranslate2 wants all three.
            | dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<0>")
        )
    )
    # Last: its presence says that the rest is whole.
    (home / "config.json").write_text(json.dumps(shape.config(), indent=1))
    return home


def _tensors(shape: Shape) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(27)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator) * DEVIATION
        return drawn.to(torch.bfloat16)

    kv, hidden = shape.kv_heads * shape.head_dim, shape.hidden
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            f"{at}.post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            f"{at}.self_attn.q_proj.weight": matrix(hidden, hidden),
            f"{at}.self_attn.k_proj.weight": matrix(kv, hidden),
            f"{at}.self_attn.v_proj.weight": matrix(kv, hidden),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, hidden),
            f"{at}.mlp.gate_proj.weight": matrix(shape.mlp, hidden),
            f"{at}.mlp.up_proj.weight": matrix(shape.mlp, hidden),
            f"{at}.mlp.down_proj.weight": matrix(hidden, shape.mlp),
        }
    return tensors


def _tokenizer(vocabulary: int) -> Tokenizer:
    """Bytes, and made-up tokens up to the vocabulary's size: requests carry ids, not text."""
    names = ["<0>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<{index}>" for index in range(len(names), vocabulary)]
    tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
