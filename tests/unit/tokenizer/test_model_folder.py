"""What a model's folder must hold, and what is said when it does not."""

import hashlib
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.tokenizer import conftest as models
from tokenizer_svc.chat_template import TemplateError
from tokenizer_svc.model_folder import ModelFolderError, read_folder, read_model
from tokenizer_svc.prompt import ChatTokenizer
from tokenizer_svc.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, tokenizer_object: Tokenizer) -> Path:
    return models.write_model(tmp_path / "tiny", tokenizer_object, models.CHATML)


def test_a_folder_is_read(folder: Path) -> None:
    files = read_model(str(folder))
    data = (folder / "tokenizer.json").read_bytes()
    assert files.digest == hashlib.sha256(data).hexdigest()
    assert files.context_token_count_max == models.CONTEXT
    assert files.template_variables == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize("named", [False, True])
def test_the_template_may_stand_in_the_configuration(folder: Path, named: bool) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelFolderError, match=r"add chat_template\.jinja"):
        read_folder(folder)
    entry = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "T"}]
    config = {"chat_template": entry if named else "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_folder(folder).chat_template == "T"


def test_context_of_a_nested_configuration(folder: Path) -> None:
    nested = {"text_config": {"max_position_embeddings": 77}}
    (folder / "config.json").write_text(json.dumps(nested))
    assert read_folder(folder).context_token_count_max == 77


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", "{}", "max_position_embeddings"),
        ("config.json", "{", "no JSON"),
        ("config.json", "[]", "no JSON object"),
        ("config.json", None, "cannot be read"),
        ("tokenizer.json", None, "cannot be read"),
    ],
)
def test_what_is_missing_is_named(folder: Path, name: str, content: str | None, says: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ModelFolderError, match=says):
        read_folder(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}', "[]"])
def test_a_tokenizer_file_that_is_none(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json"):
        ChatTokenizer(read_folder(folder), 0)


def test_a_template_that_does_not_compile(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in %}")
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTokenizer(read_folder(folder), 0)


@pytest.mark.parametrize("model", ["no-such-folder", "./missing/model", "/missing/model", "a/b/c"])
def test_neither_a_folder_nor_a_hub_id(model: str) -> None:
    with pytest.raises(ModelFolderError, match="set MODEL to the path of a model folder"):
        read_model(model)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelFolderError, match=r"hub did not give it \(OSError: no network\)"):
        read_model("org/name")


def test_model_id(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("MODEL", str(folder))
    monkeypatch.delenv("MODEL_ID", raising=False)
    assert Settings().served_model_id == "tiny"
    monkeypatch.setenv("MODEL_ID", "mine")
    assert Settings().served_model_id == "mine"
    monkeypatch.delenv("MODEL_ID")
    monkeypatch.setenv("MODEL", "org/name")
    assert Settings().served_model_id == "name"  # as the inference nodes read it
