"""Other back ends: a Hugging Face folder, and a guard model on an inference node."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2_grpc
from safety_svc.backends.base import BackendError
from safety_svc.backends.choose import chosen
from safety_svc.backends.guard_llm import CONVERSATION_LENGTH_MAX, GuardLlm, Style
from safety_svc.backends.threads import ThreadBackend
from safety_svc.conversation import Unjudged
from safety_svc.detectors.base import Audience, Category, Turn
from safety_svc.settings import Settings
from tests.support.fakes import FakeInference, FakeTokenizer, Script
from tests.support.loopback import loopback

LABELS = {"toxic": Category.HARASSMENT, "threat": Category.VIOLENCE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights, as `save_pretrained` writes it."""
    import torch
    import transformers

    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("classifier")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz "]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=512,
        id2label={0: "toxic", 1: "threat", 2: "fine"},
        label2id={"toxic": 0, "threat": 1, "fine": 2},
        problem_type="multi_label_classification",
        initializer_range=2.0,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


def model_of(folder: Path, labels: dict[str, Category] = LABELS):
    from safety_svc.backends.huggingface import HuggingFaceModel

    return HuggingFaceModel(folder, labels)


def test_a_hugging_face_folder_gives_findings_by_its_labels(folder: Path) -> None:
    model = model_of(folder)
    alone = [model.inspect_many([text], Audience.REPLY)[0] for text in ("abc", "some é words")]
    together = model.inspect_many(["abc", "some é words"], Audience.REPLY)
    for one, other in zip(alone, together, strict=True):
        assert [each.category for each in one] == [each.category for each in other]
        assert [each.score for each in one] == pytest.approx(
            [each.score for each in other], abs=1e-4
        )
    findings = together[1]
    assert {each.category for each in findings} <= set(LABELS.values())
    assert findings
    assert all((each.start, each.end) == (0, len("some é words".encode())) for each in findings)
    assert all(0.05 <= each.score <= 1 for each in findings)
    assert re.fullmatch("[0-9a-f]{64}", model.digest)


async def test_a_hugging_face_folder_reads_a_conversation_window_by_window(folder: Path) -> None:
    backend = ThreadBackend(model_of(folder), 30)
    text = "é" + "x y " * 400
    turns = [Turn(Audience.USER, "abc"), Turn(Audience.USER, text)]
    found, unjudged = await backend.conversation(turns, "me")
    await backend.close()
    spans = {(index, each.start, each.end) for index, each in found}
    # 1,024 characters, one of them of two bytes; the rest; both messages together.
    assert spans & {(1, 0, 1025), (1, 1025, 1602)}
    assert (0, 0, 3) in spans
    assert not unjudged


def test_a_folder_that_cannot_serve_is_refused_with_the_remedy(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match="holds no sequence classifier"):
        model_of(tmp_path)
    with pytest.raises(BackendError, match="names insult; the model has fine, threat, toxic"):
        model_of(folder, {"insult": Category.HARASSMENT})


def test_settings_choose_the_back_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://x")
    monkeypatch.setenv("SAFETY_BACKEND", "rules")
    assert chosen(Settings(), _no_channel) is None
    monkeypatch.setenv("SAFETY_BACKEND", "huggingface")
    with pytest.raises(BackendError, match="SAFETY_MODEL_FOLDER"):
        chosen(Settings(), _no_channel)
    monkeypatch.setenv("SAFETY_MODEL_FOLDER", str(folder))
    monkeypatch.setenv("SAFETY_LABELS", json.dumps({"toxic": "harassment"}))
    backend = chosen(Settings(), _no_channel)
    assert backend is not None
    assert backend.name == "huggingface"
    monkeypatch.setenv("SAFETY_BACKEND", "guard_llm")
    with pytest.raises(BackendError, match="SAFETY_GUARD_MODEL"):
        chosen(Settings(), _no_channel)


def _no_channel(service: str) -> grpc.aio.Channel:
    raise AssertionError(f"no channel to {service} is needed")


@pytest.fixture
async def mesh() -> AsyncIterator[tuple[FakeTokenizer, FakeInference, grpc.aio.Channel]]:
    tokenizer, node = FakeTokenizer(), FakeInference()
    registrations = [
        (tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, tokenizer),
        (inference_pb2_grpc.add_InferenceServiceServicer_to_server, node),
    ]
    async with loopback(registrations) as channel:
        yield tokenizer, node, channel


async def test_a_guard_model_is_asked_in_one_prompt(mesh) -> None:
    tokenizer, node, channel = mesh
    node.scripts = [Script(["unsafe", "\nS4, S6"])]
    backend = GuardLlm(lambda service: channel, "guard", 30)
    turns = [Turn(Audience.TOOL, "a page"), Turn(Audience.USER, "and how?")]
    found, unjudged = await backend.conversation(turns, "me")
    assert not unjudged
    assert [(one.message_index, one.finding.category) for one in found] == [
        (1, Category.SELF_HARM),
        (1, Category.VIOLENCE),
    ]
    assert found[0].finding.score == pytest.approx(0.6065, abs=1e-3)  # exp(-0.5)
    (message,) = tokenizer.requests[0].messages
    assert "Document: a page\n\nUser: and how?" in message.content
    assert "S4: violence." in message.content
    (request,) = node.requests
    assert (request.model, request.priority) == ("guard", inference_pb2.PRIORITY_HIGH)
    assert request.sampling.temperature == 0


async def test_the_models_own_template_may_make_the_question(mesh) -> None:
    tokenizer, node, channel = mesh
    node.scripts = [Script(["\n\nunsafe\nS9"])]
    backend = GuardLlm(lambda service: channel, "guard", 30, Style.TEMPLATE)
    (finding,) = await backend.inspect("So mix them.", Audience.REPLY, "me")
    assert (finding.category, finding.start, finding.end) == (Category.ILLICIT_WEAPONS, 0, 12)
    assert [each.content for each in tokenizer.requests[0].messages] == ["So mix them."]
    node.scripts = [Script(["safe"])]
    assert await backend.inspect("So mix them.", Audience.REPLY, "me") == []


async def test_what_does_not_fit_into_the_question_is_told(mesh) -> None:
    tokenizer, node, channel = mesh
    node.scripts = [Script(["safe"])]
    backend = GuardLlm(lambda service: channel, "guard", 30)
    turns = [Turn(Audience.USER, "é" * 9_000), Turn(Audience.ASSISTANT, "b" * 9_000)]
    found, unjudged = await backend.conversation(turns, "me")
    assert not found
    assert unjudged == [Unjudged(0, 0, 2 * (18_000 - CONVERSATION_LENGTH_MAX))]
    assert tokenizer.requests[0].messages[0].content.count("é") == CONVERSATION_LENGTH_MAX - 9_000


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (Script(["I cannot say."]), "neither safe nor unsafe"),
        (Script(["unsafe"]), "named no category"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_failure(mesh, script, problem) -> None:
    _, node, channel = mesh
    node.scripts = [script]
    with pytest.raises(BackendError, match=problem):
        await GuardLlm(lambda service: channel, "guard", 30).inspect("x", Audience.REPLY, "me")


async def test_a_guard_model_that_is_away_or_too_small_is_a_failure(mesh) -> None:
    tokenizer, _, channel = mesh
    tokenizer.drop = 1
    backend = GuardLlm(lambda service: channel, "guard", 30, Style.TEMPLATE)
    with pytest.raises(BackendError, match="no room"):
        await backend.conversation([Turn(Audience.USER, "a"), Turn(Audience.USER, "b")], "me")
    tokenizer.context = 1
    with pytest.raises(BackendError, match="CONTEXT_LENGTH_EXCEEDED"):
        await backend.inspect("x", Audience.REPLY, "me")
