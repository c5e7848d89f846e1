"""A progress bar, and the same numbers as JSON Lines and as a picture."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

CURVE, PICTURE = "curve.jsonl", "curve.png"


class Progress:
    """Shows and writes the course of a stage; only the main process does.

    Lines after the position that training continues from are dropped, so that the curve of a run
    that was killed is that of one that was not.
    """

    def __init__(self, stage: Path, steps: int, position: dict[str, Any], *, main: bool) -> None:
        self._stage, self._main = stage, main
        self._tokens, self._time = position["tokens"], time.monotonic()
        if not main:
            return
        stage.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_curve(stage) if row["step"] <= position["step"]]
        temporary = stage / (CURVE + ".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        os.replace(temporary, stage / CURVE)
        self._file = (stage / CURVE).open("a", encoding="utf-8", buffering=1)
        self._bar = tqdm(
            total=steps, initial=position["step"], desc=stage.name, unit="step", mininterval=2
        )

    def log(self, position: dict[str, Any], **values: float) -> None:
        """One line of the curve; `loss` also moves the bar."""
        if not self._main:
            return
        now = time.monotonic()
        line: dict[str, Any] = {"step": position["step"], "tokens": position["tokens"]}
        if "loss" in values:
            speed = (position["tokens"] - self._tokens) / max(now - self._time, 1e-9)
            self._tokens, self._time = position["tokens"], now
            line["tokens_per_s"] = round(speed)
            self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed:,.0f} tokens/s", False)
            self._bar.update(position["step"] - self._bar.n)
        line |= {name: float(f"{value:.6g}") for name, value in values.items()}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Ends the bar and draws the curve."""
        if self._main:
            self._bar.close()
            self._file.close()
            draw_curve(self._stage)


def read_curve(stage: Path) -> list[dict[str, Any]]:
    """The complete lines of a stage's curve."""
    path = stage / CURVE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def draw_curve(stage: Path) -> None:
    """Draws training and held-out losses over tokens into `curve.png`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_curve(stage)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name in sorted({key for row in rows for key in row if key.endswith("loss")}):
        points = [(row["tokens"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), label=name.replace("_", " "), linewidth=1)
    axes.set(title=stage.name, xlabel="tokens", ylabel="loss, nats per token")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(stage / PICTURE, dpi=120)
    plt.close(figure)
