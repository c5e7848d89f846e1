"""After pretraining, on TRL's trainers: fine-tuning, reward model, preference optimisation."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import (
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from training.checkpoint import publish
from training.packing import Blocks
from training.progress import Progress, read_curve
from training.recipe import Recipe, TuneRecipe
from training.text import (
    ASSISTANT_HEAD,
    CHAT_TEMPLATE,
    END_OF_TEXT,
    END_OF_TEXT_ID,
    IGNORED,
    TURN_END,
    chat_labels,
    encode_documents,
    read_rows,
)

COMPLETE = "complete"  # a file in each checkpoint whose writing was not cut off


class _Course(TrainerCallback):
    """Draws the curve, and marks checkpoints as complete."""

    def __init__(self, stage: Path, resumed: dict[str, Any], main: bool) -> None:
        self._stage, self._resumed, self._main = stage, resumed, main
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._progress = Progress(self._stage, state.max_steps, self._resumed, main=self._main)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._progress is None or not logs or "loss" not in logs:
            return
        numbers = {k: float(v) for k, v in logs.items() if k not in ("epoch", "num_tokens")}
        # TRL counts from each start
        tokens = self._resumed["tokens"] + int(logs.get("num_tokens", 0))
        self._progress.log({"step": state.global_step, "tokens": tokens}, **numbers)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._main:
            (self._stage / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.close()


def load_tokenizer(work: Path) -> PreTrainedTokenizerFast:
    """The run's tokenizer as transformers and TRL want it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(work / "tokenizer.json")),
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def chat_rows(tokenizer: Tokenizer, path: Path, length: int) -> Iterator[dict[str, list[int]]]:
    """Rows of whole conversations, each at most `length` tokens, with labels of what is learned.

    Every row begins with a conversation, as every request to the served model does.
    """
    ids: list[int] = []
    labels: list[int] = []
    head = tokenizer.encode(ASSISTANT_HEAD).ids
    for more_ids in encode_documents(tokenizer, read_rows(path)):
        more_labels = chat_labels(more_ids, head)
        if ids and len(ids) + len(more_ids) > length:
            yield {"input_ids": ids[:length], "labels": labels[:length]}
            ids, labels = [], []
        ids, labels = ids + more_ids, labels + more_labels
    if ids:
        yield {"input_ids": ids[:length], "labels": labels[:length]}


def text_rows(
    work: Path, recipe: Recipe, share: float, rows: int
) -> Iterator[dict[str, list[int]]]:
    """Rows of pretraining text, so that fine-tuning does not forget it; `share` of all rows."""
    length = recipe.sft.length
    blocks = Blocks(work / "packed/pretrain.train.bin", length, recipe.seed + 1)
    for index in range(round(rows * share / (1 - share))):
        ids = blocks.take(index).tolist()
        yield {"input_ids": ids, "labels": list(ids)}


def _arguments(recipe: Recipe, plan: TuneRecipe, stage: Path) -> dict[str, Any]:
    """What all trainers share. Checkpoints hold optimizer, schedule, random states and step."""
    return {
        "output_dir": str(stage),
        "max_steps": plan.steps,
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.accumulate,
        "learning_rate": plan.rate,
        "weight_decay": plan.weight_decay,
        "adam_beta2": 0.95,
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": min(plan.decay_steps, plan.steps)},
        "warmup_steps": plan.warmup_steps,
        "max_length": plan.length,
        "bf16": recipe.compute == "bfloat16",
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": False,
        "optim": "adamw_torch_fused",
        "save_strategy": "steps",
        "save_steps": plan.checkpoint_every,
        "save_total_limit": 2,
        "logging_steps": 1 if plan.steps < 100 else 5,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": recipe.seed,
        "dataloader_drop_last": True,
        "ddp_find_unused_parameters": False,
    }


def _complete_checkpoint(stage: Path) -> Path | None:
    found = [path.parent for path in stage.glob(f"checkpoint-*/{COMPLETE}")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _run(
    stage: Path, make: Callable[[], Any], finish: Callable[[Any], None] = lambda model: None
) -> Path:
    """Trains, or continues from the newest complete checkpoint; returns the model's folder.

    `finish` may change the trained model before it is written.
    """
    if (stage / "model/model.safetensors").exists():
        return stage / "model"
    trainer = make()
    found = _complete_checkpoint(stage)
    step = int(found.name.rpartition("-")[2]) if found else 0
    tokens = max((row["tokens"] for row in read_curve(stage) if row["step"] <= step), default=0)
    position = {"step": step, "tokens": tokens}
    trainer.add_callback(_Course(stage, position, trainer.is_world_process_zero()))
    trainer.train(resume_from_checkpoint=str(found) if found else None)
    finish(trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False))
    trainer.save_model(str(stage / "model.part"))
    if trainer.is_world_process_zero():
        publish(stage / "model.part", stage / "model")
    trainer.accelerator.wait_for_everyone()
    return stage / "model"


class _ChatTrainer(SFTTrainer):  # type: ignore[misc]
    """SFT with TRL's loss and none of its metrics, which take as long as the rest of a step here.

    On the two-core recipe: 1.7 s a step with entropy and accuracy, 0.9 s without.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Cross-entropy of the labelled tokens, in nats, as a mean over all processes."""
        ids, labels = inputs["input_ids"], inputs["labels"][:, 1:]
        # rows are padded on the right, where causal attention needs no mask
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        learned = labels != IGNORED
        total = cross_entropy(logits[learned].float(), labels[learned], reduction="sum")
        # DDP takes the mean of the processes' gradients
        share = self.accelerator.num_processes
        loss = total / (learned.sum() if num_items_in_batch is None else num_items_in_batch / share)
        seen = self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum()
        self._total_train_tokens += int(seen)
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]
        return loss


def sft(recipe: Recipe, work: Path) -> Path:
    """Supervised fine-tuning: only what the assistant says is learned, and some plain text."""
    plan, stage, start = recipe.sft, work / "sft", work / "pretrain/model"

    def make() -> SFTTrainer:
        set_seed(recipe.seed)
        tokenizer = load_tokenizer(work)
        raw = Tokenizer.from_file(str(work / "tokenizer.json"))
        rows = list(chat_rows(raw, work / "data/sft.train.jsonl", plan.length))
        rows += text_rows(work, recipe, plan.text_share, len(rows))
        random.Random(recipe.seed).shuffle(rows)
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
        if recipe.compile:
            model.model.compile(dynamic=False)
        arguments = _arguments(recipe, plan, stage) | {"max_length": None}  # rows are cut already
        return _ChatTrainer(
            model=model,
            args=SFTConfig(**arguments, pad_to_multiple_of=plan.length),  # one shape for compile
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )

    return _run(stage, make, lambda model: _mixed(model, start, plan.keep_share))


def _mixed(model: torch.nn.Module, start: Path, share: float) -> None:
    """Moves the weights of `model` by `share` of the way back to those of `start`."""
    if not share:
        return
    first = load_file(start / "model.safetensors")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.lerp_(first[name].to(weight), share)


def preference_rows(path: Path, plan: TuneRecipe) -> Dataset:
    """Pairs of `prepare` as TRL wants them, no more than `plan.steps` can use."""
    keys = ("prompt", "chosen", "rejected")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    count = plan.steps * plan.batch * plan.accumulate * processes
    rows = itertools.islice(read_rows(path), count)
    return Dataset.from_list([{key: row[key] for key in keys} for row in rows])


def reward(recipe: Recipe, work: Path) -> Path:
    """The reward model: the fine-tuned one with a single output, from pairs (Bradley-Terry)."""
    plan, stage = recipe.reward, work / "reward"
    pairs = work / "data/preferences.train.jsonl"

    def make() -> RewardTrainer:
        set_seed(recipe.seed)
        model = LlamaForSequenceClassification.from_pretrained(
            work / "sft/model", num_labels=1, dtype=torch.float32
        )
        model.config.pad_token_id = END_OF_TEXT_ID
        return RewardTrainer(
            model=model,
            args=RewardConfig(**_arguments(recipe, plan, stage), center_rewards_coefficient=0.01),
            train_dataset=preference_rows(pairs, plan),
            processing_class=load_tokenizer(work),
        )

    return _run(stage, make)


def align(recipe: Recipe, work: Path) -> Path:
    """Direct preference optimisation (Rafailov et al. 2023) of the fine-tuned model."""
    plan, stage = recipe.align, work / "align"
    pairs = work / "data/preferences.train.jsonl"

    def make() -> DPOTrainer:
        set_seed(recipe.seed)
        return DPOTrainer(
            model=LlamaForCausalLM.from_pretrained(work / "sft/model", dtype=torch.float32),
            args=DPOConfig(
                **_arguments(recipe, plan, stage),
                beta=plan.beta,
                loss_type=plan.loss_types,
                loss_weights=plan.loss_weights,
            ),
            train_dataset=preference_rows(pairs, plan),
            processing_class=load_tokenizer(work),
        )

    return _run(stage, make)
