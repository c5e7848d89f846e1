"""Speculative decoding: cheap guesses of the next tokens, which one step of the model then checks.

    propose ──drafts──> scheduler → step → sampler: how many stand ──report──> Pace

(Leviathan et al., ICML 2023; here the token of a position is a function of its logits and of
(seed, position), so a guess stands exactly when it is the token that is drawn anyway.) A step with
drafts costs a little more than one without, which pays while enough of them stand: each sequence
drafts as many as it may hope for, and stops for a while when too few do.
"""

from collections.abc import Sequence as Row
from typing import Protocol

import structlog

from inference_svc.engine.protocol import EngineError
from inference_svc.engine.torch.constrained import Constraint
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.model_folder import ModelFolder

log = structlog.get_logger()

# A drafted token costs 6 to 8 % of a step with the kernels (9 rows against 1; decision 0010), up to
# 17 % elsewhere: about this share of the drafts must stand.
BREAK_EVEN_RATE = 0.15
FIRST_LENGTH = 3
FIRST_RATE = 0.5
# How fast the rate follows the last drafts, and for how many tokens a sequence then rests.
RATE_STEP = 0.2
REST_TOKEN_COUNT_MIN, REST_TOKEN_COUNT_MAX = 32, 1024
# Tokens that a grammar forces always stand; only the step's budget bounds them.
FORCED_TOKEN_COUNT_MAX = 16


class Source(Protocol):
    """Guesses tokens; is right or wrong, and need not know."""

    def guess(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """At most so many (at least 1) tokens that may follow each sequence."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended; it may never have been asked for."""

    def close(self) -> None:
        """Gives memory back."""


class Pace:
    """How many tokens to draft for one sequence, by what became of its last drafts.

    Attributes:
        length: tokens to draft next.
        rate: share of drafted tokens that stood, the last ones counting most.
    """

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self.length = min(FIRST_LENGTH, length_max)
        self.rate = FIRST_RATE
        self._rest = REST_TOKEN_COUNT_MIN
        self._rests_until = 0

    def room(self, token_count: int) -> int:
        """Tokens to draft behind `token_count`: 0 while it rests."""
        return self.length if token_count >= self._rests_until else 0

    def report(self, token_count: int, drafted: int, accepted: int) -> None:
        """Of `drafted` tokens behind `token_count`, `accepted` stood."""
        self.rate += (accepted / drafted - self.rate) * RATE_STEP
        if accepted == drafted:
            self.length = min(self._length_max, max(self.length, 2 * drafted))
        else:
            self.length = max(1, min(self.length, accepted + 1))
        if self.rate >= BREAK_EVEN_RATE:
            self._rest = REST_TOKEN_COUNT_MIN if self.rate >= FIRST_RATE else self._rest
            return
        self._rests_until = token_count + self._rest
        self._rest = min(2 * self._rest, REST_TOKEN_COUNT_MAX)
        # On probation: a few failures end it again.
        self.rate, self.length = 2 * BREAK_EVEN_RATE, 1


class _Memory:
    """What is remembered of a sequence, in its `speculation`."""

    def __init__(self, length_max: int) -> None:
        self.pace = Pace(length_max)
        self.is_forced = False  # the last draft was the grammar's


class Speculator:
    """Drafts for whoever it pays for; the engine's `Drafter`.

    Args:
        source: guesses.
        length_max: tokens drafted at once for a sequence, at least 1.
        batch_max: when more sequences decode, nobody drafts: the model is busy enough.
    """

    def __init__(self, source: Source, *, length_max: int, batch_max: int) -> None:
        self._source = source
        self._length_max, self._batch_max = length_max, batch_max
        self._is_broken = False

    def propose(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """For each decoding sequence at most so many token ids, possibly none."""
        drafts: list[list[int]] = [[] for _ in asks]
        if len(asks) > self._batch_max:
            return drafts
        guessed: list[tuple[Sequence, int]] = []
        places = []
        for place, (sequence, count_max) in enumerate(asks):
            if count_max <= 0:
                continue
            memory = self._memory(sequence)
            if sequence.constraint is not None:
                drafts[place] = sequence.constraint.forced()[
                    : min(count_max, FORCED_TOKEN_COUNT_MAX)
                ]
            memory.is_forced = bool(drafts[place])
            count = min(count_max, memory.pace.room(len(sequence.token_ids)))
            if count and not memory.is_forced:
                guessed.append((sequence, count))
                places.append(place)
        if guessed:
            guesses = self._guesses(guessed)
            for place, (sequence, _), guess in zip(places, guessed, guesses, strict=True):
                drafts[place] = _fitting(guess, sequence.constraint)
        return drafts

    def _guesses(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """Of the source; one that fails is not asked again, since nobody needs it."""
        if self._is_broken:
            return [[] for _ in asks]
        try:
            return self._source.guess(asks)
        except Exception as error:
            log.error("speculation_failed", error=repr(error))
            self._is_broken = True
            return [[] for _ in asks]

    def report(self, sequence: Sequence, drafted_count: int, accepted_count: int) -> None:
        """So many of the guesses that were tried stand."""
        memory = self._memory(sequence)
        if not memory.is_forced:
            memory.pace.report(len(sequence.token_ids), drafted_count, accepted_count)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        sequence.speculation = None
        self._source.forget(sequence)

    def close(self) -> None:
        """Gives memory back."""
        self._source.close()

    def _memory(self, sequence: Sequence) -> _Memory:
        memory = sequence.speculation
        if not isinstance(memory, _Memory):
            memory = sequence.speculation = _Memory(self._length_max)
        return memory


def _fitting(guess: list[int], constraint: Constraint | None) -> list[int]:
    """The beginning of a guess that the grammar lets through."""
    if constraint is None or not guess:
        return guess
    return guess[: constraint.fitting_count(guess)]


def open_drafter(
    kind: str,
    model: ModelFolder,
    *,
    draft_model: str = "",
    token_count_max: int = 8,
    batch_max: int = 8,
    thread_count: int = 1,
) -> Speculator | None:
    """The drafter of the settings; None for "off".

    Args:
        kind: "off", "ngram" (prompt lookup) or "draft" (a smaller model).
        draft_model: folder or hub id of the smaller model; its tokenizer must be `model`'s.
        token_count_max: tokens drafted at once for a sequence.
        batch_max: sequences that may decode together.
        thread_count: threads of the smaller model.

    Raises:
        EngineError: the smaller model cannot be used; the text says why.
    """
    if kind == "off":
        return None
    source: Source
    if kind == "ngram":
        from inference_svc.engine.torch.lookup import PromptLookup

        source = PromptLookup()
    elif kind == "draft":
        from inference_svc.engine.torch.draft_model import open_draft_model

        source = open_draft_model(
            model, draft_model, sequence_count_max=batch_max, thread_count=thread_count
        )
    else:
        raise EngineError(f"INFERENCE_SPECULATION={kind} is unknown; choose off, ngram or draft.")
    return Speculator(source, length_max=token_count_max, batch_max=batch_max)
