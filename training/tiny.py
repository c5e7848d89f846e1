"""Trains the small chat model that ships with chatmesh: data, tokenizer, two stages, export.

`python -m training.tiny --data FOLDER --out FOLDER [--minutes M] [--threads N] [--state FILE]`

Stage 1 (the first `PRETRAIN_SHARE` of the time) predicts every token of stories, human dialogues
and made conversations. Stage 2 predicts only what the assistant says in made conversations. The
learning rate follows one cosine over both, driven by elapsed time, so that a slower machine
trains on fewer tokens but still finishes its schedule. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional as nn_functional
from transformers import LlamaConfig, LlamaForCausalLM

from training.batches import IGNORED, Batches, tokenizer_texts, train_tokenizer
from training.corpora import SOURCES, read_corpora
from training.export import PROMPTS, export, quote, reply, write_card, write_digests

PRETRAIN_SHARE = 0.35
CHECKPOINT_EVERY_S = 300.0


@dataclass(frozen=True)
class Size:
    """Everything that `--smoke` makes smaller."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    mlp: int = 704
    context: int = 512  # tokens of a training row
    batch: int = 2  # rows of a step: few tokens, so small steps
    peak_rate: float = 1.2e-3
    tokenizer_samples: int = 20_000
    eval_batches: int = 25
    samples: int = 25
    compiled: bool = True


SMOKE = Size(
    vocab=400,
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    mlp=64,
    context=64,
    batch=2,
    tokenizer_samples=50,
    eval_batches=2,
    samples=2,
    compiled=False,
)


@dataclass
class Progress:
    """How far the training is; saved with each checkpoint."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, str, float]] = field(default_factory=list)


# -- model and training --------------------------------------------------------------------------


def model_config(size: Size, vocab: int) -> dict[str, Any]:
    """The `config.json` of the export."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": [2, 0],
        "pad_token_id": 0,
    }


def loss_of(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the labelled tokens, in nats."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return nn_functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(),
        labels[:, 1:].reshape(-1),
        ignore_index=IGNORED,
    )


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms do not."""
    groups = [
        {"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": 0.1},
        {"params": [w for w in model.parameters() if w.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=True)


def rate_at(done: float, step: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine from `peak` to 2 % at `done` = 1."""
    cosine = 0.51 + 0.49 * math.cos(math.pi * min(done, 1.0))
    return peak * min(1.0, (step + 1) / 100) * cosine


def train(
    model: LlamaForCausalLM, batches: Batches, size: Size, budget_s: float, state: Path | None
) -> Progress:
    """Trains until the budget is used; continues from `state` if that file exists."""
    optimizer, progress = make_optimizer(model), Progress()
    if state and state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress = Progress(**saved["progress"])
        batches.reseed(progress.steps)
    stepped = torch.compile(model) if size.compiled and progress.seconds < budget_s else model
    last_saved = last = time.monotonic()
    recent: list[float] = []
    while progress.seconds < budget_s:
        done = progress.seconds / budget_s
        tuning = done >= PRETRAIN_SHARE
        for group in optimizer.param_groups:
            group["lr"] = rate_at(done, progress.steps, size.peak_rate)
        ids, labels = batches.next(tuning=tuning)
        loss = loss_of(stepped, ids, labels)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.monotonic()
        progress.seconds += now - last
        last = now
        progress.steps, progress.tokens = progress.steps + 1, progress.tokens + ids.numel()
        recent.append(loss.item())
        if progress.steps % 50 == 0:
            note(progress, "tune" if tuning else "pretrain", recent)
        if state and now - last_saved > CHECKPOINT_EVERY_S:
            save_state(state, model, optimizer, progress)
            last_saved = now
    if state:
        save_state(state, model, optimizer, progress)
    return progress


def note(progress: Progress, stage: str, recent: list[float]) -> None:
    """Prints and keeps the mean loss since the last note; empties `recent`."""
    mean = sum(recent) / len(recent)
    progress.losses.append((progress.steps, stage, round(mean, 4)))
    speed = progress.tokens / progress.seconds
    print(
        f"{stage} step {progress.steps} loss {mean:.3f} tokens {progress.tokens} "
        f"minutes {progress.seconds / 60:.1f} tok/s {speed:.0f}",
        flush=True,
    )
    recent.clear()


def save_state(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Writes a checkpoint whole: first beside, then in place."""
    beside = path.with_suffix(".part")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "progress": asdict(progress),
        },
        beside,
    )
    beside.replace(path)


# -- evaluation ----------------------------------------------------------------------------------


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, batches: Batches, count: int, *, tuning: bool) -> float:
    """Mean loss over `count` batches of held-out material."""
    return sum(loss_of(model, *batches.next(tuning=tuning)).item() for _ in range(count)) / count


def run(data: Path, out: Path, *, minutes: float, size: Size, state: Path | None) -> dict[str, Any]:
    """The whole way from data to a checked export; returns the numbers of the model card."""
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    corpora = read_corpora(data)
    kept = out / "tokenizer.json"  # token ids are a contract: an exported tokenizer stays
    tokenizer = (
        Tokenizer.from_file(str(kept))
        if kept.exists()
        else train_tokenizer(tokenizer_texts(corpora, size.tokenizer_samples), size.vocab)
    )
    config = model_config(size, tokenizer.get_vocab_size())
    llama: Any = LlamaForCausalLM  # untyped in transformers
    model = llama(LlamaConfig(**config | {"torch_dtype": "float32"}))
    shape = (size.batch, size.context)
    batches = Batches(corpora, tokenizer, shape, seed=1, held_out=False)
    progress = train(model, batches, size, minutes * 60, state)
    export(model, tokenizer, config, out)
    model = llama.from_pretrained(out, dtype=torch.float32).eval()  # as rounded to bf16
    held_out = Batches(corpora, tokenizer, shape, seed=2, held_out=True)
    answers = [(prompt, *reply(model, tokenizer, prompt)) for prompt in PROMPTS[: size.samples]]
    parameters = sum(w.numel() for w in model.parameters())
    numbers = {
        "parameters": f"{parameters:,}",
        "steps": f"{progress.steps:,}",
        "tokens": f"{progress.tokens / 1e6:.2f} million",
        "minutes": f"{progress.seconds / 60:.0f}",
        "per_parameter": f"{progress.tokens / parameters:.1f}",
        "pflop": f"{6 * parameters * progress.tokens / 1e15:.2f}",
        "chat_loss": f"{held_out_loss(model, held_out, size.eval_batches, tuning=True):.3f}",
        "text_loss": f"{held_out_loss(model, held_out, size.eval_batches, tuning=False):.3f}",
        "ended": f"{sum(ended for _, _, ended in answers)} of {len(answers)}",
        "samples": "\n".join(quote(asked, said) for asked, said, _ in answers),
        "sources": "\n".join(
            f"| {name} | {SOURCES[name][0]} | {SOURCES[name][1]} |" for name in corpora.folders
        ),
    }
    write_card(out, numbers)
    write_digests(out)
    return numbers


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="training.tiny", description="Trains the tiny model.")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--minutes", type=float, default=50.0, help="training time, both stages")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state", type=Path, help="checkpoint: written, and continued if there")
    parser.add_argument("--smoke", action="store_true", help="toy size, to test the pipeline")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    size = SMOKE if chosen.smoke else Size()
    numbers = run(chosen.data, chosen.out, minutes=chosen.minutes, size=size, state=chosen.state)
    print(json.dumps({key: numbers[key] for key in numbers if key not in {"samples", "sources"}}))


if __name__ == "__main__":
    main()
