"""MODEL is read alike by whoever is given it."""

from pathlib import Path

import pytest

from mesh.chassis.model_source import ModelSourceError, model_folder, served_model_id
from mesh.settings import UpSettings
from tokenizer_svc.settings import Settings as TokenizerSettings


@pytest.mark.parametrize(
    ("model", "model_id", "served"),
    [("org/name", "", "name"), ("models/tiny/", "", "tiny"), ("org/name", "mine", "mine")],
)
def test_the_id_is_the_same_for_everybody(monkeypatch, model, model_id, served):
    monkeypatch.setenv("MODEL", model)
    monkeypatch.setenv("MODEL_ID", model_id)
    assert served_model_id(model, model_id) == served
    assert TokenizerSettings().served_model_id == served
    assert UpSettings().served_model_id == served


def test_the_folder_one_stands_in_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path / "tiny")
    assert served_model_id(".", "") == "tiny"
    assert model_folder(".", ["*.json"]) == Path()


@pytest.mark.parametrize("model", ["no-such-folder", "./missing/model", "/missing/model", "a/b/c"])
def test_what_is_neither_a_folder_nor_a_hub_id(model):
    with pytest.raises(ModelSourceError, match="set MODEL to the path"):
        model_folder(model, ["*.json"])
