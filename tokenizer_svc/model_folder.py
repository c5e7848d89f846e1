"""What a tokenizer needs of a model's folder, in the layout of the Hugging Face hub."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh.chassis.model_source import ModelSourceError, model_folder

FILE_NAMES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")
# Names of the special tokens that templates may read.
_TOKEN_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")


class ModelFolderError(Exception):
    """The folder cannot be used; the text says what is missing and where to get it."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The parts of a model that its tokenizer is made of."""

    tokenizer_json: str
    # SHA-256 of tokenizer.json, lower-case hex.
    digest: str
    chat_template: str
    template_variables: Mapping[str, str]
    context_token_count_max: int


def read_model(model: str) -> ModelFiles:
    """Reads a model from a local folder, or else from the hub.

    Args:
        model: path of a folder, or a hub id such as "org/name".

    Raises:
        ModelFolderError: no such folder or hub id, or a file is missing or wrong.
    """
    try:
        return read_folder(model_folder(model, FILE_NAMES))
    except ModelSourceError as error:
        raise ModelFolderError(str(error)) from error


def read_folder(folder: Path) -> ModelFiles:
    """Reads a model's folder.

    Raises:
        ModelFolderError: a file is missing or wrong.
    """
    data = _bytes_of(folder / "tokenizer.json")
    config = _json_of(folder / "tokenizer_config.json", optional=True)
    return ModelFiles(
        tokenizer_json=data.decode("utf-8"),
        digest=hashlib.sha256(data).hexdigest(),
        chat_template=_template_of(folder, config),
        template_variables=_variables_of(config),
        context_token_count_max=_context_of(folder),
    )


def _template_of(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if not isinstance(template, str):
        raise ModelFolderError(
            f"{folder} has no chat template: add chat_template.jinja, "
            'or "chat_template" to tokenizer_config.json.'
        )
    return template


def _variables_of(config: Mapping[str, Any]) -> dict[str, str]:
    variables = {}
    for name in _TOKEN_VARIABLES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            variables[name] = text
    return variables


def _context_of(folder: Path) -> int:
    config = _json_of(folder / "config.json")
    text_config = config.get("text_config")  # models of several modalities nest it
    for source in (config, text_config if isinstance(text_config, dict) else {}):
        context = source.get("max_position_embeddings")
        if isinstance(context, int) and context > 1:
            return context
    raise ModelFolderError(
        f'{folder / "config.json"} has no "max_position_embeddings": add the context in tokens.'
    )


def _json_of(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        document = json.loads(_bytes_of(path))
    except ValueError as error:
        raise ModelFolderError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelFolderError(f"{path} holds no JSON object.")
    return document


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error.strerror}.") from error
