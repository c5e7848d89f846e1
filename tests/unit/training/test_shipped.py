"""The model folder that ships: digests, size, template, tokenizer; and what is learned from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from training.text import ASSISTANT_HEAD, IGNORED, chat_labels, chat_text, encode_documents

SHIPPED = Path(__file__).parents[3] / "inference_svc/models/chatmesh-tiny"
WEIGHTS_BYTES_MAX = 32_000_000


def digests_of(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def render(folder: Path, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "chat_template.jinja").read_text())
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def test_only_the_assistant_is_learned_in_tuning() -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "See you."},
    ]
    (ids,) = encode_documents(tokenizer, [{"messages": messages}])
    rendered = render(SHIPPED, messages, add_generation_prompt=False) + "<|endoftext|>"
    assert ids == tokenizer.encode(rendered).ids
    labels = chat_labels(ids, tokenizer.encode(ASSISTANT_HEAD).ids)
    learned = [label for label in labels if label != IGNORED]
    said = tokenizer.decode(learned, skip_special_tokens=False)
    assert said == "Hello there.<|im_end|>See you.<|im_end|>"


def test_training_prompts_as_the_template_does() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    served = render(SHIPPED, messages, add_generation_prompt=True)
    assert chat_text(messages, prompt=True) == served


def test_shipped_files_match_their_digests() -> None:
    digests = digests_of(SHIPPED)
    files = {f.name for f in SHIPPED.iterdir() if f.name != "SHA256SUMS"}
    assert files == set(digests), "run the export again: SHA256SUMS names other files"
    for name, digest in digests.items():
        assert hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() == digest, name
    assert (SHIPPED / "model.safetensors").stat().st_size <= WEIGHTS_BYTES_MAX


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
