"""A model folder of a few bytes: byte-level BPE, config, no weights."""

import json
from pathlib import Path

from inference_svc.engine.vocabulary import byte_alphabet
from inference_svc.model_folder import ModelFolder

EOS, PAD = 0, 1
WORDS = [
    "the",
    " the",
    " river",
    " garden",
    " mill",
    " and",
    "er",
    "in",
    "END",
    " stop",
    "ST",
    "OP",
]


def tokenizer_document() -> dict:
    letters = {byte: piece for piece, byte in byte_alphabet().items()}
    vocab = {"<|im_end|>": EOS, "<|pad|>": PAD}
    for byte in range(256):
        vocab[letters[byte]] = len(vocab)
    for word in WORDS:
        vocab["".join(letters[byte] for byte in word.encode())] = len(vocab)
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": EOS, "content": "<|im_end|>", "special": True, **plain},
        {"id": PAD, "content": "<|pad|>", "special": True, **plain},
    ]
    return {
        "added_tokens": added,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def write_model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    base = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 2 + 256 + len(WORDS),
        "max_position_embeddings": 512,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(base | config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_document()))
    return folder


def ids_of(model: ModelFolder, text: str) -> list[int]:
    """One token a byte: enough to spell anything."""
    table = {model.vocabulary.token_bytes(i): i for i in range(2, 258)}
    return [table[bytes([byte])] for byte in text.encode()]
