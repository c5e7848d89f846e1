"""A model on disk: what the node must know of it before any engine loads it. No torch here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.vocabulary import Vocabulary, read_vocabulary
from mesh.chassis.model_source import ModelSourceError, model_folder, served_model_id

_FILES = ["*.json", "*.safetensors", "*.jinja"]
_IGNORED = ["consolidated*", "*/*"]  # the same weights once more, in a form of their own


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder that was read and checked.

    Attributes:
        id: what requests call it.
        config: config.json.
        context_token_count_max: most tokens of prompt and answer together.
        vocabulary_size: rows of the logits (padding rows included), tokens.
        eos_token_ids: tokens that end an answer.
        created_unix_s: when the weights were made; 0 when unknown.
    """

    id: str
    folder: Path
    config: dict[str, Any]
    vocabulary: Vocabulary
    context_token_count_max: int
    vocabulary_size: int
    eos_token_ids: frozenset[int]
    created_unix_s: int


def open_model(model: str, model_id: str = "") -> ModelFolder:
    """Reads a model folder; a name that is no folder is looked up on the Hugging Face hub.

    Raises:
        EngineError: it is not there, or is no model; the text says what to do.
    """
    try:
        folder = model_folder(model, _FILES, _IGNORED)
    except ModelSourceError as error:
        raise EngineError(str(error)) from error
    try:
        config = json.loads((folder / "config.json").read_bytes())
        vocabulary = read_vocabulary(folder / "tokenizer.json")
        context = int(config["max_position_embeddings"])
        vocabulary_size = int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{folder} is not a usable model folder ({type(error).__name__}: {error}); it needs "
            "config.json, tokenizer.json and *.safetensors."
        ) from error
    weights = sorted(folder.glob("*.safetensors"))
    return ModelFolder(
        id=served_model_id(model, model_id),
        folder=folder,
        config=config,
        vocabulary=vocabulary,
        context_token_count_max=context,
        vocabulary_size=vocabulary_size,
        eos_token_ids=_eos_token_ids(folder, config),
        created_unix_s=int(weights[0].stat().st_mtime) if weights else 0,
    )


def _eos_token_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    """End-of-sequence tokens of config.json and generation_config.json together."""
    found: set[int] = set()
    sources = [config]
    if (folder / "generation_config.json").exists():
        sources.append(json.loads((folder / "generation_config.json").read_bytes()))
    for source in sources:
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)
