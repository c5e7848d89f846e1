"""The safetensors files of a folder, one or shards: checked when opened, read tensor by tensor.

Tensors are read, not mapped: the memory of one is free again as soon as it was converted, and a
file that is cut short under a running process cannot kill it.
"""

import hashlib
import json
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.models.numbers import Array

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8}
_LENGTH_BYTES = 8  # a safetensors file: length of the header, header as JSON, tensors


class _Place(NamedTuple):
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class TensorFiles:
    """Where each tensor of a folder is.

    Raises:
        EngineError: no weights, a corrupt or altered file, or (from the methods) a missing or
            wrong tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._places = folder, dict[str, _Place]()
        try:
            self._files = _files(folder)
            self._sums = _sums(folder)
            for file in self._files:
                self._places.update(_places(file))
            self._check_complete()
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"The weights in {folder} are corrupt or incomplete ({error}); fetch them again."
            ) from error
        self._digesting = threading.Lock()
        self.digest = self._checked_digest() if self._sums else ""

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._places)

    def get(self, name: str, *shape: int) -> Array:
        """The tensor `name` with exactly this shape: float32, float16, int8, or bfloat16 bits."""
        place = self._places.get(name)
        if place is None:
            raise EngineError(f"The weights lack the tensor {name}; are the files complete?")
        if place.shape != shape:
            raise EngineError(
                f"The tensor {name} has the shape {list(place.shape)} and config.json wants "
                f"{list(shape)}; weights and config.json do not belong together."
            )
        dtype = _DTYPES.get(place.dtype)
        if dtype is None:
            raise EngineError(
                f"The tensor {name} is {place.dtype}; only {', '.join(_DTYPES)} are read."
            )
        count = int(np.prod(shape))
        values = np.fromfile(place.file, dtype, count, offset=place.offset)
        if values.size != count:
            raise EngineError(f"{place.file} ends within {name}; fetch it again.")
        return values.reshape(shape)

    def source_digest(self) -> str:
        """SHA-256 of all weights, hex; computed when SHA256SUMS did not ask for it already.

        Any thread may ask; who comes while another computes it waits for that.
        """
        with self._digesting:
            return self.digest or self._checked_digest()

    def _checked_digest(self) -> str:
        whole = hashlib.sha256()
        for file in self._files:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if self._sums.get(file.name, digest) != digest:
                raise EngineError(
                    f"{file} is not the file that SHA256SUMS beside it names; fetch it again, or "
                    "renew SHA256SUMS if the change was meant."
                )
            whole.update(digest.encode())
        self.digest = whole.hexdigest()
        return self.digest

    def _check_complete(self) -> None:
        """Every tensor of the index is there; without one, every file of SHA256SUMS."""
        index = self._folder / "model.safetensors.index.json"
        if index.exists():
            for name, file in json.loads(index.read_bytes())["weight_map"].items():
                if name not in self._places or self._places[name].file.name != file:
                    raise ValueError(f"{file} lacks {name}")
            return
        wanted = {name for name in self._sums if Path(name).match("*.safetensors")}
        if lost := wanted - {file.name for file in self._files}:
            raise ValueError(f"{', '.join(sorted(lost))} of SHA256SUMS is not there")


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise ValueError("the index names files outside the folder")
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} has no *.safetensors; only this format is read.")
    return files


def _places(file: Path) -> dict[str, _Place]:
    with safe_open(file, framework="numpy"):  # checks header, offsets and length
        pass
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    start = _LENGTH_BYTES + length
    return {
        name: _Place(file, at["dtype"], tuple(at["shape"]), start + at["data_offsets"][0])
        for name, at in header.items()
    }


def _sums(folder: Path) -> dict[str, str]:
    """Digests by file name, of a SHA256SUMS beside the weights if there is one."""
    file = folder / "SHA256SUMS"
    if not file.exists():
        return {}
    lines = [line.split(maxsplit=1) for line in file.read_text().splitlines() if line.strip()]
    return {name.strip().lstrip("*"): digest.lower() for digest, name in lines}
