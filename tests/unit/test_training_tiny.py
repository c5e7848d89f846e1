"""The tiny model: its pipeline at toy size, and the folder that ships."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

SHIPPED = Path(__file__).parents[2] / "inference_svc/models/chatmesh-tiny"
TOTAL_BYTES_MAX = 16_000_000


def digests_of(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def render(folder: Path, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "chat_template.jinja").read_text())
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


@pytest.fixture
def sample_data(tmp_path: Path) -> Path:
    """A few records of three data sets, in the layout that the loaders read."""
    data = tmp_path / "data"
    stories = [
        f"# Story {i}\nThe dog ran up the hill. The cat ran after the dog." for i in range(12)
    ]
    talks = [{"topic": "music", "turns": ["do you like jazz?", "yes, very much."]}] * 12
    country = (
        "# Kenya\nLocation: Eastern Africa, bordering the Indian Ocean\nCapital - name: Nairobi"
    )
    files = {
        "text-african-storybook/stories_en.txt.xz": "\x1e".join(stories),
        "self-dialogue/dialogues.jsonl.gz": "\n".join(map(json.dumps, talks)),
        "text-world-factbook/factbook.txt.xz": country,
    }
    for name, text in files.items():
        path = data / name
        path.parent.mkdir(parents=True)
        pack = gzip.compress if name.endswith(".gz") else lzma.compress
        path.write_bytes(pack(text.encode()))
    return data


def test_pipeline_trains_and_exports_at_toy_size(sample_data: Path, tmp_path: Path) -> None:
    from training.tiny import SMOKE, run

    out = tmp_path / "out"
    numbers = run(sample_data, out, minutes=0.02, size=SMOKE, state=tmp_path / "state.pt")
    assert int(numbers["steps"].replace(",", "")) > 0
    assert (tmp_path / "state.pt").exists()
    for name, digest in digests_of(out).items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    config = json.loads((out / "config.json").read_text())
    assert config["vocab_size"] == Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab_size()
    card = (out / "README.md").read_text()
    assert "text-world-factbook" in card
    assert "gsm8k" not in card  # only the data that was there is named


def test_only_the_assistant_is_learned_in_tuning() -> None:
    from training.batches import IGNORED, encode_chat

    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]
    ids, labels = encode_chat(tokenizer, messages, all_labels=False)
    rendered = render(SHIPPED, messages, add_generation_prompt=False) + "<|endoftext|>"
    assert ids == tokenizer.encode(rendered).ids
    learned = [label for label in labels if label != IGNORED]
    assert tokenizer.decode(learned, skip_special_tokens=False) == "Hello there.<|im_end|>"


def test_conversations_alternate_and_repeat_with_their_seed() -> None:
    from training.chat import ChatMaker
    from training.corpora import read_corpora

    nothing = read_corpora(Path("no/such/folder"))
    one, two = ChatMaker(nothing, seed=5), ChatMaker(nothing, seed=5)
    for _ in range(200):
        messages = one.conversation()
        assert messages == two.conversation()
        roles = [m["role"] for m in messages if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(m["content"] for m in messages)


def test_shipped_files_match_their_digests() -> None:
    digests = digests_of(SHIPPED)
    files = {f.name for f in SHIPPED.iterdir() if f.name != "SHA256SUMS"}
    assert files == set(digests), "run the export again: SHA256SUMS names other files"
    for name, digest in digests.items():
        assert hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() == digest, name
    assert sum(f.stat().st_size for f in SHIPPED.iterdir()) <= TOTAL_BYTES_MAX


def test_shipped_template_renders_chatml() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    assert render(SHIPPED, messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(SHIPPED, messages[1:3], add_generation_prompt=False).endswith(
        "Hello!<|im_end|>\n"
    )


def test_shipped_tokenizer_knows_the_ends_of_a_reply() -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    settings = json.loads((SHIPPED / "generation_config.json").read_text())
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    assert settings["eos_token_id"] == ends
    text = "Grüße, 你好! 12 + 7 = 19 🎉"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
