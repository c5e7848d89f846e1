"""CUDA graphs of decode steps: one for each of a few batch sizes; other batches are padded.

Launching the operations of a step one by one costs a GPU more than computing them when a step has
few rows. A graph is one launch, but of fixed shapes and addresses: its inputs are copied into one
array, and its outputs are read where it leaves them. The largest is captured first, so that the
smaller ones find room in the memory pool that it made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from inference_svc.engine.torch.backend import Step

# Columns of the input array before the block table.
TOKEN, POSITION, LENGTH, FIRST_TABLE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Output:
    """Of the rows of a step, on the device.

    Attributes:
        logits: [rows, vocabulary], float32.
        greedy_token_ids: [rows].
        finite: [rows]; whether the row's hidden state is finite.
    """

    logits: torch.Tensor
    greedy_token_ids: torch.Tensor
    finite: torch.Tensor


Forward = Callable[[torch.Tensor], Output]  # of an input array [rows, FIRST_TABLE + width]


def batch_sizes(batch_max: int) -> tuple[int, ...]:
    """Powers of two up to at least `batch_max`: less than half of a graph is padding."""
    return tuple(2**power for power in range((batch_max - 1).bit_length() + 1))


class DecodeGraphs:
    """Runs steps in which every sequence has one row."""

    def __init__(
        self,
        forward: Forward,
        *,
        batch_max: int,
        width: int,
        scratch_block: int,
        device: str,
        captured: bool,
    ) -> None:
        """Captures the graphs.

        Args:
            batch_max: rows of the largest graph, at least.
            width: blocks of the longest sequence.
            scratch_block: where padding rows write their keys.
            captured: else the same arrays go to `forward` at each step.
        """
        self._forward, self._scratch = forward, scratch_block
        self._sizes = batch_sizes(batch_max)
        pinned = device != "cpu"
        shape = (self._sizes[-1], FIRST_TABLE + width)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self._array = self._host.numpy()
        self._input = torch.zeros(shape, dtype=torch.int32, device=device)
        self._fill_padding(0, shape[0])
        self._input.copy_(self._host)
        self._graphs = dict(self._captured()) if captured else {}

    def size_for(self, step: Step) -> int:
        """The rows of the graph that takes this step; 0: none does."""
        rows = step.token_ids.size
        if rows != step.chunk_begins.size:
            return 0
        return next((size for size in self._sizes if size >= rows), 0)

    def run(self, step: Step, size: int) -> Output:
        """Computes a step that `size_for` said fits; rows beyond those of the step are padding."""
        rows, width = step.block_tables.shape
        array = self._array
        array[:rows, TOKEN], array[:rows, POSITION] = step.token_ids, step.chunk_begins
        array[:rows, LENGTH] = step.chunk_begins + 1
        array[:rows, FIRST_TABLE : FIRST_TABLE + width] = step.block_tables
        self._fill_padding(rows, size)
        self._input[:size].copy_(self._host[:size], non_blocking=True)
        if size not in self._graphs:
            return self._forward(self._input[:size])
        graph, output = self._graphs[size]
        graph.replay()
        return output

    def _fill_padding(self, begin: int, end: int) -> None:
        """A sequence of one token in the block that nobody reads."""
        self._array[begin:end, TOKEN], self._array[begin:end, POSITION] = 0, 0
        self._array[begin:end, LENGTH] = 1
        self._array[begin:end, FIRST_TABLE] = self._scratch

    def _captured(self) -> Iterator[tuple[int, tuple[torch.cuda.CUDAGraph, Output]]]:
        pool = None
        for size in reversed(self._sizes):
            inputs = self._input[:size]
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compiles and allocates what must not be captured
                self._forward(inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                output = self._forward(inputs)
            pool = pool or graph.pool()
            yield size, (graph, output)
