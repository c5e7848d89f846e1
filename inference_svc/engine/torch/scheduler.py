"""Which tokens the next step computes. Pure: no torch, no thread, and the clock is an argument.

Iteration-level batching (Orca, OSDI '22) with chunked prefill (Sarathi-Serve, OSDI '24): every
running decode first, then prefill of what runs, then of what waits, up to a token budget; what is
left of it goes to drafted tokens. When blocks run out, the youngest of the lowest class gives its
blocks back and is computed again later; nothing is lost. `waiting` says who runs next.

Answers of one turn to one prompt share its blocks: the first computes it, the others wait for that
and fork (vLLM's copy-on-write, SOSP '23); who writes a shared block first copies it.
"""

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Row
from typing import Protocol

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT
from inference_svc.engine.torch.block_manager import BlockManager
from inference_svc.engine.torch.plan import Chunk, Plan
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.waiting import (
    ANSWER_TOKEN_COST,
    PROMPT_TOKEN_COST,
    WaitingQueue,
)

# This share of all blocks stays free when one more is admitted: room for those that run to grow.
WATERMARK = 0.01


class Proposer(Protocol):
    """Guesses what comes next; see `speculation`."""

    def propose(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """For each decoding sequence at most so many token ids, possibly none."""


class Scheduler:
    """Owns the waiting and the running sequences and their blocks.

    Args:
        step_token_count_max: tokens of one step, drafted ones included.
        running_count_max: sequences that hold blocks; at most the token budget.
        wait_s_max: seconds after which lower priorities get their turn; see `waiting`.
        proposer: drafts tokens; None: nobody does.

    Attributes:
        blocks: the block manager.
        preempted_total: sequences whose blocks were taken.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        step_token_count_max: int,
        running_count_max: int,
        wait_s_max: float = 10.0,
        proposer: Proposer | None = None,
    ) -> None:
        # Every running sequence decodes in every step: the budget has room for all of them.
        self._budget = max(step_token_count_max, running_count_max)
        self._running_max = running_count_max
        self.blocks, self._proposer = blocks, proposer
        self._watermark = int(WATERMARK * blocks.block_count)
        self._waiting = WaitingQueue(wait_s_max)
        self._running: dict[Sequence, None] = {}  # in the order of admission
        self._leaders: dict[str, list[Sequence]] = {}  # running ones by group
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
        return sequence in self._running or sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Takes a sequence that fits into the blocks alone."""
        self._waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, wherever it stands, and frees its blocks."""
        if sequence in self._running:
            self._stop(sequence)
        else:
            self._waiting.remove(sequence)
        self._waiting.counters.leaves(sequence.tenant)

    def plan(self, now_s: float) -> Plan:
        """The next step: at most the token budget in all, every block it writes owned alone."""
        plan, prefilling = Plan(), []
        for sequence in tuple(self._running):
            if sequence not in self._running:  # preempted by one before it
                continue
            if not sequence.decoding:
                prefilling.append(sequence)
            elif self._grow(sequence, plan, now_s):
                end = len(sequence.token_ids)
                plan.chunks[sequence] = Chunk(sequence, end - 1, end)
        left = self._budget - len(plan.chunks)
        for sequence in prefilling:
            if left and sequence in self._running:
                left -= self._prefill(sequence, left, plan)
        while left and (newcomer := self._admit(now_s, plan)) is not None:
            left -= self._prefill(newcomer, left, plan)
        if left and self._proposer is not None:
            self._draft(self._proposer, plan, left)
        return plan

    def record(self, chunk: Chunk, token_ids: Row[int] = ()) -> None:
        """The chunk was computed, and `token_ids` follow it: accepted drafts and the next token.

        Rejected drafts need no undoing: their positions are computed again.
        """
        sequence = chunk.sequence
        full = sequence.computed_count // BLOCK_TOKEN_COUNT
        sequence.computed_count = end = chunk.end + max(len(token_ids) - 1, 0)
        sequence.token_ids.extend(token_ids)
        if sequence.prefilled_count < sequence.prompt_count:
            sequence.prefilled_count = max(
                sequence.prefilled_count, min(end, sequence.prompt_count)
            )
        self._waiting.counters.charge(sequence.tenant, ANSWER_TOKEN_COST * len(token_ids))
        if end // BLOCK_TOKEN_COUNT > full:
            hashes = sequence.hashes(end)
            for index in range(full, len(hashes)):
                self.blocks.register(sequence.blocks[index], hashes[index])

    # ---- who runs

    def _prefill(self, sequence: Sequence, left: int, plan: Plan) -> int:
        """Plans as much of it as `left` allows; returns how much."""
        begin = sequence.computed_count
        end = min(len(sequence.token_ids), begin + left)
        plan.chunks[sequence] = Chunk(sequence, begin, end)
        return end - begin

    def _grow(self, sequence: Sequence, plan: Plan, now_s: float) -> bool:
        """Gets the block of its newest token; preempts until it is there. False: itself was."""
        if len(sequence.blocks) * BLOCK_TOKEN_COUNT >= len(sequence.token_ids):
            return True
        while (fresh := self.blocks.allocate(1)) is None:
            last = max(self._running, key=lambda each: self._waiting.rank(each, now_s))
            self._preempt(last, plan)
            if last is sequence:
                return False
        sequence.blocks.extend(fresh)
        return True

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        self.preempted_total += 1
        plan.chunks.pop(sequence, None)
        plan.preempted.append(sequence)
        self._stop(sequence)
        sequence.preempted = True
        self._waiting.push(sequence)

    def _stop(self, sequence: Sequence) -> None:
        """Takes a running sequence's blocks."""
        del self._running[sequence]
        if group := sequence.request.group:
            self._leaders[group].remove(sequence)
            if not self._leaders[group]:
                del self._leaders[group]
        self.blocks.release(sequence.blocks)
        sequence.blocks, sequence.computed_count = array("i"), 0

    def _admit(self, now_s: float, plan: Plan) -> Sequence | None:
        """Lets the next of those that wait run, when all its tokens have room now."""
        if not self._waiting or len(self._running) >= self._running_max:
            return None
        sequence = self._waiting.first(now_s, self._is_ready)
        if sequence is None:
            return None
        leader = self._leader(sequence)
        if not (self._fork(sequence, leader, plan) if leader else self._allocate(sequence)):
            return None
        self._waiting.admit(sequence)
        self._running[sequence] = None
        if group := sequence.request.group:
            self._leaders.setdefault(group, []).append(sequence)
        if sequence.cached_count is None:
            found = min(sequence.computed_count, sequence.prompt_count)
            # What the leader computed is no cache hit of the turn: it is paid for once.
            sequence.cached_count = leader.cached_count if leader else found
            sequence.prefilled_count = found
            cost = PROMPT_TOKEN_COST * (sequence.prompt_count - found)
            self._waiting.counters.charge(sequence.tenant, cost)
            sequence.admitted_s = now_s
        sequence.preempted = False
        plan.admitted.append(sequence)
        return sequence

    def _take(self, count: int) -> list[int] | None:
        """Blocks that nobody uses; None when too few would stay free.

        One stays for each running sequence: else somebody would be preempted as soon as it grows.
        """
        reserve = max(len(self._running), self._watermark) if self._running else 0
        if self.blocks.free_count < count + reserve:
            return None
        return self.blocks.allocate(count)

    def _allocate(self, sequence: Sequence) -> bool:
        """Adopts the longest cached prefix, and takes blocks for the rest."""
        count = len(sequence.token_ids)
        # The last token is always computed: its logits are needed.
        hashes = sequence.hashes(count - 1)
        hits = self.blocks.match(hashes)
        adopted = self.blocks.adopt(hashes[:hits])
        fresh = self._take(-(-count // BLOCK_TOKEN_COUNT) - hits)
        if fresh is None:
            self.blocks.release(adopted)
            return False
        sequence.blocks = array("i", adopted + fresh)
        sequence.computed_count = hits * BLOCK_TOKEN_COUNT
        return True

    # ---- answers that share a prompt

    def _leader(self, sequence: Sequence) -> Sequence | None:
        """A running answer to the same prompt, the earliest; None when there is none."""
        for leader in self._leaders.get(sequence.request.group, ()):
            if leader.same_prompt(sequence):
                return leader
        return None

    def _is_ready(self, sequence: Sequence) -> bool:
        """Nobody is about to compute its prompt."""
        if sequence.request.group not in self._leaders:
            return True
        leader = self._leader(sequence)
        return leader is None or leader.computed_count >= leader.prompt_count

    def _fork(self, sequence: Sequence, leader: Sequence, plan: Plan) -> bool:
        """Shares the blocks of the leader's prompt; copies the one that it will write."""
        count = len(sequence.token_ids)
        computed = min(sequence.prompt_count, count - 1)
        shared = list(leader.blocks[: -(-computed // BLOCK_TOKEN_COUNT)])
        written = computed // BLOCK_TOKEN_COUNT  # the block of the next token
        copied = shared[written:]  # one block, or none when it begins a block
        fresh = self._take(-(-count // BLOCK_TOKEN_COUNT) - written)
        if fresh is None:
            return False
        self.blocks.share(shared[:written])
        for source, target in zip(copied, fresh, strict=False):
            # A leader that is new itself has its own copy still to come: from the same source.
            plan.copies[target] = plan.copies.get(source, source)
        sequence.blocks = array("i", shared[:written] + fresh)
        sequence.computed_count = computed
        return True

    # ---- drafts

    def _draft(self, proposer: Proposer, plan: Plan, left: int) -> None:
        """Lets decodes carry guesses, as long as budget and free blocks last."""
        chunks = [chunk for chunk in plan.chunks.values() if chunk.sequence.decoding]
        if not chunks:
            return
        asks = []
        for chunk in chunks:
            request = chunk.sequence.request
            # The last token of an answer is never a draft: the one behind it would be too many.
            room = request.token_count_max - len(chunk.sequence.token_ids) - 1
            asks.append((chunk.sequence, max(0, min(room, left))))
        for chunk, drafts in zip(chunks, proposer.propose(asks), strict=True):
            if wanted := min(left, len(drafts)):
                chunk.draft_token_ids = drafts[: min(wanted, self._draft_room(chunk, wanted))]
                left -= len(chunk.draft_token_ids)

    def _draft_room(self, chunk: Chunk, wanted: int) -> int:
        """How many drafts have blocks: free ones may be taken, nobody's, and not the reserve."""
        blocks = chunk.sequence.blocks
        missing = -(-(chunk.end + wanted) // BLOCK_TOKEN_COUNT) - len(blocks)
        if missing > 0 and (fresh := self._take(missing)) is not None:
            blocks.extend(fresh)
        return len(blocks) * BLOCK_TOKEN_COUNT - chunk.end
