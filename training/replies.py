"""Greedy replies of a model to many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from training.text import END_OF_TEXT_ID, TURN_END_ID, Message, chat_text

_BATCH = 50


@dataclass(frozen=True)
class Reply:
    """What was said, and whether it ended by itself within the limit."""

    text: str
    ended: bool


@torch.inference_mode()
def replies(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[list[Message]],
    tokens_max: int,
) -> list[Reply]:
    """The most probable next token, again and again, until the turn ends or `tokens_max`."""
    encoded = [tokenizer.encode(chat_text(prompt, prompt=True)).ids for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
    found: dict[int, Reply] = {}
    for start in range(0, len(order), _BATCH):
        picked = order[start : start + _BATCH]
        width = max(len(encoded[index]) for index in picked)
        padding = [width - len(encoded[index]) for index in picked]
        rows = [[END_OF_TEXT_ID] * pad + encoded[i] for i, pad in zip(picked, padding, strict=True)]
        ids = torch.tensor(rows, device=model.device)
        mask = (torch.arange(width)[None] >= torch.tensor(padding)[:, None]).long()
        made = model.generate(
            ids,
            attention_mask=mask.to(model.device),
            do_sample=False,
            temperature=None,
            top_p=None,
            eos_token_id=[TURN_END_ID, END_OF_TEXT_ID],
            pad_token_id=END_OF_TEXT_ID,
            max_new_tokens=tokens_max,
        )
        for index, row in zip(picked, made[:, width:].tolist(), strict=True):
            ends = [at for at, token in enumerate(row) if token in (TURN_END_ID, END_OF_TEXT_ID)]
            text = tokenizer.decode(row[: ends[0]] if ends else row)
            found[index] = Reply(text.strip(), bool(ends))
    return [found[index] for index in range(len(prompts))]
