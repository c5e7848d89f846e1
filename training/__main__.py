"""`python -m training STAGE --recipe NAME`: the stages of the road to a chat model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from training.recipe import Recipe, read_recipe

STAGES = ("prepare", "tokenizer", "pretrain", "sft", "reward", "align", "evaluate", "export")
WORK = Path(".training")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("stage", choices=(*STAGES, "all"), help="one stage, or all in this order")
    parser.add_argument("--recipe", default="tiny-cpu", help="a name in training/recipes or a path")
    parser.add_argument("--data", type=Path, help="folder of data sets; default: a small sample")
    parser.add_argument("--work", type=Path, help=f"folder of this run; default {WORK}/RECIPE")
    parser.add_argument("--model", type=Path, help="evaluate: a model folder instead of the stages")
    parser.add_argument("--out", type=Path, help="export: default is `export` in the work folder")
    return parser.parse_args(arguments)


def run(stage: str, recipe: Recipe, work: Path, options: argparse.Namespace) -> None:
    """Runs one stage. Imports are here, because those of TRL take many seconds."""
    if stage == "prepare":
        from training.data import prepare

        prepare(options.data, work / "data", seed=recipe.seed, scale=recipe.data_scale)
    elif stage == "tokenizer":
        from training.text import make_tokenizer_and_pack

        make_tokenizer_and_pack(recipe, work)
    elif stage == "pretrain":
        from training.pretrain import pretrain

        pretrain(recipe, work)
    elif stage in ("sft", "reward", "align"):
        from training import posttrain

        getattr(posttrain, stage)(recipe, work)
    elif stage == "evaluate":
        _evaluate(recipe, work, options.model)
    else:
        from training.export import export

        print(export(recipe, work, options.out or work / "export"))


def _evaluate(recipe: Recipe, work: Path, model: Path | None) -> None:
    from training.evaluate import evaluate, evaluate_stages, table

    if model is None:
        print(table(evaluate_stages(recipe, work)))
        return
    scores, answers = evaluate(model, recipe, work)
    print(answers + "\n" + table({model.name: scores}))


def main(arguments: list[str] | None = None) -> None:
    """Runs the stage of the command line, or all of them."""
    # Hub look-ups and usage reports of the libraries have no place in an offline run.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options = parse(arguments)
    recipe = read_recipe(options.recipe)
    work = options.work or WORK / recipe.name
    work.mkdir(parents=True, exist_ok=True)
    for stage in STAGES if options.stage == "all" else (options.stage,):
        run(stage, recipe, work, options)


if __name__ == "__main__":
    main()
