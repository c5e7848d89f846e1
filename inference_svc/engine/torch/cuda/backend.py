"""The back end for one NVIDIA GPU: the same decoder in bfloat16, CUDA graphs for decode steps.

It also runs on a CPU, with the reference attention and without graphs: that is how all of it but
the GPU's own kernels is tested where there is no GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding, linear, silu

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineError
from inference_svc.engine.torch.backend import Int32s, Logits, Step, StepResult
from inference_svc.engine.torch.cuda.attention import Attention, Paged, reference, varlen
from inference_svc.engine.torch.cuda.graphs import (
    FIRST_TABLE,
    LENGTH,
    POSITION,
    TOKEN,
    DecodeGraphs,
    Output,
)
from inference_svc.engine.torch.models.config import ModelConfig
from inference_svc.engine.torch.models.numbers import Array, Kind, to_f32
from inference_svc.engine.torch.models.weights import LayerWeights, Matrix, ModelWeights

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
FLASH_HEAD_DIM_MULTIPLE, FLASH_HEAD_DIM_MAX = 8, 256


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a step, on the device: token ids, positions, slots of the KV cache, [rows]."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    paged: Paged


class CudaBackend:
    """A `Backend` on one GPU.

    Attributes:
        KINDS: the (weights, KV) that it offers.
    """

    KINDS = (("bf16", "bf16"), ("f32", "f32"))
    name = "cuda"
    is_batch_invariant = False  # its library's products choose their code by the number of rows

    def __init__(
        self,
        weights: ModelWeights,
        kv_kind: Kind,
        *,
        device: str = "cuda",
        graph_batch_max: int = 64,
    ) -> None:
        """Loads.

        Args:
            graph_batch_max: decode steps up to so many sequences run as a graph.

        Raises:
            EngineError: the kinds are not offered, or the weights cannot be read.
        """
        if (weights.kind, kv_kind) not in self.KINDS:
            raise EngineError(
                f"INFERENCE_WEIGHTS={weights.kind} with INFERENCE_KV={kv_kind} is not offered on a "
                "GPU; use bf16 for both, or auto."
            )
        self.config = config = weights.config
        self.kinds = weights.kind, kv_kind
        self.arithmetic = f"cuda-{torch.__version__}"
        self.arithmetic_facts: tuple[str, ...] = (_device_name(device),)
        self._dtype, self._graph_batch_max = DTYPES[weights.kind], graph_batch_max
        self._device = device
        self._prefill, self._decode = self._attentions()
        self.block_count = 0
        self.block_bytes = (
            2
            * config.layer_count
            * config.kv_head_count
            * config.head_dim
            * BLOCK_TOKEN_COUNT
            * self._dtype.itemsize
        )
        self._embedding = self.moved(weights.embedding)
        self._head = self._embedding if config.tied else self.moved(weights.head.values)
        self._norm = self.moved(weights.norm)
        self._layers = [_Layer(layer, self) for layer in weights.layers()]
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._cos, self._sin = torch.empty(0), torch.empty(0)

    def _attentions(self) -> tuple[Attention, Attention]:
        if self._device == "cpu" or self._dtype is torch.float32:
            return reference, reference
        if (
            self.config.head_dim % FLASH_HEAD_DIM_MULTIPLE
            or self.config.head_dim > FLASH_HEAD_DIM_MAX
        ):
            raise EngineError(
                f"Flash attention wants a head_dim that is a multiple of {FLASH_HEAD_DIM_MULTIPLE} "
                f"up to {FLASH_HEAD_DIM_MAX}, not {self.config.head_dim}; use "
                "INFERENCE_BACKEND=kernels or torch."
            )
        from inference_svc.engine.torch.cuda.paged_decode import decode

        return varlen, decode

    def moved(self, values: Array) -> torch.Tensor:
        """On the device, in the dtype that is computed with."""
        if values.dtype == np.uint16 and self._dtype is torch.bfloat16:
            return torch.from_numpy(values).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(to_f32(values)).to(self._device, self._dtype)

    @torch.inference_mode()
    def allocate(self, block_count: int) -> None:
        """Makes the KV cache and captures the graphs. Raises EngineError without the memory."""
        config = self.config
        # One block more: padding rows of a graph write there.
        shape = (block_count + 1, BLOCK_TOKEN_COUNT, config.kv_head_count, config.head_dim)
        try:
            self._cache = [
                (self._zeros(shape), self._zeros(shape)) for _ in range(config.layer_count)
            ]
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise EngineError(
                f"There is no memory for {block_count} KV blocks of {self.block_bytes} bytes; "
                "lower INFERENCE_KV_CACHE_BYTES."
            ) from error
        self.block_count = block_count
        width = min(-(-config.context // BLOCK_TOKEN_COUNT), block_count)
        tables = config.rotations(width * BLOCK_TOKEN_COUNT)
        self._cos, self._sin = (torch.from_numpy(t).to(self._device) for t in tables)
        self._graphs = DecodeGraphs(
            self._forward_decode,
            batch_max=self._graph_batch_max,
            width=width,
            scratch_block=block_count,
            device=self._device,
            # The reference reads lengths back from the device, which no graph can hold.
            captured=self._decode is not reference,
        )

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def step(self, step: Step) -> StepResult:
        """Computes the rows into the cache."""
        if size := self._graphs.size_for(step):
            return self._result(step, self._graphs.run(step, size), step.logit_rows)
        output = self._forward(self._rows(step), self._prefill, self._int(step.logit_rows))
        return self._result(step, output, np.arange(step.logit_rows.size, dtype=np.int32))

    def _result(self, step: Step, output: Output, rows: Int32s) -> StepResult:
        """Greedy ids and soundness come to the host now, logits when they are asked for."""
        greedy = output.greedy_token_ids.cpu().numpy().astype(np.int32)[rows]
        finite = output.finite[: step.token_ids.size].cpu().numpy()

        def logits() -> Logits:
            chosen = output.logits[torch.from_numpy(rows).to(self._device)]
            return np.asarray(chosen.cpu().numpy(), np.float32)

        return StepResult(logits, greedy, np.logical_and.reduceat(finite, step.chunk_starts[:-1]))

    def _forward_decode(self, inputs: torch.Tensor) -> Output:
        """One row of each sequence; `inputs` as in graphs.py."""
        count = inputs.shape[0]
        starts = torch.arange(count + 1, dtype=torch.int32, device=self._device)
        tables, lengths = inputs[:, FIRST_TABLE:], inputs[:, LENGTH]
        total = int(lengths.sum()) if self._decode is reference else 0
        longest = tables.shape[1] * BLOCK_TOKEN_COUNT
        positions = inputs[:, POSITION].long()
        block = tables.gather(1, (positions // BLOCK_TOKEN_COUNT)[:, None])[:, 0].long()
        slots = block * BLOCK_TOKEN_COUNT + positions % BLOCK_TOKEN_COUNT
        paged = Paged(starts, lengths, tables, 1, longest, total)
        return self._forward(_Rows(inputs[:, TOKEN], positions, slots, paged), self._decode, None)

    def _rows(self, step: Step) -> _Rows:
        counts = np.diff(step.chunk_starts)
        first = np.repeat(step.chunk_begins - step.chunk_starts[:-1], counts)
        positions = np.arange(step.token_ids.size) + first
        chunk = np.repeat(np.arange(counts.size), counts)
        blocks = step.block_tables[chunk, positions // BLOCK_TOKEN_COUNT].astype(np.int64)
        lengths = (step.chunk_begins + counts).astype(np.int32)
        paged = Paged(
            self._int(step.chunk_starts),
            self._int(lengths),
            self._int(step.block_tables),
            int(counts.max()),
            int(lengths.max()),
            int(lengths.sum()),
        )
        slots = blocks * BLOCK_TOKEN_COUNT + positions % BLOCK_TOKEN_COUNT
        return _Rows(self._int(step.token_ids), self._int(positions), self._int(slots), paged)

    def _int(self, values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)

    def _forward(self, at: _Rows, attention: Attention, wanted: torch.Tensor | None) -> Output:
        """The decoder; logits of the rows `wanted`, or of all."""
        config = self.config
        rows = embedding(at.token_ids, self._embedding)
        rotation = self._cos[at.positions][:, None], self._sin[at.positions][:, None]
        for layer, (keys, values) in zip(self._layers, self._cache, strict=True):
            query, key, value = layer.heads(rows, rotation)
            keys.flatten(0, 1).index_copy_(0, at.slots, key)
            values.flatten(0, 1).index_copy_(0, at.slots, value)
            rows = layer.rest(rows, attention(query, keys, values, at.paged, layer.window))
        last = rows if wanted is None else rows[wanted]
        logits = linear(_rms_norm(last, self._norm, config.norm_eps), self._head).float()
        return Output(logits, logits.argmax(-1), rows.isfinite().all(-1))

    @torch.inference_mode()
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole blocks, in all layers."""
        for tensor in (half for pair in self._cache for half in pair):
            tensor[list(targets)] = tensor[list(sources)]

    @torch.inference_mode()
    def wipe(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks, and the one that padding wrote to."""
        for tensor in (half for pair in self._cache for half in pair):
            tensor[[*blocks, self.block_count]] = 0

    def close(self) -> None:
        """Gives the memory back."""
        self._layers, self._cache, self._graphs = [], [], None  # type: ignore[assignment]
        if self._device != "cpu":
            torch.cuda.empty_cache()


def _device_name(device: str) -> str:
    return device if device == "cpu" else torch.cuda.get_device_name(device)


class _Layer:
    def __init__(self, layer: LayerWeights, backend: CudaBackend) -> None:
        moved = backend.moved
        self._config: ModelConfig = backend.config
        self.window = layer.window
        self._attention_norm, self._mlp_norm = moved(layer.attention_norm), moved(layer.mlp_norm)
        self._query_norm = self._key_norm = None
        if layer.query_norm is not None and layer.key_norm is not None:
            self._query_norm, self._key_norm = moved(layer.query_norm), moved(layer.key_norm)

        def both(matrix: Matrix) -> tuple[torch.Tensor, torch.Tensor | None]:
            return moved(matrix.values), None if matrix.bias is None else moved(matrix.bias)

        self._qkv, self._out = both(layer.qkv), both(layer.out)
        self._gate_up, self._down = both(layer.gate_up), both(layer.down)

    def heads(
        self, rows: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value, each [rows, its heads, head_dim]; the first two are rotated."""
        config = self._config
        sizes = [config.head_count, config.kv_head_count, config.kv_head_count]
        qkv = linear(_rms_norm(rows, self._attention_norm, config.norm_eps), *self._qkv)
        query, key, value = torch.split(qkv.view(-1, sum(sizes), config.head_dim), sizes, 1)
        if self._query_norm is not None and self._key_norm is not None:
            query = _rms_norm(query, self._query_norm, config.norm_eps)
            key = _rms_norm(key, self._key_norm, config.norm_eps)
        return _rotate(query, *rotation), _rotate(key, *rotation), value

    def rest(self, rows: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Hidden states behind the layer."""
        rows = rows + linear(mixed.flatten(1), *self._out)
        normed = _rms_norm(rows, self._mlp_norm, self._config.norm_eps)
        gate, up = linear(normed, *self._gate_up).chunk(2, -1)
        return rows + linear(silu(gate) * up, *self._down)


def _rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32, as the checkpoints were trained; the result in the dtype of `rows`."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(rows.dtype) * weight


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the half-split layout, in float32; contiguous."""
    first, second = heads.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(heads.dtype)
