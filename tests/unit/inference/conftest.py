"""Models for the tests: one of a few bytes without weights, toy weights, the one that ships."""

from collections.abc import Iterator

import pytest
import torch

from inference_svc.model_folder import ModelFolder, open_model
from inference_svc.settings import MODEL_DEFAULT
from tests.support.toy_folder import write_model
from tests.support.toy_models import FAMILIES, make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return open_model(str(write_model(tmp_path_factory.mktemp("models") / "toy")))


@pytest.fixture(scope="session")
def shipped() -> ModelFolder:
    return open_model(str(MODEL_DEFAULT))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return make_model(tmp_path_factory.mktemp("weights") / "llama", "llama")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    family, config = FAMILIES["qwen3-biases"]
    return make_model(tmp_path_factory.mktemp("weights") / "qwen3", family, **config)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes on one thread, so that its sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
