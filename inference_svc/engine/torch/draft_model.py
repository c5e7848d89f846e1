"""A smaller model that guesses for a larger one: its own weights, its own KV cache.

It draws its guesses with the sequence's own (seed, position), so that where both models weigh the
tokens alike they draw the same one (`race.py`): a sampled answer is drafted nearly as well as a
greedy one.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineError
from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.block_manager import BlockManager
from inference_svc.engine.torch.model_runner import Computed, ModelRunner
from inference_svc.engine.torch.sampler import guessed_token
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.model_folder import ModelFolder, open_model

# Of a prompt that it has not read it reads so many tokens a step: the large model does not wait
# long, and the sequence is drafted for once the prompt is read.
PREFILL_TOKEN_COUNT_MAX = 256


@dataclass(slots=True)
class _Shadow:
    """What the small model has computed of a sequence.

    Attributes:
        token_ids: the sequence's, then the guesses of the last call.
        known_count: how many of them were the sequence's.
        computed_count: tokens whose keys and values are in `blocks`.
    """

    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    known_count: int = 0
    computed_count: int = 0

    def follow(self, token_ids: Row[int]) -> None:
        """Takes the sequence's tokens; what was computed of other guesses counts no more."""
        limit = min(self.computed_count, len(token_ids) - 1)
        agreed = min(self.known_count, limit)
        while agreed < limit and self.token_ids[agreed] == token_ids[agreed]:
            agreed += 1
        self.computed_count, self.known_count = agreed, len(token_ids)
        del self.token_ids[agreed:]
        self.token_ids.extend(token_ids[agreed:])


@dataclass(frozen=True, slots=True)
class _Work:
    """A chunk of a shadow; the model runner's `Work`."""

    sequence: _Shadow
    begin: int
    end: int
    draft_token_ids: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        """Its last token's logits are wanted."""
        return self.end == len(self.sequence.token_ids)


class DraftModel:
    """A `Source` with a model.

    Args:
        backend: of the small model, with its blocks allocated.
        context_token_count_max: of the small model; beyond it nothing is guessed.
    """

    def __init__(self, backend: Backend, context_token_count_max: int) -> None:
        self._runner = ModelRunner(backend)
        self._blocks = BlockManager(backend.block_count)
        self._context = context_token_count_max
        self._shadows: OrderedDict[Sequence, _Shadow] = OrderedDict()  # the last used last

    def guess(self, asks: Row[tuple[Sequence, int]]) -> list[list[int]]:
        """Draws with the small model; all sequences together, one token at a time."""
        guesses: list[list[int]] = [[] for _ in asks]
        asked = {sequence for sequence, _ in asks}
        ready = []
        for place, (sequence, count) in enumerate(asks):
            shadow = self._shadow(sequence, count, asked)
            if shadow is not None:
                ready.append((place, shadow))
        while ready:
            computed = self._step([shadow for _, shadow in ready])
            going = []
            for row, (place, shadow) in enumerate(ready):
                sequence, count = asks[place]
                begin, end = computed.logit_starts[row : row + 2]
                if not computed.sound[row]:
                    self._runner.backend.wipe(shadow.blocks)
                    self.forget(sequence)
                    continue
                if begin == end:  # the prompt is not read yet
                    continue
                greedy = int(computed.greedy_token_ids[begin])
                position = sequence.position + len(guesses[place])
                token_id = guessed_token(
                    lambda: computed.logits[begin],  # noqa: B023  # called at once
                    greedy,
                    sequence.request.sampling,
                    position,
                )
                guesses[place].append(token_id)
                shadow.token_ids.append(token_id)
                if len(guesses[place]) < count:
                    going.append((place, shadow))
            ready = going
        return guesses

    def _step(self, shadows: list[_Shadow]) -> Computed:
        works = []
        for shadow in shadows:
            begin = shadow.computed_count
            shadow.computed_count = min(len(shadow.token_ids), begin + PREFILL_TOKEN_COUNT_MAX)
            works.append(_Work(shadow, begin, shadow.computed_count))
        return self._runner.step(works)

    def _shadow(self, sequence: Sequence, count: int, asked: set[Sequence]) -> _Shadow | None:
        """The sequence's shadow, up to date and with blocks for `count` guesses, or None."""
        length = len(sequence.token_ids) + count
        if length > self._context:
            return None
        shadow = self._shadows.setdefault(sequence, _Shadow())
        self._shadows.move_to_end(sequence)
        missing = -(-length // BLOCK_TOKEN_COUNT) - len(shadow.blocks)
        while (fresh := self._blocks.allocate(max(missing, 0))) is None:
            oldest = next((other for other in self._shadows if other not in asked), None)
            if oldest is None:
                return None
            self.forget(oldest)
        shadow.blocks.extend(fresh)
        shadow.follow(sequence.token_ids)
        return shadow

    def forget(self, sequence: Sequence) -> None:
        """Frees its blocks."""
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            self._blocks.release(shadow.blocks)

    def close(self) -> None:
        """Gives the model's memory back."""
        self._shadows.clear()
        self._runner.backend.close()


def open_draft_model(
    model: ModelFolder, draft_model: str, *, sequence_count_max: int, thread_count: int
) -> DraftModel:
    """Opens the model that guesses for `model`.

    Args:
        draft_model: folder or hub id.
        sequence_count_max: sequences of full length that its KV cache holds.

    Raises:
        EngineError: there is none, it has another tokenizer, or it cannot be served.
    """
    from inference_svc.engine.torch.backends import open_backend

    if not draft_model:
        raise EngineError(
            "INFERENCE_SPECULATION=draft needs a model: set INFERENCE_SPECULATION_MODEL."
        )
    small = open_model(draft_model)
    if small.vocabulary.digest != model.vocabulary.digest:
        raise EngineError(
            f"{small.id} cannot draft for {model.id}: its tokenizer.json is another one; choose a "
            "smaller model of the same family."
        )
    backend = open_backend(small, thread_count=thread_count)
    context = min(small.context_token_count_max, model.context_token_count_max)
    backend.allocate(sequence_count_max * -(-context // BLOCK_TOKEN_COUNT))
    return DraftModel(backend, small.context_token_count_max)
