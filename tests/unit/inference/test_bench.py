import json
from pathlib import Path

import pytest

from inference_svc import bench


def test_it_measures_each_level_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERENCE_ENGINE", "simulated")
    monkeypatch.setenv("INFERENCE_SIMULATED_IGNORE_EOS", "true")
    picture = tmp_path / "plot.png"
    sizes = ["--prompt-tokens", "8", "--new-tokens", "4", "--rounds", "2"]
    bench.main(["--concurrency", "1", "3", *sizes, "--out", str(picture)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [level["concurrency"] for level in report["levels"]] == [1, 3]
    assert all(level["tokens_per_s"] > 0 for level in report["levels"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_median_is_taken_of_each_figure_alone() -> None:
    rounds = [bench.Level(4, 10, 3, 1), bench.Level(4, 30, 1, 2), bench.Level(4, 20, 2, 9)]
    assert bench.median_level(rounds) == bench.Level(4, 20, 2, 2)
