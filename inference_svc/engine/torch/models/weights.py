"""Tensors from the safetensors files of a model folder, one file or shards, checked, as float32."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError, safe_open

from inference_svc.engine.protocol import EngineError

_DTYPES = {torch.float32, torch.bfloat16, torch.float16}


class Weights:
    """The tensors of a folder, read when asked for. A context manager: files are open within.

    Raises:
        EngineError: no weights, a corrupt file, or (from the methods) a missing or wrong tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._file_of: dict[str, safe_open] = {}
        try:
            for file in _files(folder):
                opened = self._stack.enter_context(safe_open(file, framework="pt"))
                self._file_of.update(dict.fromkeys(opened.keys(), opened))
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            self._stack.close()
            raise EngineError(
                f"The weights in {folder} are corrupt or incomplete ({error}); fetch them again."
            ) from error

    def __enter__(self) -> "Weights":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name` with exactly this shape, float32, contiguous."""
        if name not in self._file_of:
            raise EngineError(f"The weights lack the tensor {name}; are the files complete?")
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)  # type: ignore[no-untyped-call]
        if tuple(tensor.shape) != shape:
            raise EngineError(
                f"The tensor {name} has the shape {list(tensor.shape)} and config.json wants "
                f"{list(shape)}; weights and config.json do not belong together."
            )
        if tensor.dtype not in _DTYPES:
            raise EngineError(f"The tensor {name} is {tensor.dtype}; use float32, bf16 or float16.")
        return tensor.to(torch.float32, copy=True)

    def get_optional(self, name: str, *shape: int) -> torch.Tensor | None:
        """As `get`, or None when there is no such tensor."""
        return self.get(name, *shape) if name in self else None


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} has no *.safetensors; only this format is read.")
    return files
