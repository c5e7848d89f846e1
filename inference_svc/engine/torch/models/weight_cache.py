"""int8 weights on disk, so that a checkpoint is quantised once and not at every start.

An entry is a folder of safetensors, one file for each layer, with a SHA256SUMS that is checked when
it is opened, so that nothing need be flushed when it is written. Its name is a digest of the
source's weights and of what reads them: a source that changes has another entry. Entries appear
whole (written beside, then renamed) and leave, the least recently used first, when all of them
together are too large.
"""

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
from safetensors import TensorSpec, serialize_file

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.models.config import ModelConfig
from inference_svc.engine.torch.models.numbers import Array, Kind
from inference_svc.engine.torch.models.tensor_files import TensorFiles
from inference_svc.engine.torch.models.weights import (
    Checkpoint,
    Floats,
    LayerWeights,
    Matrix,
    ModelWeights,
)

log = structlog.get_logger()

FORMAT = 1  # part of the digest: another meaning of the files is another entry
CACHE_BYTES_MAX = 16 << 30
KEPT_AT_LEAST_S = 3600.0  # an entry younger than that may be in use by a node that is starting


def cache_folder() -> Path:
    """Where entries lie unless the settings say otherwise: below XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "chatmesh" / "weights"


class Checkpoints:
    """The weights of one folder in every kind of numbers."""

    def __init__(self, folder: Path, config: ModelConfig, cache: Path | None) -> None:
        """Opens the files.

        Args:
            cache: folder of the entries; None: int8 weights are made in memory at each start. A
                cache that cannot be written or read is logged and done without.

        Raises:
            EngineError: they are missing, corrupt or altered.
        """
        self._config, self._cache, self._files = config, cache, TensorFiles(folder)

    def digest(self) -> str:
        """SHA-256 of the weights as they lie on disk, hex; reads all of them at the first call."""
        return self._files.source_digest()

    @functools.cached_property
    def entry(self) -> Path | None:
        """Where the int8 weights are, or would be."""
        if self._cache is None:
            return None
        identity = f"{FORMAT} {self.digest()} {self._config!r}"
        return self._cache / f"int8-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"

    def weights(self, kind: Kind) -> ModelWeights:
        """In this kind; int8 from the cache, which is filled when it lacks them.

        Raises:
            EngineError: the weights cannot be served; the text says why.
        """
        checkpoint = Checkpoint(self._config, self._files, kind)
        if kind != "int8" or self.entry is None:
            return checkpoint
        try:
            if not self.entry.exists():
                _store(checkpoint, self.entry)
                _evict(self.entry.parent, CACHE_BYTES_MAX)
            return _opened(self.entry, self._config)
        except OSError as error:
            log.warning("weight_cache_unusable", folder=str(self._cache), error=repr(error))
            return checkpoint


def open_weights(folder: Path, config: ModelConfig, kind: Kind, cache: Path | None) -> ModelWeights:
    """The weights in `folder`, in one kind. Raises as `Checkpoints` does."""
    return Checkpoints(folder, config, cache).weights(kind)


def _opened(entry: Path, config: ModelConfig) -> ModelWeights:
    try:
        cached = CachedWeights(config, TensorFiles(entry))
    except EngineError as error:
        shutil.rmtree(entry, ignore_errors=True)  # the next start makes it anew
        raise OSError(str(error)) from error
    os.utime(entry)
    return cached


class CachedWeights:
    """`ModelWeights` of a cache entry."""

    kind: Kind = "int8"

    def __init__(self, config: ModelConfig, files: TensorFiles) -> None:
        self.config, self._files = config, files

    @property
    def embedding(self) -> Array:
        """[vocabulary, hidden], bfloat16 bits."""
        return self._files.get("embedding", self.config.vocabulary_size, self.config.hidden_size)

    @property
    def norm(self) -> Floats:
        """[hidden]."""
        return self._files.get("norm", self.config.hidden_size)

    @property
    def head(self) -> Matrix:
        """[vocabulary, hidden]."""
        return self._matrix("head", self.config.vocabulary_size, self.config.hidden_size)

    def layers(self) -> Iterator[LayerWeights]:
        """The layers, one at a time."""
        config = self.config
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_size = config.head_count * dim
        for index in range(config.layer_count):
            at = f"layers.{index}."
            yield LayerWeights(
                attention_norm=self._files.get(at + "attention_norm", hidden),
                qkv=self._matrix(at + "qkv", q_size + 2 * config.kv_head_count * dim, hidden),
                query_norm=self._optional(at + "query_norm", dim),
                key_norm=self._optional(at + "key_norm", dim),
                out=self._matrix(at + "out", hidden, q_size),
                mlp_norm=self._files.get(at + "mlp_norm", hidden),
                gate_up=self._matrix(at + "gate_up", 2 * inner, hidden),
                down=self._matrix(at + "down", hidden, inner),
                window=config.windows[index],
            )

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        values = self._files.get(name, outputs, inputs)
        scales = self._files.get(name + ".scales", outputs)
        return Matrix(values, scales, self._optional(name + ".bias", outputs))

    def _optional(self, name: str, size: int) -> Floats | None:
        return self._files.get(name, size) if name in self._files else None


def _store(weights: ModelWeights, entry: Path) -> None:
    """Writes the entry beside its place and renames it. Raises OSError."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    written = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        ends = {"embedding": weights.embedding, "norm": weights.norm}
        _write(written, "ends", ends | _parts("head", weights.head))
        for index, layer in enumerate(weights.layers()):
            _write(written, f"layer-{index:04}", _layer_parts(f"layers.{index}.", layer))
        try:
            written.rename(entry)
        except OSError:
            if not entry.exists():  # else another node was faster, and its entry is as good
                raise
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _layer_parts(prefix: str, layer: LayerWeights) -> dict[str, Array]:
    parts: dict[str, Array] = {}
    for name in ("attention_norm", "query_norm", "key_norm", "mlp_norm"):
        vector = getattr(layer, name)
        parts |= {prefix + name: vector} if vector is not None else {}
    for name in ("qkv", "out", "gate_up", "down"):
        parts |= _parts(prefix + name, getattr(layer, name))
    return parts


def _parts(name: str, matrix: Matrix) -> dict[str, Array]:
    parts = {name: matrix.values, name + ".scales": matrix.scales, name + ".bias": matrix.bias}
    return {key: value for key, value in parts.items() if value is not None}


def _write(folder: Path, name: str, tensors: dict[str, Array]) -> None:
    file = folder / f"{name}.safetensors"
    specs = {
        key: TensorSpec(
            dtype="bfloat16" if value.dtype.name == "uint16" else value.dtype.name,
            shape=value.shape,
            data_ptr=value.ctypes.data,
            data_len=value.nbytes,
        )
        for key, value in tensors.items()
    }
    serialize_file(specs, file)
    with file.open("rb") as written, (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.file_digest(written, 'sha256').hexdigest()}  {file.name}\n")


def _evict(cache: Path, bytes_max: int) -> None:
    """Removes the least recently used entries, and what an interrupted node left behind."""
    now, kept = time.time(), 0
    for entry in sorted(cache.iterdir(), key=lambda path: -path.stat().st_mtime):
        size = sum(file.stat().st_size for file in entry.glob("*"))
        old = now - entry.stat().st_mtime > KEPT_AT_LEAST_S
        if old and (kept + size > bytes_max or entry.name.startswith(".new-")):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            kept += size
