"""Which tokens the next step computes. Pure: no torch, no clock, no thread.

Iteration-level batching (Orca, OSDI '22) with chunked prefill (Sarathi-Serve, OSDI '24): every
running decode first, then prefill of what runs, then of what waits, up to a token budget. When
blocks run out, the youngest gives its blocks back and is computed again later; nothing is lost.
"""

import heapq
from dataclasses import dataclass

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.block_manager import BlockManager
from inference_svc.engine.torch.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [begin, end) of a sequence, to compute in one step."""

    sequence: Sequence
    begin: int
    end: int

    @property
    def samples(self) -> bool:
        """The last position is the newest token: its logits give the next one."""
        return self.end == len(self.sequence.token_ids)


class Scheduler:
    """Owns the waiting and the running sequences and their blocks."""

    def __init__(
        self, blocks: BlockManager, *, step_token_count_max: int, running_count_max: int
    ) -> None:
        self._blocks = blocks
        self._budget, self._running_max = step_token_count_max, running_count_max
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []  # heap by rank
        self._running: list[Sequence] = []
        self.preempted_total = 0

    @property
    def waiting_count(self) -> int:
        """Sequences that wait, preempted ones included."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """There is something to do."""
        return bool(self._waiting or self._running)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._running or any(s is sequence for _, s in self._waiting)

    def sequences(self) -> list[Sequence]:
        """All of them, running and waiting."""
        return [*self._running, *(sequence for _, sequence in self._waiting)]

    def add(self, sequence: Sequence) -> None:
        """Takes a sequence that fits into the blocks alone."""
        heapq.heappush(self._waiting, (sequence.rank, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, wherever it stands, and frees its blocks."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)
        self._free(sequence)

    def plan(self) -> list[Chunk]:
        """The chunks of the next step; at most the token budget in all."""
        chunks: dict[Sequence, Chunk] = {}
        left = self._budget
        for sequence in sorted(self._running, key=lambda s: (not s.decoding, s.rank)):
            if left == 0:
                break
            if sequence not in self._running:  # preempted by one before it
                continue
            end = min(len(sequence.token_ids), sequence.computed_count + left)
            if not self._cover(sequence, end, chunks):
                continue
            chunks[sequence] = Chunk(sequence, sequence.computed_count, end)
            left = self._budget - sum(c.end - c.begin for c in chunks.values())
        while left > 0 and (newcomer := self._admit()) is not None:
            end = min(len(newcomer.token_ids), newcomer.computed_count + left)
            chunks[newcomer] = Chunk(newcomer, newcomer.computed_count, end)
            left -= end - newcomer.computed_count
        return list(chunks.values())

    def commit(self, chunk: Chunk) -> None:
        """The step has computed the chunk: its full blocks become findable."""
        sequence = chunk.sequence
        first_block = sequence.computed_count // BLOCK_TOKEN_COUNT
        sequence.computed_count = chunk.end
        sequence.prefilled_count = max(
            sequence.prefilled_count, min(chunk.end, sequence.prompt_count)
        )
        hashes = sequence.hashes(chunk.end)
        for index in range(first_block, len(hashes)):
            self._blocks.register(sequence.blocks[index], hashes[index])

    def _cover(self, sequence: Sequence, end: int, chunks: dict[Sequence, Chunk]) -> bool:
        """Gets blocks up to `end`; preempts the youngest until they are there."""
        missing = -(-end // BLOCK_TOKEN_COUNT) - len(sequence.blocks)
        while (fresh := self._blocks.allocate(max(missing, 0))) is None:
            youngest = max(self._running, key=lambda s: s.rank)
            self._preempt(youngest)
            chunks.pop(youngest, None)
            if youngest is sequence:
                return False
        sequence.blocks += fresh
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preempted_total += 1
        self._running.remove(sequence)
        self._free(sequence)
        self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self._blocks.release(sequence.blocks)
        sequence.blocks, sequence.computed_count = [], 0

    def _admit(self) -> Sequence | None:
        """Moves the first that waits to the running, when all its tokens have room now.

        One block for each running sequence stays free: else the newcomer would be preempted as
        soon as one of them grows.
        """
        if not self._waiting or len(self._running) >= self._running_max:
            return None
        sequence = self._waiting[0][1]
        count = len(sequence.token_ids)
        # The last token is always computed: its logits are needed.
        hashes = sequence.hashes(count - 1)
        hits = self._blocks.match(hashes)
        adopted = self._blocks.adopt(hashes[:hits])
        needed = -(-count // BLOCK_TOKEN_COUNT) - hits
        fresh = None
        if self._blocks.free_count >= needed + len(self._running):
            fresh = self._blocks.allocate(needed)
        if fresh is None:
            self._blocks.release(adopted)
            return None
        heapq.heappop(self._waiting)
        sequence.blocks = adopted + fresh
        sequence.computed_count = hits * BLOCK_TOKEN_COUNT
        if sequence.cached_count is None:
            sequence.cached_count = min(sequence.computed_count, sequence.prompt_count)
            sequence.prefilled_count = sequence.cached_count
        self._running.append(sequence)
        return sequence
