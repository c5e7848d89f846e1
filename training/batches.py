"""Tokens for training: the tokenizer, conversations in ChatML, and endless batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.chat import ChatMaker, Message
from training.corpora import Corpora

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IGNORED = -100  # cross-entropy skips this label


def train_tokenizer(texts: Iterator[str], vocab: int) -> Tokenizer:
    """Byte-level BPE with the GPT-2 pattern; ids 0, 1, 2 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenizer_texts(corpora: Corpora, conversation_count: int) -> Iterator[str]:
    """Stories, dialogues and made conversations in about equal parts."""
    chat = ChatMaker(corpora, seed=7)
    yield from corpora.stories
    for dialogue in corpora.dialogues[:: max(1, len(corpora.dialogues) // 5000)]:
        yield "\n".join(dialogue)
    for _ in range(conversation_count):
        yield from (message["content"] for message in chat.conversation())


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must be in the vocabulary."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}; train it anew")
    return found


def encode_chat(
    tokenizer: Tokenizer, messages: list[Message], *, all_labels: bool
) -> tuple[list[int], list[int]]:
    """Token ids and labels of one conversation in ChatML, closed by the end-of-text token.

    Only the assistant's words and its `<|im_end|>` are labelled, unless `all_labels`.
    """
    special = (END_OF_TEXT, TURN_START, TURN_END)
    end_of_text, start, end = (token_id(tokenizer, token) for token in special)
    ids: list[int] = []
    labels: list[int] = []
    for message in messages:
        head = [start, *tokenizer.encode(message["role"] + "\n").ids]
        body = [*tokenizer.encode(message["content"]).ids, end]
        tail = tokenizer.encode("\n").ids
        ids += head + body + tail
        spoken = message["role"] == "assistant"
        labels += [IGNORED] * len(head) + (body if spoken else [IGNORED] * len(body))
        labels += [IGNORED] * len(tail)
    ids, labels = [*ids, end_of_text], [*labels, IGNORED]
    return ids, list(ids) if all_labels else labels


class Batches:
    """Endless batches for both stages; every tenth document is kept for evaluation."""

    def __init__(
        self,
        corpora: Corpora,
        tokenizer: Tokenizer,
        shape: tuple[int, int],
        seed: int,
        *,
        held_out: bool,
    ) -> None:
        self.rng, self.tokenizer = random.Random(seed), tokenizer
        self.batch, self.context = shape
        mine = replace(
            corpora,
            stories=[s for i, s in enumerate(corpora.stories) if (i % 10 == 0) == held_out],
            dialogues=[d for i, d in enumerate(corpora.dialogues) if (i % 10 == 0) == held_out],
        )
        self.stories, self.dialogues = mine.stories, mine.dialogues
        self.chat = ChatMaker(mine, seed)
        self.chat_rows, self.text_rows = self._chat_rows(), self._text_rows()

    def reseed(self, seed: int) -> None:
        """Draws anew, so that a continued training does not see the same again."""
        self.rng.seed(seed)
        self.chat.rng.seed(seed)

    def _document(self) -> list[int]:
        """A story, a human dialogue in ChatML or a made conversation, all tokens labelled."""
        roll = self.rng.random()
        if roll < 0.06 and self.stories:  # stories are long: about a third of the tokens
            text = self.rng.choice(self.stories)
            return [*self.tokenizer.encode(text).ids, token_id(self.tokenizer, END_OF_TEXT)]
        if roll < 0.35 and self.dialogues:
            roles = ("user", "assistant")
            turns = enumerate(self.rng.choice(self.dialogues))
            messages = [{"role": roles[i % 2], "content": turn} for i, turn in turns]
        else:
            messages = self.chat.conversation()
        return encode_chat(self.tokenizer, messages, all_labels=True)[0]

    def _text_rows(self) -> Iterator[tuple[list[int], list[int]]]:
        buffer: list[int] = []
        while True:
            while len(buffer) < self.context:
                buffer += self._document()
            row, buffer = buffer[: self.context], buffer[self.context :]
            yield row, row

    def _chat_rows(self) -> Iterator[tuple[list[int], list[int]]]:
        """Whole conversations one after the other, the rest of a row padded.

        Every row begins with a conversation, as every request to the served model does.
        """
        ids: list[int] = []
        labels: list[int] = []
        limit, padding = self.context, token_id(self.tokenizer, END_OF_TEXT)
        while True:
            messages = self.chat.conversation()
            more_ids, more_labels = encode_chat(self.tokenizer, messages, all_labels=False)
            if ids and len(ids) + len(more_ids) > limit:
                gap = limit - len(ids)
                yield ids + [padding] * gap, labels + [IGNORED] * gap
                ids, labels = [], []
            ids, labels = (ids + more_ids)[:limit], (labels + more_labels)[:limit]

    def next(self, *, tuning: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels, both `[batch, context]` int64."""
        rows = self.chat_rows if tuning else self.text_rows
        picked = [next(rows) for _ in range(self.batch)]
        return torch.tensor([ids for ids, _ in picked]), torch.tensor([lab for _, lab in picked])
