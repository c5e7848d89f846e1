"""The tokenizer, and documents as token ids: plain text or conversations in ChatML."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.packing import pack
from training.recipe import Recipe

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = 0, 1, 2
ASSISTANT_HEAD = f"{TURN_START}assistant\n"
IGNORED = -100  # cross-entropy skips this label
Message = dict[str, str]

# TRL asks for the `generation` marks, to know which tokens the assistant said.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def chat_text(messages: list[Message], *, prompt: bool = False) -> str:
    """Messages in ChatML, as `CHAT_TEMPLATE` writes them; `prompt` opens the assistant's turn."""
    said = (f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages)
    return "".join(said) + (ASSISTANT_HEAD if prompt else "")


def document_text(row: dict[str, Any]) -> str:
    """The text of a row of `prepare`: its `text`, or its `messages` in ChatML."""
    return chat_text(row["messages"]) if "messages" in row else row["text"]


def train_tokenizer(rows: Iterable[dict[str, Any]], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with the GPT-2 pattern; ids 0, 1 and 2 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_spoken(rows), trainer)
    return tokenizer


def _spoken(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if "messages" in row:
            yield from (f"{message['role']}\n" for message in row["messages"])
            yield from (message["content"] for message in row["messages"])
        else:
            yield row["text"]


def chat_labels(ids: list[int], head: list[int]) -> list[int]:
    """Labels of a conversation in ChatML: the assistant's words and its `<|im_end|>`.

    Args:
        ids: tokens of the conversation.
        head: tokens of `<|im_start|>assistant\\n`.

    Returns:
        The ids that are learned, `IGNORED` in all other places.
    """
    labels = [IGNORED] * len(ids)
    start = 0
    while TURN_START_ID in ids[start:]:
        start = ids.index(TURN_START_ID, start)
        body = start + len(head)
        end = ids.index(TURN_END_ID, start) + 1
        if ids[start:body] == head:
            labels[body:end] = ids[body:end]
        start = end
    return labels


def encode_documents(tokenizer: Tokenizer, rows: Iterable[dict[str, Any]]) -> Iterator[list[int]]:
    """Token ids of each document, closed by the end-of-text token."""
    batch: list[str] = []
    for row in rows:
        batch.append(document_text(row) + END_OF_TEXT)
        if len(batch) == 1000:
            yield from (encoding.ids for encoding in tokenizer.encode_batch(batch))
            batch = []
    yield from (encoding.ids for encoding in tokenizer.encode_batch(batch))


def make_tokenizer_and_pack(recipe: Recipe, work: Path) -> None:
    """The stage `tokenizer`: trains it unless `work` has one, and packs the prepared text.

    A tokenizer that is there stays, because token ids are a contract with everything that has
    stored them.
    """
    data, path = work / "data", work / "tokenizer.json"
    if recipe.init_from is not None:
        shutil.copyfile(recipe.init_from / "tokenizer.json", path)
    elif not path.exists():
        names = ("pretrain.train.jsonl", "sft.train.jsonl")
        texts = itertools.chain.from_iterable(read_rows(data / name) for name in names)
        temporary = path.with_suffix(".part")
        train_tokenizer(texts, recipe.model.vocabulary).save(str(temporary))
        temporary.replace(path)
    tokenizer = Tokenizer.from_file(str(path))
    (work / "packed").mkdir(exist_ok=True)
    for name in ("pretrain.train", "pretrain.held_out"):
        rows = read_rows(data / f"{name}.jsonl")
        print(name, pack(encode_documents(tokenizer, rows), work / f"packed/{name}.bin"))
