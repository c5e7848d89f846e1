"""Runs one step of the scheduler's plan through the model: chunks in, logits out."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineError
from inference_svc.engine.torch.models.attention import tile_groups
from inference_svc.engine.torch.models.config import read_config
from inference_svc.engine.torch.models.transformer import StepInput, Transformer
from inference_svc.engine.torch.models.weights import Weights
from inference_svc.engine.torch.scheduler import Chunk
from inference_svc.model_folder import ModelFolder

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        logits: of the chunks that sample, in their order, [samples, vocabulary].
        sound: for each chunk, whether all its rows are finite numbers.
    """

    logits: npt.NDArray[np.float32]
    sound: list[bool]


class ModelRunner:
    """The model and its KV cache: block numbers of the block manager are rows here.

    Attributes:
        block_count: KV-cache blocks, [1, …).
    """

    def __init__(self, model: ModelFolder, kv_cache_bytes: int, block_count: int = 0) -> None:
        """Loads; `block_count` 0: as many blocks as `kv_cache_bytes` hold.

        Raises:
            EngineError: the model cannot be served; the text says why.
        """
        try:
            config = read_config(model.config)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"config.json of {model.id} is incomplete: {error}.") from error
        with Weights(model.folder) as weights:
            self._model = Transformer(config, weights)
        per_block = 2 * config.layer_count * self._model.cache_layer(1).numel() * FLOAT_BYTES
        # Blocks for one full context are useful at most per sequence; memory is the bound.
        self.block_count = block_count or max(1, kv_cache_bytes // per_block)
        self._cache = [
            (self._model.cache_layer(self.block_count), self._model.cache_layer(self.block_count))
            for _ in range(config.layer_count)
        ]

    @torch.inference_mode()
    def step(self, chunks: list[Chunk]) -> StepResult:
        """Computes the chunks into the cache."""
        logits, finite = self._model.forward(_step_input(chunks), self._cache)
        sizes = [chunk.end - chunk.begin for chunk in chunks]
        sound = [bool(rows.all()) for rows in torch.split(finite, sizes)]
        return StepResult(logits.numpy(), sound)

    @torch.inference_mode()
    def wipe(self, blocks: list[int]) -> None:
        """Zeroes blocks that may hold NaN: even a masked NaN would spoil their next owner."""
        for keys, values in self._cache:
            keys[blocks] = 0
            values[blocks] = 0


def _step_input(chunks: list[Chunk]) -> StepInput:
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    tiled: list[tuple[int, int, int, list[int]]] = []
    sampled: list[int] = []
    for chunk in chunks:
        blocks = chunk.sequence.blocks
        tiled.append((len(token_ids), chunk.begin, chunk.end, blocks))
        token_ids += chunk.sequence.token_ids[chunk.begin : chunk.end]
        positions += range(chunk.begin, chunk.end)
        slots += [
            blocks[p // BLOCK_TOKEN_COUNT] * BLOCK_TOKEN_COUNT + p % BLOCK_TOKEN_COUNT
            for p in range(chunk.begin, chunk.end)
        ]
        if chunk.samples:
            sampled.append(len(token_ids) - 1)
    return StepInput(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        groups=tile_groups(tiled),
        sampled_rows=torch.tensor(sampled, dtype=torch.long),
    )
