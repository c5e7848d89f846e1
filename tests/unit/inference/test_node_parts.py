"""Model folders, vocabularies, the choice of an engine, sampling."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from inference_svc.engine.choose import choose_engine
from inference_svc.engine.protocol import EngineError, EngineRequest, StopRule
from inference_svc.engine.simulated import AnswerLength, SimulatedEngine, Timing
from inference_svc.engine.vocabulary import read_vocabulary
from inference_svc.model_folder import ModelFolder, open_model
from inference_svc.settings import Settings
from tests.support.toy_folder import write_model

REDIS = "redis://127.0.0.1:1/0"


def test_token_bytes_are_those_of_the_tokenizers_library(model: ModelFolder) -> None:
    reference = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    rng = np.random.default_rng(3)
    for _ in range(50):
        ids = rng.integers(0, model.vocabulary.size, 30).tolist()
        expected = reference.decode(ids, skip_special_tokens=True)
        assert model.vocabulary.join(ids).decode("utf-8", "replace") == expected


def test_pieces_with_byte_fallback(tmp_path: Path) -> None:
    vocab = {"<s>": 0, "<0x0A>": 1, "\u2581the": 2, "é": 3}
    document = {
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert read_vocabulary(tmp_path / "tokenizer.json").join([0, 2, 1, 3]) == " the\né".encode()


def test_eos_comes_from_both_configs(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    found = open_model(str(folder), "name")
    assert (found.id, found.eos_token_ids) == ("name", {0, 5, 7})


def test_a_folder_that_is_no_model_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        open_model(str(tmp_path))


def test_a_hub_id_offline_says_what_to_do(tmp_path: Path) -> None:
    code = "from inference_svc.model_folder import open_model; open_model('nobody/no-such-model')"
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": ".:proto/gen/python"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "the hub did not give it" in done.stderr


def test_an_unknown_engine_is_named_with_the_choices(model: ModelFolder) -> None:
    settings = Settings(redis_url=REDIS, engine="warp")
    with pytest.raises(EngineError, match="simulated, torch"):
        choose_engine(settings, model)


def test_a_simulated_node_never_loads_torch(model: ModelFolder) -> None:
    code = (
        "import sys, inference_svc.__main__\n"
        "from inference_svc.engine.choose import choose_engine\n"
        "from inference_svc.settings import Settings\n"
        "from inference_svc.model_folder import open_model\n"
        f"settings = Settings(redis_url={REDIS!r}, engine='simulated')\n"
        f"choose_engine(settings, open_model({str(model.folder)!r}))\n"
        "assert 'torch' not in sys.modules"
    )
    env = {"PYTHONPATH": ".:proto/gen/python"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MODEL": "/m", "MODEL_ID": "id", "REDIS_URL": REDIS, "INFERENCE_ENGINE": "simulated",
        "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": "12.5",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.model, settings.model_id, settings.engine) == ("/m", "id", "simulated")
    assert settings.simulated_token_interval_ms == 12.5
    monkeypatch.setenv("INFERENCE_FLUSH_WINDOW_MS", "-1")
    with pytest.raises(ValueError, match="flush_window_ms"):
        Settings()


async def test_simulated_timing(model: ModelFolder) -> None:
    """Prefill, then one token an interval, by the clock that it is given."""
    now = 0.0
    engine = SimulatedEngine(
        model.vocabulary, model.eos_token_ids,
        timing=Timing(prefill_tokens_per_s=100, token_interval_ms=500),
        length=AnswerLength(), block_count=100, queue_depth_max=1, running_count_max=4,
        clock=lambda: now,
    )  # fmt: skip
    stream = engine.submit(EngineRequest("a", [3] * 50, StopRule(40)))
    seen = []
    for now in (0.0, 0.4, 0.5, 0.9, 1.0, 2.6):  # the clock reads it
        engine._tick(now, 0.5)
        seen.append(stream.counts.output)
    assert seen == [0, 0, 1, 1, 2, 5]
    await engine.stop()


async def test_simulated_priorities_overtake_and_do_not_starve(model: ModelFolder) -> None:
    now = 0.0
    engine = SimulatedEngine(
        model.vocabulary, model.eos_token_ids, timing=Timing(token_interval_ms=1000),
        length=AnswerLength(), block_count=100, queue_depth_max=9, running_count_max=1,
        clock=lambda: now,
    )  # fmt: skip
    running = engine.submit(EngineRequest("r", [3], StopRule(40)))
    low = engine.submit(EngineRequest("low", [3], StopRule(40), priority=-1))
    high = engine.submit(EngineRequest("high", [3], StopRule(40), priority=1))
    now = 21.0  # more than two steps of priority later
    late = engine.submit(EngineRequest("late", [3], StopRule(40), priority=1))
    order = []
    for stream, name in ((running, "running"), (high, "high"), (low, "low"), (late, "late")):
        now += 1.0
        engine._tick(now, 1.0)
        assert stream.counts.output > 0
        order.append(name)
        stream.cancel()
    assert order == ["running", "high", "low", "late"]
    await engine.stop()
