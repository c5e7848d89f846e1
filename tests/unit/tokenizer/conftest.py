"""A small model folder of the tests' own: byte-level BPE and templates of several families."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenizer_svc.model_folder import read_folder
from tokenizer_svc.prompt import ChatTokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 512
CORPUS = [
    "You are a helpful assistant. Hello there, how are you today?\n",
    "system\nuser\nassistant\n the quick brown fox jumps over the lazy dog 1234 times.\n\n",
    "Grüße aus Köln, 東京 und Москва 🙂 — im_start im_end end start < | >\n",
] * 4

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A default system prompt, trimmed contents, look-ahead, a reversed loop, like Qwen's.
FANCY = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- else %}
        {%- set content = message.content | trim %}
        {{- '<|im_start|>' + message.role }}{%- if message.name %} {{ message.name }}{% endif %}
        {{- '\\n' + content + '<|im_end|>' }}
        {%- if not loop.last and messages[loop.index0 + 1].role == 'user' %}{{- '\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# System taken out first, special tokens from variables, roles as parts of special tokens.
SPLIT_OUT = """{{ bos_token }}{% if messages[0].role == 'system' %}
{% set system = messages[0].content %}{% set rest = messages[1:] %}
{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% if system %}{{ '<|im_start|>' + system + '<|im_' + 'end|>' }}{% endif %}
{% for m in rest %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}
{% endif %}
{{ '<|im_start|>' ~ m.role ~ ': ' ~ m.content | tojson ~ eos_token }}
{%- generation %} {% endgeneration %}
{% endfor %}"""
# No special token between the messages.
PLAIN = """{% for m in messages %}{{ m.role }}: {{ m.content }}

{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
TEMPLATES = {"chatml": CHATML, "fancy": FANCY, "split_out": SPLIT_OUT, "plain": PLAIN}


def train(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_model(folder: Path, tokenizer: Tokenizer, template: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT}))
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tokenizer_object() -> Tokenizer:
    return train(pre_tokenizers.ByteLevel(add_prefix_space=False))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_object: Tokenizer) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny", tokenizer_object, CHATML)


@pytest.fixture(scope="session")
def chat(model_folder: Path) -> ChatTokenizer:
    return ChatTokenizer(read_folder(model_folder), 1 << 20)


@pytest.fixture(scope="session")
def added_after_vocabulary() -> Tokenizer:
    """Like Qwen's: special tokens behind the vocabulary, one added token that is not special."""
    split = pre_tokenizers.Split(r" ?\w+|\s+|[^\s\w]+\s*", "isolated")  # type: ignore[arg-type]
    tokenizer = train(
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.add_special_tokens(["<|tool|>", AddedToken("<|wide|>", lstrip=True, rstrip=True)])
    return tokenizer
