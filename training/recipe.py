"""Recipes: one YAML file says everything that a run depends on, besides the data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

RECIPES = Path(__file__).with_name("recipes")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelRecipe(_Part):
    """Sizes of a Llama model. `context` is the most positions of prompt and answer together."""

    vocabulary: PositiveInt = 4096
    hidden: PositiveInt = 256
    layers: PositiveInt = 8
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    mlp: PositiveInt = 704
    context: PositiveInt = 2048
    rope_theta: PositiveFloat = 10_000.0


class PretrainRecipe(_Part):
    """Next-token prediction on packed rows, warm-up, constant rate, decay (WSD).

    Attributes:
        steps: optimizer steps in all; 0 with `init_from` takes that model as it is. May be changed
            in the midst of a run: the rate stays constant until `decay_steps` before the end.
        minutes: training time after which the run ends even before `steps`, the decay included;
            compilation, pauses between two starts and evaluation do not count. A run that ends by
            its time is repeated exactly only by giving its number of steps.
        blocks: blocks of `context` tokens per process and step.
        row: tokens per row of an ordinary step; a block is cut into `context / row` rows.
        long_row_every: every so many steps the rows are whole blocks; 0 for never.
        accumulate: micro-batches of `blocks` per step.
        optimizer: `muon` for the matrices of the layers (AdamW for the rest), or `adamw` for all.
        rate: of AdamW. `muon_rate`: of Muon.
    """

    steps: int = Field(ge=0)
    minutes: PositiveFloat | None = None
    warmup_steps: PositiveInt = 100
    decay_steps: PositiveInt = 500
    blocks: PositiveInt = 2
    row: PositiveInt = 512
    long_row_every: int = Field(16, ge=0)
    accumulate: PositiveInt = 1
    optimizer: Literal["muon", "adamw"] = "muon"
    rate: PositiveFloat = 3e-3
    muon_rate: PositiveFloat = 0.02
    weight_decay: float = Field(0.1, ge=0)
    gradient_norm_max: PositiveFloat = 1.0
    checkpoint_every: PositiveInt = 50
    evaluate_every: PositiveInt = 250
    evaluate_blocks: PositiveInt = 16


class TuneRecipe(_Part):
    """One stage of a TRL trainer: supervised fine-tuning, reward model or alignment.

    The rate rises for `warmup_steps`, stays, and falls to zero over the last `decay_steps`.

    Attributes:
        steps: optimizer steps.
        batch: rows (SFT) or pairs (reward, alignment) per process and micro-batch.
        length: tokens per row or per member of a pair; longer ones are cut.
        text_share: of the rows of SFT, how many are pretraining text (all tokens learned).
        keep_share: of the weights that SFT began with, how much is in its result: the mean of both
            keeps what the tuning would forget (WiSE-FT, Wortsman et al. 2022).
        beta: DPO's inverse temperature; alignment only.
    """

    steps: PositiveInt
    batch: PositiveInt = 8
    accumulate: PositiveInt = 1
    length: PositiveInt = 512
    rate: PositiveFloat = 5e-4
    warmup_steps: int = Field(20, ge=0)
    decay_steps: int = Field(100, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    checkpoint_every: PositiveInt = 50
    text_share: float = Field(0.0, ge=0, lt=1)
    keep_share: float = Field(0.0, ge=0, lt=1)
    beta: PositiveFloat = 0.1
    loss_types: list[str] = ["sigmoid"]
    loss_weights: list[float] = [1.0]


class Recipe(_Part):
    """A whole run.

    Attributes:
        note: what the model card says about this run besides its numbers.
        init_from: an exported model whose weights and tokenizer pretraining starts from, instead of
            random ones; relative to the working directory. `model` must say its sizes.
        data_scale: share of the made conversations and pairs; 1 for a whole run.
        compute: type of the matrix products; weights and optimizer states are float32.
        compile: whether pretraining goes through `torch.compile`.
        reply_tokens_max: where evaluation cuts a reply that does not end.
        evaluate_rows: most rows of each evaluation set.
        perplexity_blocks: most blocks of held-out text whose perplexity is computed.
    """

    name: str
    note: str = ""
    init_from: Path | None = None
    seed: int = 0
    data_scale: PositiveFloat = 1.0
    compute: Literal["float32", "bfloat16"] = "bfloat16"
    compile: bool = False
    model: ModelRecipe = ModelRecipe()
    pretrain: PretrainRecipe
    sft: TuneRecipe
    reward: TuneRecipe
    align: TuneRecipe
    reply_tokens_max: PositiveInt = 160
    evaluate_rows: PositiveInt = 400
    perplexity_blocks: PositiveInt = 60


def read_recipe(name: str) -> Recipe:
    """Reads a recipe of this package by name, or any file by path.

    Raises:
        FileNotFoundError: neither; the text lists the names.
        pydantic.ValidationError: the file says something unknown or out of range.
    """
    path = RECIPES / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in RECIPES.glob("*.yaml")))
        raise FileNotFoundError(f"there is no recipe {name}; give a path or one of: {known}")
    return Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
