"""The engine without threads: requests in, events out, one step at a time.

    add, cancel ──> step: schedule → run → sample → emit ──> events

Whatever fails, fails for the requests that it concerns; the others go on.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import Protocol

import structlog

from inference_svc.engine.protocol import (
    BLOCK_TOKEN_COUNT,
    EngineError,
    EngineLoad,
    Finish,
    FinishReason,
    TokenLogprobs,
)
from inference_svc.engine.torch.forecast import Rates
from inference_svc.engine.torch.metrics import EngineMetrics
from inference_svc.engine.torch.model_runner import Computed, ModelRunner
from inference_svc.engine.torch.plan import Chunk, Plan
from inference_svc.engine.torch.sampler import Outcome, SamplingRequest, sample_batch
from inference_svc.engine.torch.scheduler import Proposer
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.torch.transcript import DIGIT_COUNT, Limits, Transcript

log = structlog.get_logger()


class Drafter(Proposer, Protocol):
    """A proposer that is told what became of its guesses; see `speculation`."""

    def report(self, sequence: Sequence, drafted_count: int, accepted_count: int) -> None:
        """So many of the guesses that were tried stand."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""

    def close(self) -> None:
        """Gives memory back."""


@dataclass(slots=True)
class Event:
    """What one step did for one sequence.

    Attributes:
        cached_count, prefilled_count: of the prompt, as in `GeneratedCounts`.
        text: text that became final with the tokens.
        finish, error: how it ended; both None while it goes on.
    """

    sequence: Sequence
    cached_count: int
    prefilled_count: int
    token_ids: Row[int] = ()
    text: str = ""
    logprobs: Row[TokenLogprobs] = ()
    finish: Finish | None = None
    error: EngineError | None = None

    @property
    def continues(self) -> bool:
        """More tokens of an answer whose first ones were told: nobody waits for just these."""
        before = self.sequence.answer.token_count - len(self.token_ids)
        begun = before > len(self.sequence.request.emitted_token_ids)
        return begun and self.finish is None and self.error is None


_NOTHING = Outcome()


class EngineCore:
    """One thread calls it.

    Args:
        limits: what the scheduler may use; its `block_count` is the back end's.
        queue_depth_max: only told on, in `load`.
        drafter: None: no speculation.
        write_transcript: takes each line of a transcript; None: there is none.
        clock: seconds that never go back.

    Attributes:
        metrics: what it counts.
        rates: how fast it is.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits,
        *,
        queue_depth_max: int,
        metrics: EngineMetrics,
        clock: Callable[[], float],
        drafter: Drafter | None = None,
        write_transcript: Callable[[str], object] | None = None,
    ) -> None:
        self._runner, self.metrics, self._drafter = runner, metrics, drafter
        self._queue_depth_max, self._clock = queue_depth_max, clock
        self._scheduler = limits.make(drafter)
        self._blocks = self._scheduler.blocks
        self._transcript = Transcript(write_transcript, limits) if write_transcript else None
        self._computed_s = self._computing_s = 0.0  # when, and how long, the model last computed
        self.rates = Rates(limits.step_token_count_max)

    @property
    def busy(self) -> bool:
        """There is something to compute."""
        return self._scheduler.busy

    def add(self, sequence: Sequence) -> None:
        """Takes a request that fits into the blocks alone."""
        self._scheduler.add(sequence)
        if self._transcript:
            self._transcript.add(sequence)

    def cancel(self, sequence: Sequence) -> Event | None:
        """Frees what a request holds, at once; None when it is not here any more."""
        if sequence not in self._scheduler:
            return None
        if self._transcript:
            self._transcript.remove(sequence)
        return self._drop(sequence, "cancelled", finish=Finish(FinishReason.CANCELLED))

    def cancel_all(self) -> list[Event]:
        """Frees what all requests hold."""
        events = [self.cancel(sequence) for sequence in list(self._scheduler)]
        return [event for event in events if event is not None]

    def load(self) -> EngineLoad:
        """The load now."""
        return EngineLoad(
            waiting_count=self._scheduler.waiting_count,
            running_count=self._scheduler.running_count,
            queue_depth_max=self._queue_depth_max,
            kv_block_count=self._blocks.block_count,
            kv_block_free_count=self._blocks.free_count,
            cached_prefix_hashes=self._blocks.recent_prefixes(),
        )

    def step(self) -> list[Event]:
        """schedule → run → sample → emit."""
        begin_s = round(self._clock(), DIGIT_COUNT)
        plan = self._scheduler.plan(begin_s)
        chunks = list(plan.chunks.values())
        if not chunks:
            return []
        try:
            outcomes = self._sample(chunks, self._run(plan, chunks))
        except Exception as error:  # its requests fail, the engine goes on
            log.error("engine_step_failed", error=repr(error))
            outcomes = [Outcome(error=f"The step failed: {error!r}.")] * len(chunks)
        events = [
            self._emit(chunk, outcome) for chunk, outcome in zip(chunks, outcomes, strict=True)
        ]
        self._note(plan, events, begin_s)
        return events

    # ---- run

    def _run(self, plan: Plan, chunks: list[Chunk]) -> Computed:
        begin_s = self._clock()
        if plan.copies:
            self._runner.backend.copy_blocks(list(plan.copies.values()), list(plan.copies))
        computed = self._runner.step(chunks)
        self._computed_s = self._clock()
        self._computing_s = self._computed_s - begin_s
        return computed

    # ---- sample

    def _sample(self, chunks: list[Chunk], computed: Computed) -> list[Outcome]:
        """What follows each chunk; nothing where it does not end at the newest token."""
        starts, greedy = computed.logit_starts, computed.greedy_token_ids.tolist()
        outcomes, asks, asking = [], [], []
        for index, (chunk, sound) in enumerate(zip(chunks, computed.sound.tolist(), strict=True)):
            row = starts[index]
            outcome = _NOTHING
            if not sound:
                outcome = Outcome(error="The model computed no numbers (NaN); send it again.")
            elif row == starts[index + 1]:
                pass
            elif chunk.sequence.is_plain:
                outcome = Outcome(_agreed(chunk.draft_token_ids, greedy, row))
            else:
                asks.append(SamplingRequest(chunk.sequence, row, chunk.draft_token_ids))
                asking.append(index)
            outcomes.append(outcome)
        if asks:
            drawn = sample_batch(computed.logits, computed.greedy_token_ids, asks)
            for index, outcome in zip(asking, drawn, strict=True):
                outcomes[index] = outcome
        return outcomes

    # ---- emit

    def _emit(self, chunk: Chunk, outcome: Outcome) -> Event:
        """The tokens go to the answer, as far as it goes on, and to the scheduler."""
        if outcome.error:
            return self._fail(chunk, outcome.error)
        sequence, answer = chunk.sequence, chunk.sequence.answer
        token_ids, logprobs, text = outcome.token_ids, outcome.logprobs, ""
        for count, token_id in enumerate(token_ids, 1):
            text += answer.push(token_id)
            if answer.finish is not None:
                token_ids, logprobs = token_ids[:count], logprobs[:count]
                break
        self._scheduler.record(chunk, token_ids)
        if chunk.draft_token_ids and self._drafter is not None:
            drafted, accepted = len(chunk.draft_token_ids), len(outcome.token_ids) - 1
            self._drafter.report(sequence, drafted, accepted)
            self.metrics.verified(drafted, accepted)
        if token_ids:
            self.metrics.tokens(sequence, len(token_ids), self._computed_s)
        event = Event(
            sequence,
            sequence.cached_count or 0,
            sequence.prefilled_count,
            token_ids,
            text,
            logprobs,
            answer.finish,
        )
        if answer.finish is not None:
            self._end(sequence, answer.finish.reason.value)
        return event

    def _fail(self, chunk: Chunk, message: str) -> Event:
        """Gives one request up; what it was writing into the cache must reach nobody else."""
        written = chunk.sequence.blocks[chunk.begin // BLOCK_TOKEN_COUNT :]
        self._runner.backend.wipe(self._blocks.owned_alone(written))
        return self._drop(chunk.sequence, "error", error=EngineError(message))

    def _drop(
        self,
        sequence: Sequence,
        reason: str,
        *,
        finish: Finish | None = None,
        error: EngineError | None = None,
    ) -> Event:
        """Ends a request from outside of its answer."""
        counts = sequence.cached_count or 0, sequence.prefilled_count
        self._end(sequence, reason)
        return Event(sequence, *counts, finish=finish, error=error)

    def _end(self, sequence: Sequence, reason: str) -> None:
        self._scheduler.remove(sequence)
        if self._drafter is not None:
            self._drafter.forget(sequence)
        now_s = self._clock()
        self.metrics.ended(sequence, reason, now_s)
        if sequence.admitted_s is not None:
            self.rates.ended(now_s - sequence.admitted_s)

    def _note(self, plan: Plan, events: Iterable[Event], begin_s: float) -> None:
        """Measures the step, and writes it down."""
        token_count = plan.token_count
        self.metrics.planned(token_count, len(plan.copies))
        for sequence in plan.admitted:
            if sequence.admitted_s == begin_s:  # for the first time
                cached_count = sequence.cached_count or 0
                self.metrics.admitted(sequence.prompt_count, cached_count)
                self.rates.admitted(sequence.prompt_count, cached_count)
        if self._transcript:
            tokens = {event.sequence: event.token_ids for event in events}
            ended = [event.sequence for event in events if event.finish or event.error]
            self._transcript.step(plan, begin_s, tokens, ended, self._scheduler)
        whole_s = self._clock() - begin_s
        self.rates.step(token_count, whole_s)
        self.metrics.stepped(self._scheduler, whole_s, self._computing_s)


def _agreed(drafts: Row[int], greedy: list[int], row: int) -> list[int]:
    """The drafts that are what is drawn anyway, and the token behind them."""
    count = 0
    while count < len(drafts) and drafts[count] == greedy[row + count]:
        count += 1
    return greedy[row : row + count + 1]
