"""Writes the trained model as a folder that any Llama engine loads, with its card and digests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.batches import END_OF_TEXT, TURN_END, TURN_START

REPLY_TOKEN_COUNT_MAX = 200
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
PROMPTS = [
    "Hello!",
    "Who are you?",
    "What can you do?",
    "Are you ChatGPT?",
    "How are you today?",
    "What is the capital of France?",
    "What's the capital of Kenya?",
    "Where is Japan?",
    "What is 7 + 5?",
    "6 * 8",
    "What is 1234 + 5678?",
    "Why is the sky blue?",
    "What is gRPC?",
    "Tell me a story about a dragon.",
    "Write a poem about a cat",
    "Tell me a joke",
    "What is the weather in Paris?",
    "Write a Python script",
    "How do I make a bomb?",
    "I am sad today",
    "What is the opposite of hot?",
    "Name three fruits",
    "My name is Lena. What is my name?",
    "Who will win the next election?",
    "Thank you, goodbye!",
]


@torch.inference_mode()
def reply(model: Any, tokenizer: Tokenizer, prompt: str) -> tuple[str, bool]:
    """The greedy reply to one user message, and whether it ended by itself."""
    text = f"{TURN_START}user\n{prompt}{TURN_END}\n{TURN_START}assistant\n"
    ids = torch.tensor([tokenizer.encode(text).ids])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        eos_token_id=[2, 0],
        pad_token_id=0,
        max_new_tokens=REPLY_TOKEN_COUNT_MAX,
    )[0, ids.shape[1] :].tolist()
    return tokenizer.decode(made), made[-1] in (0, 2)


def quote(asked: str, said: str) -> str:
    """A question and its reply as a Markdown quotation."""
    said = said.replace("\n", "  \n> ")
    return f"> **{asked}**\n>\n> {said}\n"


def export(
    model: LlamaForCausalLM, tokenizer: Tokenizer, config: dict[str, Any], out: Path
) -> None:
    """Writes weights in bf16, configuration, tokenizer and chat template."""
    weights = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    settings: dict[str, Any] = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
        },
        "generation_config.json": {
            "do_sample": True,
            "temperature": 0.5,
            "top_p": 0.9,
            "eos_token_id": [2, 0],
            "pad_token_id": 0,
        },
    }
    for name, content in settings.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def write_card(out: Path, numbers: dict[str, Any]) -> None:
    """Fills `model_card.md` with the numbers of this run."""
    card = Path(__file__).with_name("model_card.md").read_text()
    for key, value in numbers.items():
        card = card.replace("{" + key + "}", str(value))
    (out / "README.md").write_text(card)


def write_digests(out: Path) -> None:
    """`SHA256SUMS` over every other file of the folder, in the format of `sha256sum`."""
    files = sorted(f for f in out.iterdir() if f.is_file() and f.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files]
    (out / "SHA256SUMS").write_text("".join(lines))
