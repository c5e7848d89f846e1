"""Pretraining: a Llama model on packed rows, on one process or many through `accelerate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from training.checkpoint import latest_checkpoint, load_position, publish, save_checkpoint
from training.packing import Blocks
from training.progress import Progress
from training.recipe import ModelRecipe, PretrainRecipe, Recipe
from training.text import END_OF_TEXT_ID, TURN_END_ID

_UNTIMED_STEPS = 2  # after each start, they compile


def new_model(sizes: ModelRecipe) -> LlamaForCausalLM:
    """A Llama model with random float32 weights; the embedding is also the output matrix."""
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.mlp,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.hidden // sizes.heads,
        max_position_embeddings=sizes.context,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[TURN_END_ID, END_OF_TEXT_ID],
        pad_token_id=END_OF_TEXT_ID,
    )
    return LlamaForCausalLM(config)


def _first_model(recipe: Recipe) -> LlamaForCausalLM:
    """The weights that training starts from.

    Raises:
        ValueError: the model of `init_from` has other sizes than the recipe says.
    """
    if recipe.init_from is None:
        return new_model(recipe.model)
    model = LlamaForCausalLM.from_pretrained(recipe.init_from, dtype=torch.float32)
    found, wanted = model.config, new_model(recipe.model).config
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
        if getattr(found, name) != getattr(wanted, name):
            raise ValueError(
                f"{recipe.init_from} has {name} {getattr(found, name)}, the recipe's model "
                f"{getattr(wanted, name)}; correct `model` in the recipe"
            )
    return model


class NextTokenLoss(torch.nn.Module):
    """The mean cross-entropy of `[rows, length]` token ids, in nats per predicted token."""

    def __init__(self, model: LlamaForCausalLM, compute: str) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Each row's tokens after its first are predicted; matrix products in `compute`."""
        low = self.compute == "bfloat16"
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=low):
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden[:, :-1])
        return cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def build_optimizers(model: torch.nn.Module, recipe: PretrainRecipe) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon for the matrices of the layers where the recipe says so.

    Muon (Jordan et al. 2024) steps along the orthogonalised momentum; it does not suit embeddings.
    """
    rest: list[torch.nn.Parameter] = []
    matrices: list[torch.nn.Parameter] = []
    for name, weight in model.named_parameters():
        muon = recipe.optimizer == "muon" and weight.ndim == 2 and ".layers." in name
        (matrices if muon else rest).append(weight)
    decayed = [weight for weight in rest if weight.ndim == 2]
    vectors = [weight for weight in rest if weight.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay if not matrices else 0.0},
        {"params": vectors, "weight_decay": 0.0},
    ]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
    ]
    if matrices:
        made.append(
            torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=recipe.weight_decay)
        )
    for optimizer in made:
        for group in optimizer.param_groups:
            group["base_rate"] = group["lr"]
    return made


def rate_factor(step: int, end: int, plan: PretrainRecipe) -> float:
    """The learning rate of `step` (0-based) of `end` as a share of its highest.

    Warm-up, constant, linear decay (WSD, Hu et al. 2024): while it is constant, the end may move.
    """
    rising = (step + 1) / plan.warmup_steps
    falling = (end - step) / plan.decay_steps
    return max(0.0, min(1.0, rising, falling))


def step_rows(blocks: Blocks, plan: PretrainRecipe, first: int, *, long: bool) -> torch.Tensor:
    """The rows of one micro-batch whose first block is `first`: `[rows, length]` int64."""
    taken = np.stack([blocks.take(first + index) for index in range(plan.blocks)])
    return torch.from_numpy(taken if long else taken.reshape(-1, plan.row))


def held_out_loss(
    module: NextTokenLoss, blocks: Blocks, count: int, accelerator: Accelerator
) -> float:
    """Mean loss of the first `count` held-out blocks, which the processes share."""
    total = torch.zeros(2, device=accelerator.device)
    module.eval()
    with torch.inference_mode():
        mine = range(accelerator.process_index, min(count, blocks.count), accelerator.num_processes)
        for index in mine:
            ids = torch.from_numpy(blocks.in_order(index))[None].to(accelerator.device)
            # .forward: evaluation is rare, its shape is not worth a compilation
            total += torch.stack([module.forward(ids), torch.ones((), device=ids.device)])
    module.train()
    loss, seen = accelerator.reduce(total, reduction="sum").tolist()
    return loss / seen


def pretrain(recipe: Recipe, work: Path) -> Path:
    """Trains from random weights, or from the newest checkpoint; returns the model's folder.

    A run that was killed continues with the same result as one that was not. When the packed file
    changed meanwhile, the weights are kept and the data begin anew.
    """
    stage = work / "pretrain"
    if not (stage / "model/model.safetensors").exists():
        _Pretraining(recipe, work, stage).run()
    return stage / "model"


class _Pretraining:
    """A run of `pretrain`: model, optimizers, data, and the position in them."""

    def __init__(self, recipe: Recipe, work: Path, stage: Path) -> None:
        self.plan, self.stage = recipe.pretrain, stage
        self.accelerator = Accelerator(gradient_accumulation_steps=self.plan.accumulate)
        set_seed(recipe.seed)
        module = NextTokenLoss(_first_model(recipe), recipe.compute)
        if recipe.compile:
            module.compile(dynamic=False)
        optimizers = build_optimizers(module, self.plan)
        self.module, *self.optimizers = self.accelerator.prepare(module, *optimizers)
        packed, context = work / "packed", recipe.model.context
        self.train = Blocks(packed / "pretrain.train.bin", context, recipe.seed)
        self.held_out = Blocks(packed / "pretrain.held_out.bin", context, recipe.seed)
        self.position = self._position()
        self.started_at = self.position["step"]

    def _position(self) -> dict[str, Any]:
        """Where training is: `end` is the step it stops at, `planned` the recipe's word for it."""
        planned = self.plan.steps
        start = {"step": 0, "end": planned, "planned": planned, "blocks": 0, "tokens": 0}
        start |= {"timed_steps": 0, "seconds": 0.0, "sha256": self.train.sha256}
        found = latest_checkpoint(self.stage)
        if found is None:
            return start
        self.accelerator.load_state(str(found))
        position = load_position(found)
        if position["planned"] != planned:
            position |= {"end": planned, "planned": planned}
        if position["sha256"] != self.train.sha256:
            position |= {"blocks": 0, "sha256": self.train.sha256}
        return position

    def run(self) -> None:
        """Steps until the end, then writes the model."""
        at, plan, main = self.position, self.plan, self.accelerator.is_main_process
        progress = Progress(self.stage, at["end"], at, main=main)
        while at["step"] < at["end"]:
            factor = rate_factor(at["step"], at["end"], plan)
            loss, norm = self._step(factor)
            progress.log(at, loss=loss, norm=norm, rate=factor * plan.rate)
            last = at["step"] == at["end"]
            if at["step"] % plan.evaluate_every == 0 or last:
                progress.log(at, held_out_loss=self._held_out_loss())
            if at["step"] % plan.checkpoint_every == 0 or last:
                save_checkpoint(self.accelerator, self.stage, at)
        progress.close()
        self._write_model()

    def _write_model(self) -> None:
        """Writes `model/`, which says that the stage is done; gathers sharded weights."""
        gathered = self.accelerator.get_state_dict(self.module)
        if self.accelerator.is_main_process:
            weights = {name.removeprefix("model."): value for name, value in gathered.items()}
            aside = self.stage / "model.part"
            self._bare().model.save_pretrained(aside, state_dict=weights)
            publish(aside, self.stage / "model")
        self.accelerator.wait_for_everyone()

    def _bare(self) -> NextTokenLoss:
        bare: NextTokenLoss = self.accelerator.unwrap_model(self.module, keep_torch_compile=False)
        return bare

    def _held_out_loss(self) -> float:
        count = self.plan.evaluate_blocks
        return held_out_loss(self._bare(), self.held_out, count, self.accelerator)

    def _step(self, factor: float) -> tuple[float, float]:
        """One optimizer step; moves the position. Returns the mean loss and the gradient's norm."""
        at, plan, started = self.position, self.plan, time.monotonic()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_rate"] * factor
        every = plan.long_row_every
        long = every > 0 and at["step"] % every == every - 1
        total, norm = torch.zeros((), device=self.accelerator.device), 0.0
        for _ in range(plan.accumulate):
            first = at["blocks"] + self.accelerator.process_index * plan.blocks
            ids = step_rows(self.train, plan, first, long=long).to(self.accelerator.device)
            # one compiled shape is enough
            with torch.compiler.set_stance("force_eager" if long else "default"):
                loss, norm = self._micro_batch(ids)
            total += loss
            at["blocks"] += plan.blocks * self.accelerator.num_processes
            at["tokens"] += ids.numel() * self.accelerator.num_processes
        at["step"] += 1
        seconds = torch.tensor(time.monotonic() - started, device=total.device)
        mean = self.accelerator.reduce(torch.stack([total, seconds]), reduction="mean").tolist()
        self._spend(mean[1])
        return mean[0] / plan.accumulate, norm

    def _micro_batch(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        norm, accelerator = 0.0, self.accelerator
        with accelerator.accumulate(self.module):
            loss = self.module(ids)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                limit = self.plan.gradient_norm_max
                norm = float(accelerator.clip_grad_norm_(self.module.parameters(), limit))
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach(), norm

    def _spend(self, seconds: float) -> None:
        """Counts the time of a step; begins the decay when no more than its time is left."""
        at, plan = self.position, self.plan
        if plan.minutes is None or at["step"] - self.started_at <= _UNTIMED_STEPS:
            return
        at["timed_steps"] += 1
        at["seconds"] += seconds
        per_step = at["seconds"] / at["timed_steps"]
        if at["seconds"] + plan.decay_steps * per_step >= 60 * plan.minutes:
            at["end"] = min(at["end"], at["step"] + plan.decay_steps)
