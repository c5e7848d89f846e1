"""MODEL: where a model's files are, and the id under which it answers.

The tokenizer, the inference nodes and `make run` are given the same variable, so they must read it
alike: no request
reaches a model that one calls "org/name" and another "name".
"""

from collections.abc import Sequence
from pathlib import Path


class ModelSourceError(Exception):
    """The model's files are not to be had; the text says what to do."""


def served_model_id(model: str, model_id: str) -> str:
    """The id that requests use: as set, or else the last part of the folder or hub id."""
    return model_id or Path(model).name or Path(model).resolve().name


def model_folder(model: str, files: Sequence[str], ignored: Sequence[str] = ()) -> Path:
    """The folder of a model; one that is no folder is got from the Hugging Face hub.

    Args:
        model: path of a folder, or a hub id such as "org/name".
        files: patterns of the files that are wanted.
        ignored: patterns of those that are not.

    Raises:
        ModelSourceError: there is no such folder, and the hub does not give it.
    """
    if Path(model).is_dir():
        return Path(model)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ModelSourceError(
            f"MODEL={model} is neither a folder nor a hub id (org/name); set MODEL to the path of "
            "a model folder."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=[*files], ignore_patterns=[*ignored]))
    except Exception as error:  # the hub client has no common error type
        raise ModelSourceError(
            f"MODEL={model} is no folder, and the hub did not give it ({type(error).__name__}: "
            f"{error}); download it where there is a network and set MODEL to the folder."
        ) from error
