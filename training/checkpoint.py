"""Checkpoints that are whole or absent: written aside, then renamed; the newest one is kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator

POSITION = "position.json"


def checkpoints(stage: Path) -> list[Path]:
    """Complete checkpoints of a stage, oldest first."""
    found = [path for path in stage.glob("checkpoint-*") if path.suffix != ".part"]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def latest_checkpoint(stage: Path) -> Path | None:
    """The newest complete checkpoint, if any."""
    found = checkpoints(stage)
    return found[-1] if found else None


def load_position(checkpoint: Path) -> dict[str, Any]:
    """The step and the position in the data that were saved with a checkpoint."""
    position: dict[str, Any] = json.loads((checkpoint / POSITION).read_text(encoding="utf-8"))
    return position


def save_checkpoint(accelerator: Accelerator, stage: Path, position: dict[str, Any]) -> None:
    """Writes weights, optimizers, random states and position; the rename makes it count."""
    final = stage / f"checkpoint-{position['step']}"
    temporary = final.with_suffix(".part")
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (temporary / POSITION).write_text(json.dumps(position) + "\n", encoding="utf-8")
        publish(temporary, final)
        for old in checkpoints(stage)[:-1]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def publish(temporary: Path, final: Path) -> None:
    """Renames a folder once its files are on the disk, so that a power cut cannot halve it."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    temporary.rename(final)
