"""Recipes, the rate's course, and the order of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from training.packing import Blocks, pack
from training.pretrain import new_model, rate_factor
from training.recipe import RECIPES, PretrainRecipe, Recipe, read_recipe


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_recipes_are_valid_and_name_themselves(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert recipe.model.context % recipe.pretrain.row == 0
    assert recipe.model.hidden % recipe.model.heads == 0
    assert recipe.model.heads % recipe.model.kv_heads == 0


def test_the_shipped_recipe_fits_into_what_may_ship() -> None:
    model = new_model(read_recipe("tiny-cpu").model)
    assert 2 * sum(weight.numel() for weight in model.parameters()) < 32_000_000


def test_an_unknown_recipe_says_which_there_are() -> None:
    with pytest.raises(FileNotFoundError, match="tiny-cpu"):
        read_recipe("no-such-recipe")


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (RECIPES / "tiny-cpu.yaml").read_text()
    path.write_text(text.replace("warmup_steps", "warmup_stepz"))
    with pytest.raises(ValidationError, match="warmup_stepz"):
        read_recipe(str(path))


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    plan = PretrainRecipe(steps=100, warmup_steps=10, decay_steps=20)
    course = [rate_factor(step, 100, plan) for step in range(101)]
    assert course[0] == pytest.approx(0.1)
    assert course[9:80] == [1.0] * 71
    assert course[90] == pytest.approx(0.5)
    assert course[100] == 0.0
    assert rate_factor(50, 60, plan) == pytest.approx(0.5), "an end that came nearer"


def test_blocks_come_once_an_epoch_in_an_order_of_their_seed(tmp_path: Path) -> None:
    said = pack(([n] * 4 for n in range(10)), tmp_path / "a.bin")
    assert (said["documents"], said["tokens"]) == (10, 40)
    blocks, again = (Blocks(tmp_path / "a.bin", 4, seed=3) for _ in range(2))
    first = [int(blocks.take(position)[0]) for position in range(20)]
    assert sorted(first[:10]) == sorted(first[10:]) == list(range(10))
    assert first[:10] != first[10:]
    assert int(again.take(13)[0]) == first[13], "a position means the same without its past"
    assert np.array_equal(again.in_order(2), [2] * 4)


def test_packing_refuses_ids_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="16-bit"):
        pack([[70_000]], tmp_path / "a.bin")


def test_a_budget_of_time_brings_the_decay_forward(tmp_path: Path) -> None:
    from training.pretrain import pretrain
    from training.progress import read_curve
    from training.text import encode_documents, train_tokenizer

    rows = [{"text": f"The dog number {n} ran up the hill." * 9} for n in range(40)]
    tokenizer = train_tokenizer(rows, 300)
    (tmp_path / "packed").mkdir()
    for name in ("train", "held_out"):
        pack(encode_documents(tokenizer, rows), tmp_path / f"packed/pretrain.{name}.bin")
    recipe = Recipe.model_validate(
        {"name": "toy", "compute": "float32"}
        | {"model": {"vocabulary": 300, "hidden": 8, "layers": 1, "heads": 1, "kv_heads": 1}}
        | {"pretrain": {"steps": 10_000, "minutes": 1e-6, "decay_steps": 3, "blocks": 1}}
        | {"sft": {"steps": 1}, "reward": {"steps": 1}, "align": {"steps": 1}}
    )
    pretrain(recipe, tmp_path)
    steps = [row["step"] for row in read_curve(tmp_path / "pretrain") if "loss" in row]
    assert steps == list(range(1, 7)), "two untimed steps, one that spends the budget, the decay"
