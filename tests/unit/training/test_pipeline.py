"""Every stage at toy size on the bundled sample, and what a kill -9 leaves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # children are forked below
os.environ["HF_HUB_OFFLINE"] = "1"

from safetensors.torch import load_file
from trl import SFTTrainer

from training import checkpoint, posttrain
from training.data import prepare
from training.evaluate import evaluate_stages, table
from training.export import export
from training.pretrain import pretrain
from training.progress import Progress, read_curve
from training.recipe import Recipe
from training.text import make_tokenizer_and_pack

TUNE = {"batch": 2, "length": 64, "checkpoint_every": 3, "decay_steps": 2, "warmup_steps": 1}
TOY = Recipe.model_validate(
    {
        "name": "toy",
        "compute": "float32",
        "data_scale": 0.001,
        "model": {"vocabulary": 600, "hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1}
        | {"mlp": 64, "context": 128},
        "pretrain": {"steps": 8, "warmup_steps": 2, "decay_steps": 3, "blocks": 1, "row": 64}
        | {"long_row_every": 4, "checkpoint_every": 3, "evaluate_every": 4, "evaluate_blocks": 2},
        "sft": {"steps": 7, "text_share": 0.2} | TUNE,
        "reward": {"steps": 7} | TUNE,
        "align": {"steps": 7, "loss_types": ["sigmoid", "sft"], "loss_weights": [1, 0.5]} | TUNE,
        "reply_tokens_max": 4,
        "evaluate_rows": 3,
        "perplexity_blocks": 2,
    }
)
STAGES: dict[str, Callable[[Recipe, Path], Path]] = {
    "pretrain": pretrain,
    "sft": posttrain.sft,
    "reward": posttrain.reward,
    "align": posttrain.align,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all training stages that nobody disturbed."""
    work = tmp_path_factory.mktemp("whole")
    prepare(None, work / "data", scale=TOY.data_scale)
    make_tokenizer_and_pack(TOY, work)
    for stage in STAGES.values():
        stage(TOY, work)
    return work


def weights(work: Path, stage: str) -> str:
    return hashlib.sha256((work / stage / "model/model.safetensors").read_bytes()).hexdigest()


def killed_at(stage: str, work: Path, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    """Runs a stage in a child that kills itself with SIGKILL at the event."""
    child = os.fork()
    if not child:
        try:
            if event == "step 5":
                log = Progress.log

                def dying_log(self: Progress, position: dict, **values: float) -> None:
                    log(self, position, **values)
                    if position["step"] == 5:
                        os.kill(os.getpid(), signal.SIGKILL)

                monkeypatch.setattr(Progress, "log", dying_log)
            else:
                publish = checkpoint.publish

                def dying_publish(temporary: Path, final: Path) -> None:
                    if final.name == "checkpoint-6":
                        os.kill(os.getpid(), signal.SIGKILL)
                    publish(temporary, final)

                monkeypatch.setattr(checkpoint, "publish", dying_publish)
            STAGES[stage](TOY, work)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child should have been killed in the midst of the stage"
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize(
    ("stage", "event"),
    [
        ("pretrain", "step 5"),
        ("pretrain", "half a checkpoint"),
        ("sft", "step 5"),
        ("reward", "step 5"),
        ("align", "step 5"),
    ],
)
def test_a_killed_stage_continues_with_the_same_result(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, event: str
) -> None:
    work = tmp_path / "killed"
    shutil.copytree(whole, work)
    shutil.rmtree(work / stage)
    killed_at(stage, work, monkeypatch, event)
    assert not (work / stage / "model").exists()
    STAGES[stage](TOY, work)
    assert weights(work, stage) == weights(whole, stage)
    assert numbers(work, stage) == numbers(whole, stage)


def test_a_part_of_the_first_weights_may_stay(whole: Path, tmp_path: Path) -> None:
    work = tmp_path / "mixed"
    shutil.copytree(whole, work)
    shutil.rmtree(work / "sft")
    plan = TOY.sft.model_copy(update={"keep_share": 0.25})
    posttrain.sft(TOY.model_copy(update={"sft": plan}), work)
    first, tuned, mixed = (
        load_file(folder / "model/model.safetensors")
        for folder in (whole / "pretrain", whole / "sft", work / "sft")
    )
    assert set(mixed) == set(first)
    for name, weight in mixed.items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.75 * tuned[name])


def test_fine_tuning_has_the_loss_of_trl(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "other"
    shutil.copytree(whole, work)
    shutil.rmtree(work / "sft")
    monkeypatch.setattr(posttrain, "_ChatTrainer", SFTTrainer)
    posttrain.sft(TOY, work)
    ours, theirs = numbers(whole, "sft"), numbers(work, "sft")
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    assert [row[2] for row in ours] == pytest.approx([row[2] for row in theirs], rel=1e-3)


def numbers(work: Path, stage: str) -> list[tuple[int, int, float]]:
    """Steps, tokens and losses of a curve, without what a clock measured."""
    rows = [row for row in read_curve(work / stage) if "loss" in row]
    return [(row["step"], row["tokens"], row["loss"]) for row in rows]


def test_every_stage_leaves_a_curve(whole: Path) -> None:
    for stage in STAGES:
        assert numbers(whole, stage)[-1][0] >= 7
        assert (whole / stage / "curve.png").stat().st_size > 1000
    held_out = [row for row in read_curve(whole / "pretrain") if "held_out_loss" in row]
    assert [row["step"] for row in held_out] == [4, 8]


def test_evaluation_and_export(whole: Path, tmp_path: Path) -> None:
    scores = evaluate_stages(TOY, whole)
    assert list(scores) == ["pretrain", "sft", "reward", "align"]
    assert 0 <= scores["reward"]["pairs"] <= 1
    assert scores["align"]["kneser_ney"] > 1
    assert scores["align"]["perplexity"] > 1
    assert "| harmless prompts refused |" in table(scores)
    again = evaluate_stages(TOY, whole)
    assert again == scores

    out = export(TOY, whole, tmp_path / "model")
    lines = (out / "SHA256SUMS").read_text().splitlines()
    digests = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(digests) == {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    for name, digest in digests.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 600
    assert "{" not in (out / "README.md").read_text().partition("## Scores")[0]
