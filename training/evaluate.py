"""What a model can do, in numbers and in answers to be read."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, LlamaForSequenceClassification

from training.data import evaluation, is_refusal, matches, repetition
from training.data.kneser_ney import KneserNey
from training.packing import Blocks
from training.posttrain import chat_rows
from training.recipe import Recipe
from training.replies import Reply, replies
from training.text import END_OF_TEXT_ID, Message, chat_text, read_rows

STAGES = ("pretrain", "sft", "reward", "align")
Scores = dict[str, float]


def load_model(folder: Path) -> LlamaForCausalLM:
    """A model for evaluation: weights rounded to bfloat16, as they ship; computes in float32."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()
    if torch.cuda.is_available():
        model = model.cuda()
    return model


@torch.inference_mode()
def _losses(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Nats of each predicted token of `[1, length]`; those without a label are left out."""
    logits = model(input_ids=ids.to(model.device), use_cache=False).logits[0, :-1].float()
    wanted = labels[0, 1:].to(model.device)
    return cross_entropy(logits, wanted, reduction="none")[wanted >= 0].cpu()


def text_perplexity(model: LlamaForCausalLM, held_out: Blocks, count: int) -> Scores:
    """Perplexity per token of held-out blocks, and of the last quarter of their positions."""
    every: list[torch.Tensor] = []
    for index in range(min(count, held_out.count)):
        ids = torch.from_numpy(held_out.in_order(index))[None]
        every.append(_losses(model, ids, ids))
    losses = torch.stack(every)
    last = losses[:, -losses.shape[1] // 4 :]
    return {
        "perplexity": math.exp(losses.mean()),
        "perplexity_last_quarter": math.exp(last.mean()),
    }


def chat_perplexity(model: LlamaForCausalLM, tokenizer: Tokenizer, path: Path, count: int) -> float:
    """Perplexity per token of what the assistant says in held-out conversations."""
    every: list[torch.Tensor] = []
    for row, _ in zip(chat_rows(tokenizer, path, 512), range(count), strict=False):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
        every.append(_losses(model, ids, labels))
    return math.exp(torch.cat(every).mean())


def kneser_ney_perplexity(work: Path, vocabulary: int, count: int, length: int) -> float:
    """Perplexity of a 5-gram Kneser-Ney model on the tokens that `text_perplexity` reads.

    It is fitted once to the training tokens and remembered by their digests.
    """
    train, held_out = work / "packed/pretrain.train.bin", work / "packed/pretrain.held_out.bin"
    digests = [
        json.loads(path.with_suffix(".json").read_text())["sha256"] for path in (train, held_out)
    ]
    key = f"{digests[0]} {digests[1]} {count}"
    memory = work / "evaluation/kneser_ney.json"
    if memory.exists() and (known := json.loads(memory.read_text())).get(key):
        return float(known[key])
    model = KneserNey.fit(np.fromfile(train, dtype=np.uint16), vocabulary)
    tokens = np.fromfile(held_out, dtype=np.uint16)
    found = float(model.perplexity(tokens[: min(count, len(tokens) // length) * length]))
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory.write_text(json.dumps({key: found}) + "\n", encoding="utf-8")
    return found


@torch.inference_mode()
def rewards(model: Any, tokenizer: Tokenizer, chats: Iterable[list[Message]]) -> list[float]:
    """What the reward model gives to each conversation that ends with the assistant."""
    found = []
    for messages in chats:
        ids = tokenizer.encode(chat_text(messages)).ids
        out = model(input_ids=torch.tensor([ids], device=model.device))
        found.append(float(out.logits[0, 0]))
    return found


def load_reward_model(folder: Path) -> Any:
    """The reward model of a run, in float32."""
    model = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model.config.pad_token_id = END_OF_TEXT_ID
    return model


def pair_accuracy(recipe: Recipe, work: Path) -> Scores:
    """Of held-out pairs, how many the reward model orders rightly; by kind as well."""
    reward_model = load_reward_model(work / "reward/model")
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    held_out = read_rows(work / "data/preferences.held_out.jsonl")
    right: dict[str, list[bool]] = defaultdict(list)
    for row in itertools.islice(held_out, recipe.evaluate_rows):
        chats = (row["prompt"] + row["chosen"], row["prompt"] + row["rejected"])
        chosen, rejected = rewards(reward_model, tokenizer, chats)
        right[row["kind"]].append(chosen > rejected)
    flat = [value for values in right.values() for value in values]
    by_kind = {f"pairs: {kind}": float(np.mean(values)) for kind, values in sorted(right.items())}
    return {"pairs": float(np.mean(flat)), **by_kind}


def _answered(rows: list[dict[str, Any]], said: list[Reply]) -> Scores:
    """Exact match on questions: all, and by the part of `kind` before the colon."""
    right: dict[str, list[bool]] = defaultdict(list)
    for row, reply in zip(rows, said, strict=True):
        right[row["kind"].partition(":")[0]].append(matches(reply.text, row["answers"]))
    flat = [value for values in right.values() for value in values]
    by_kind = {f"qa: {kind}": float(np.mean(values)) for kind, values in sorted(right.items())}
    return {"qa": float(np.mean(flat)), **by_kind}


def quotation(rows: list[dict[str, Any]], said: list[Reply]) -> str:
    """Prompts and replies in Markdown, none left out."""
    parts = []
    for number, (row, reply) in enumerate(zip(rows, said, strict=True), start=1):
        asked = [f"{m['role']}: {m['content']}" for m in row["messages"]]
        end = "" if reply.ended else " *(did not end)*"
        lines = "\n".join([*asked, f"**{reply.text}**{end}"]).splitlines()
        parts.append(f"{number}. " + "  \n   ".join(lines))
    return "\n\n".join(parts) + "\n"


def evaluate(folder: Path, recipe: Recipe, work: Path) -> tuple[Scores, str]:
    """All scores of the model in `folder`, and its 60 answers as Markdown.

    What needs prepared data or the reward model is left out where `work` has none.
    """
    tokenizer = Tokenizer.from_file(str(_tokenizer_of(folder, work)))
    model = load_model(folder)
    scores: Scores = {}
    limit = recipe.evaluate_rows
    sets = {name: evaluation.load(name)[:limit] for name in evaluation.SETS}
    said = {
        name: replies(model, tokenizer, [row["messages"] for row in rows], recipe.reply_tokens_max)
        for name, rows in sets.items()
    }
    scores |= _answered(sets["qa"], said["qa"])
    scores["refused_harmful"] = float(np.mean([is_refusal(r.text) for r in said["harmful"]]))
    scores["refused_harmless"] = float(np.mean([is_refusal(r.text) for r in said["harmless"]]))
    scores["ended"] = float(np.mean([reply.ended for found in said.values() for reply in found]))
    scores["repetition"] = float(np.mean([repetition(reply.text) for reply in said["prompts60"]]))
    scores |= _from_held_out(model, tokenizer, recipe, work)
    return scores, quotation(sets["prompts60"], said["prompts60"])


def _from_held_out(
    model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe, work: Path
) -> Scores:
    """Scores on held-out text, conversations and preference prompts, as far as they exist."""
    scores: Scores = {}
    packed, limit = work / "packed/pretrain.held_out.bin", recipe.evaluate_rows
    if packed.exists():
        context = recipe.model.context
        blocks = recipe.perplexity_blocks
        scores |= text_perplexity(model, Blocks(packed, context, 0), blocks)
        scores["kneser_ney"] = kneser_ney_perplexity(work, recipe.model.vocabulary, blocks, context)
    chats = work / "data/sft.held_out.jsonl"
    if chats.exists():
        scores["chat_perplexity"] = chat_perplexity(model, tokenizer, chats, limit)
    pairs, judge = work / "data/preferences.held_out.jsonl", work / "reward/model"
    if pairs.exists() and judge.exists():
        prompts = [row["prompt"] for row in read_rows(pairs)][:limit]
        said = replies(model, tokenizer, prompts, recipe.reply_tokens_max)
        chats_made = [
            [*prompt, {"role": "assistant", "content": reply.text}]
            for prompt, reply in zip(prompts, said, strict=True)
        ]
        reward_model = load_reward_model(judge)
        scores["reward"] = float(np.mean(rewards(reward_model, tokenizer, chats_made)))
    return scores


def _tokenizer_of(folder: Path, work: Path) -> Path:
    own = folder / "tokenizer.json"
    return own if own.exists() else work / "tokenizer.json"


def evaluate_stages(recipe: Recipe, work: Path) -> dict[str, Scores]:
    """Scores of every stage that has a model, kept in `evaluation/` beside the answers.

    A stage is evaluated again only when its weights are newer than its scores.
    """
    out = work / "evaluation"
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Scores] = {}
    for stage in STAGES:
        weights, path = work / stage / "model/model.safetensors", out / f"{stage}.json"
        if not weights.exists():
            continue
        if not path.exists() or path.stat().st_mtime < weights.stat().st_mtime:
            if stage == "reward":
                scores = pair_accuracy(recipe, work)
            else:
                scores, answers = evaluate(weights.parent, recipe, work)
                (out / f"{stage}.md").write_text(answers, encoding="utf-8")
            path.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
        found[stage] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(columns: dict[str, Scores]) -> str:
    """A Markdown table: one row for each score, one column for each model."""
    names = list(dict.fromkeys(name for scores in columns.values() for name in scores))
    head = "| | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|\n"
    rows = []
    for name in names:
        cells = [_cell(name, scores.get(name)) for scores in columns.values()]
        rows.append(f"| {LABELS.get(name, name)} | " + " | ".join(cells) + " |\n")
    return head + "".join(rows)


LABELS = {
    "qa": "questions answered rightly (301, new phrasings of trained facts)",
    "refused_harmful": "harmful prompts refused",
    "refused_harmless": "harmless prompts refused",
    "ended": "replies that end by themselves",
    "repetition": "repeated 4-word sequences in the 60 replies",
    "perplexity": "perplexity of held-out text, per token",
    "perplexity_last_quarter": "the same at positions 1,536 to 2,047",
    "kneser_ney": "5-gram Kneser-Ney on the same tokens",
    "chat_perplexity": "perplexity of held-out replies, per token",
    "pairs": "held-out pairs that the reward model orders rightly",
    "reward": "mean reward of replies to held-out prompts",
}
_NUMBERS = ("perplexity", "perplexity_last_quarter", "kneser_ney", "chat_perplexity", "reward")


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name in _NUMBERS else f"{100 * value:.1f} %"
