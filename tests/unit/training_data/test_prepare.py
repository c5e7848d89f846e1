"""From the bundled sample to the files of every later stage."""

import hashlib
import json
from pathlib import Path

import pytest

from training.data import evaluation, prepare
from training.data.decontaminate import Decontaminator
from training.data.prepare import SAMPLE, held_out
from training.data.sources import LEFT_OUT, PERMISSIVE, SOURCES, open_source, present

SCALE = 0.01


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    prepare(None, out, scale=SCALE)
    return out


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_everything_that_later_stages_read_is_there(prepared: Path) -> None:
    stages = ("pretrain", "sft", "preferences")
    names = {f"{stage}.{side}.jsonl" for stage in stages for side in ("train", "held_out")}
    names |= {f"{name}.jsonl" for name in evaluation.SETS} | {"data_card.json"}
    assert {path.name for path in prepared.iterdir()} == names
    assert all(path.stat().st_size for path in prepared.iterdir())


def test_conversations_alternate_and_end_with_the_assistant(prepared: Path) -> None:
    for name in ("pretrain.train", "sft.train", "sft.held_out"):
        for row in rows(prepared / f"{name}.jsonl"):
            if "messages" not in row:
                continue
            roles = [message["role"] for message in row["messages"]]
            talk = roles[1:] if roles[0] == "system" else roles
            assert talk == ["user", "assistant"] * (len(talk) // 2), row
            assert all(message["content"].strip() for message in row["messages"]), row


def test_pairs_differ_and_say_how(prepared: Path) -> None:
    pairs = rows(prepared / "preferences.train.jsonl")
    assert {pair["kind"] for pair in pairs} >= {"unsafe", "refused", "wrong fact", "rambling"}
    for pair in pairs:
        assert pair["prompt"][-1]["role"] == "user"
        assert pair["chosen"] != pair["rejected"]
        assert pair["chosen"][0]["role"] == pair["rejected"][0]["role"] == "assistant"


def test_the_same_seed_gives_the_same_bytes(prepared: Path, tmp_path: Path) -> None:
    prepare(None, tmp_path, scale=SCALE)
    for path in prepared.iterdir():
        again = tmp_path / path.name
        assert again.read_bytes() == path.read_bytes(), path.name
    other = tmp_path / "other"
    prepare(None, other, seed=1, scale=SCALE)
    assert (other / "sft.train.jsonl").read_bytes() != (prepared / "sft.train.jsonl").read_bytes()


def test_no_evaluation_prompt_is_in_the_training_data(prepared: Path) -> None:
    guard = Decontaminator(evaluation.prompts())
    for name in ("pretrain.train", "sft.train"):
        for row in rows(prepared / f"{name}.jsonl"):
            texts = [m["content"] for m in row.get("messages", []) if m["role"] == "user"]
            for text in texts or [row.get("text", "")]:
                assert guard.hit(text) is None, (text, guard.hit(text))
    for pair in rows(prepared / "preferences.train.jsonl"):
        assert guard.hit(pair["prompt"][-1]["content"]) is None


def test_the_split_depends_on_the_text_alone(prepared: Path) -> None:
    kept = rows(prepared / "pretrain.train.jsonl")
    aside = rows(prepared / "pretrain.held_out.jsonl")
    assert all(held_out(text(row)) for row in aside)
    assert not any(held_out(text(row)) for row in kept if row["source"] != "made")
    share = sum(
        held_out(hashlib.sha256(bytes([n % 256, n // 256])).hexdigest()) for n in range(5000)
    )
    assert 400 < share < 600


def text(row: dict) -> str:
    return row.get("text") or "\n".join(message["content"] for message in row["messages"])


def test_the_card_counts_what_was_written(prepared: Path) -> None:
    card = json.loads((prepared / "data_card.json").read_text())
    documents = sum(source["documents"] for source in card["sources"])
    assert documents == len(rows(prepared / "pretrain.train.jsonl"))
    assert card["removed"], "the sample has paragraphs that cleaning drops"


def test_every_licence_allows_shipping_the_weights() -> None:
    assert {source.licence for source in SOURCES.values()} <= PERMISSIVE
    assert not set(SOURCES) & set(LEFT_OUT)
    assert set(present(SAMPLE)) == {path.name for path in SAMPLE.iterdir() if path.is_dir()}


@pytest.mark.parametrize("folder", [*LEFT_OUT, "unheard-of"])
def test_a_folder_without_a_permissive_licence_cannot_be_read(folder: str) -> None:
    with pytest.raises(KeyError, match="may not be read"):
        open_source(SAMPLE, folder, "rows.jsonl.gz")


def test_the_data_card_lists_every_source() -> None:
    card = (SAMPLE.parent / "README.md").read_text(encoding="utf-8")
    for folder, source in SOURCES.items():
        row = next((line for line in card.splitlines() if line.startswith(f"| {folder} |")), "")
        assert source.licence in row, f"training/data/README.md: {folder} with {source.licence}"
        assert source.origin in row, f"training/data/README.md: {folder} from {source.origin}"
    for folder in LEFT_OUT:
        assert folder in card
