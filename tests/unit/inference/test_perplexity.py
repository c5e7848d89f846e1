"""The perplexity command, and what it says of the model that ships: int8 costs less than 1 %."""

import json
import math

import numpy as np
import pytest
from tokenizers import Tokenizer

from inference_svc import perplexity
from inference_svc.model_folder import open_model
from inference_svc.settings import MODEL_DEFAULT
from tests.support.backends import BACKENDS
from tests.support.toy_models import VOCABULARY, make_model, prompt

CHANGE_MAX = 0.01
CONVERSATIONS = [
    ("Hello!", "Hello! How can I help you?"),
    ("Who are you?", "I am the built-in demo model of chatmesh. I am very small."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Where is Japan?", "Japan is a country in Eastern Asia. Its capital is Tokyo."),
    ("Why is the sky blue?", "The sky is blue because the air scatters blue light most."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("Thank you, goodbye!", "Bye! It was nice talking to you."),
]


def text() -> str:
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
    return "".join(turn.format(*pair) for pair in CONVERSATIONS)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("torch", "kernels")])
def test_int8_costs_the_shipped_model_less_than_one_per_cent(backend) -> None:
    model = open_model(str(MODEL_DEFAULT))
    ids = Tokenizer.from_file(str(MODEL_DEFAULT / "tokenizer.json")).encode(text()).ids
    pairs = [("f32", "f32"), ("bf16", "bf16"), ("int8", "int8")]
    base, *others = perplexity.measure(model, ids, pairs, backend=backend)
    assert 1 < base.perplexity < 1000
    for figure in others:
        assert abs(figure.change) < CHANGE_MAX, figure
        assert figure.agreement > 0.95, figure


def test_an_untrained_model_is_as_good_as_none(tmp_path) -> None:
    """Uniform logits give the vocabulary's size, whatever the window and the chunks are."""
    model = make_model(tmp_path / "m", "llama", initializer_range=0.0)
    silence(model.folder)
    (figure,) = perplexity.measure(model, prompt(1, 700), [("f32", "f32")], backend="torch")
    assert figure.perplexity == pytest.approx(VOCABULARY)
    assert (figure.change, figure.agreement) == (0, 1)


def silence(folder) -> None:
    """Makes all logits zero."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = np.zeros_like(tensors["lm_head.weight"])
    save_file(tensors, folder / "model.safetensors")


def test_windows_leave_nothing_to_predict_out() -> None:
    assert [list(w) for w in perplexity.windows(range(7), 3)] == [[0, 1, 2], [3, 4, 5]]
    assert [list(w) for w in perplexity.windows(range(8), 3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(perplexity.windows([1], 3)) == []


def test_the_command_prints_a_table_and_json(tmp_path, capsys) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text())
    given = ["--model", str(MODEL_DEFAULT), "--text", str(file), "--tokens", "40", "--threads", "1"]
    assert perplexity.main([*given, "--backend", "torch"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)["figures"]
    assert len(figures) == 9
    assert all(math.isfinite(figure["perplexity"]) for figure in figures)
    assert f"{figures[0]['perplexity']:.4f}" in "".join(table)


@pytest.mark.parametrize(("content", "message"), [(b"", "too short"), (b"\xff\xfe\xff", "utf-8")])
def test_a_text_that_cannot_be_used_is_told(tmp_path, capsys, content, message) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    assert perplexity.main(["--model", str(MODEL_DEFAULT), "--text", str(file)]) == 1
    assert message in capsys.readouterr().err
