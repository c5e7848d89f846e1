"""The model card: `model_card.md` filled in with the numbers of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from training.evaluate import STAGES, Scores, table
from training.progress import read_curve
from training.recipe import Recipe

TEMPLATE = Path(__file__).with_name("model_card.md")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _sources(work: Path) -> str:
    rows = _read(work / "data/data_card.json").get("sources", [])
    return "\n".join(
        f"| {row['folder']} | {row['origin']} | {row['licence']} | {row['use']} | "
        + (f"{row['documents']:,} | {row['characters']:,} |" if row["documents"] else "- | - |")
        for row in rows
    )


def _stage_rows(recipe: Recipe, work: Path) -> str:
    """Steps, tokens and final loss of each stage that left a curve."""
    rows = []
    for stage in ("pretrain", "sft", "reward", "align"):
        curve = [row for row in read_curve(work / stage) if "loss" in row]
        if curve:
            last = curve[-len(curve) // 20 - 1 :]
            loss = sum(row["loss"] for row in last) / len(last)
            end = curve[-1]
            rows.append(f"| {stage} | {end['step']:,} | {end['tokens']:,} | {loss:.3f} |")
    return "\n".join(rows)


def _origin(recipe: Recipe) -> str:
    if recipe.init_from is None:
        return "trained from scratch by this repository's `training/`"
    return (
        "continued by this repository's `training/` from the model that shipped before "
        "(same sizes and tokenizer, trained from scratch on the same kind of data)"
    )


def _alignment(scores: dict[str, Scores]) -> str:
    """What the last stage changed, in one sentence."""
    before, after = scores.get("sft", {}), scores.get("align", {})
    if "reward" not in before or "reward" not in after:
        return ""
    text = 100 * (after["perplexity"] / before["perplexity"] - 1)
    chat = 100 * (after["chat_perplexity"] / before["chat_perplexity"] - 1)
    return (
        f"Alignment moved the mean reward of replies to held-out prompts from "
        f"{before['reward']:.2f} to {after['reward']:.2f}, the perplexity of held-out text by "
        f"{text:+.1f} %, that of held-out replies by {chat:+.1f} %."
    )


def card(recipe: Recipe, work: Path, model: LlamaForCausalLM) -> str:
    """The card's text. Scores of stages that were not evaluated are left out."""
    scores: dict[str, Scores] = {s: _read(work / f"evaluation/{s}.json") for s in STAGES}
    first = "pretrain" if recipe.init_from is None else "before"
    columns = {s if s != "pretrain" else first: found for s, found in scores.items() if found}
    parameters = sum(weight.numel() for weight in model.parameters())
    tokens = sum(
        curve[-1]["tokens"]
        for stage in ("pretrain", "sft", "reward", "align")
        if (curve := read_curve(work / stage))
    )
    pretraining = read_curve(work / "pretrain")
    seen = pretraining[-1]["tokens"] if pretraining else 0
    packed = _read(work / "packed/pretrain.train.json")
    sizes = recipe.model
    numbers = {
        "parameters": f"{parameters:,}",
        "architecture": (
            f"hidden {sizes.hidden}, {sizes.layers} layers, {sizes.heads} heads of "
            f"{sizes.hidden // sizes.heads}, {sizes.kv_heads} key-value heads, MLP {sizes.mlp}, "
            "tied embeddings"
        ),
        "vocabulary": f"{sizes.vocabulary:,}",
        "context": f"{sizes.context:,}",
        "tokens": f"{tokens:,}",
        "petaflop": f"{6 * parameters * tokens / 1e15:.2f}",
        "text_tokens": f"{packed.get('tokens', 0):,}",
        "seen": f"{seen:,}",
        "note": recipe.note.strip(),
        "origin": _origin(recipe),
        "alignment": _alignment(scores),
        "stages": _stage_rows(recipe, work),
        "sources": _sources(work),
        "scores": table(columns),
        "recipe": recipe.name,
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for key, value in numbers.items():
        text = text.replace("{" + key + "}", value)
    return text
