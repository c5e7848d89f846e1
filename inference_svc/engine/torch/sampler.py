"""Draws tokens from logits, and says how many drafted tokens of a sequence stand.

The token at a position is a function of its logits, of the tokens before it and of (seed, position)
(`race.py`): the same alone, batched, preempted, continued on another node, or speculated. A draft
is therefore accepted exactly where it equals the token that is drawn anyway; nothing else is
needed for speculation to leave both the answers and their distribution as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inference_svc.engine.protocol import Sampling, TokenLogprobs
from inference_svc.engine.torch.backend import Int32s
from inference_svc.engine.torch.constrained import Constraint, GrammarFailedError
from inference_svc.engine.torch.kept import narrow, narrows
from inference_svc.engine.torch.penalties import History, adjust, adjusts, remembers
from inference_svc.engine.torch.race import Ids, Key, keys_of, race
from inference_svc.engine.torch.sequence import Sequence as EngineSequence

Logits = npt.NDArray[np.float32]

# Below it the likeliest token is taken (vLLM's _SAMPLING_EPS): logits / temperature would overflow.
TEMPERATURE_MIN = 1e-5
# Logits that are worked on together, so that they stay in the cache.
SLAB_SIZE = 1 << 19
# When a grammar allows fewer of the tokens than this, only those are worked on.
FEW_SHARE = 1 / 8
NOT_NUMBERS = "The model gave logits that are no numbers; send the request again."


@dataclass(slots=True)
class SamplingRequest:
    """A sequence whose next token is wanted.

    Attributes:
        sequence: with `draws` None at first; what is remembered of it is kept there.
        first_row: rows [first_row, first_row + 1 + drafts) of the logits are its: behind its last
            token, then behind each drafted one.
        draft_token_ids: tokens that may come next, not part of the sequence yet.
    """

    sequence: EngineSequence
    first_row: int
    draft_token_ids: Sequence[int] = ()


@dataclass(slots=True)
class Outcome:
    """What came of an ask.

    Attributes:
        token_ids: accepted drafts, then the token behind them: 1 to 1 + drafts, none on an error.
        logprobs: one for each token, or none when they were not asked for.
        error: not empty: this sequence cannot go on, and why.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str = ""


class Draws:
    """What a sequence's draws need besides its logits."""

    def __init__(self, sequence: EngineSequence) -> None:
        request = sequence.request
        self.sampling: Sampling = request.sampling
        self.constraint: Constraint | None = sequence.constraint
        self.is_greedy = self.sampling.temperature < TEMPERATURE_MIN
        self.adjusts = adjusts(self.sampling)
        self.history = History(request.prompt_token_ids) if remembers(self.sampling) else None

    def is_free(self, draft: Sequence[int]) -> bool:
        """Whether the rows of an ask can be drawn together with others: each needs only itself."""
        if self.is_greedy or self.constraint is not None:
            return False
        return self.history is None or not draft

    def catch_up(self, sequence: EngineSequence) -> None:
        """Counts what was emitted since the last draw."""
        if self.history is not None:
            begin = sequence.prompt_count + self.history.output_count
            self.history.add(sequence.token_ids[begin:])

    def accept(self, token_id: int) -> None:
        """The token stands; the next row is drawn behind it."""
        if self.history is not None:
            self.history.add((token_id,))
        if self.constraint is not None:
            self.constraint.accept(token_id)


def sample_batch(
    logits: Logits, greedy_token_ids: Int32s, asks: Sequence[SamplingRequest]
) -> list[Outcome]:
    """The next tokens of each sequence; its constraint stands behind them afterwards.

    Args:
        logits: [rows, vocabulary]; not changed.
        greedy_token_ids: [rows], the likeliest token of each row.
    """
    states = [_draws_of(ask.sequence) for ask in asks]
    together = _drawn_together(
        logits,
        [
            (ask, draws)
            for ask, draws in zip(asks, states, strict=True)
            if draws.is_free(ask.draft_token_ids)
        ],
    )
    return [
        _outcome(ask, draws, logits, greedy_token_ids, together)
        for ask, draws in zip(asks, states, strict=True)
    ]


def _draws_of(sequence: EngineSequence) -> Draws:
    draws = sequence.draws
    if not isinstance(draws, Draws):
        draws = sequence.draws = Draws(sequence)
    draws.catch_up(sequence)
    return draws


def _outcome(
    ask: SamplingRequest,
    draws: Draws,
    logits: Logits,
    greedy_token_ids: Int32s,
    together: dict[int, int | None],
) -> Outcome:
    is_free = draws.is_free(ask.draft_token_ids)

    def token_at(index: int) -> int:
        row = ask.first_row + index
        if is_free:
            token_id = together[row]
        elif np.isfinite(logits[row].max()):  # NaN propagates through max
            position = ask.sequence.position + index
            token_id = _drawn_alone(logits[row], int(greedy_token_ids[row]), draws, position)
        else:
            token_id = None
        if token_id is None:
            raise FloatingPointError
        return token_id

    try:
        token_ids = _standing(ask.draft_token_ids, token_at, draws)
    except FloatingPointError:
        return Outcome(error=NOT_NUMBERS)
    except GrammarFailedError as error:
        return Outcome(error=str(error))
    request = ask.sequence.request
    if not (request.logprobs or request.top_logprob_count):
        return Outcome(token_ids)
    return Outcome(
        token_ids,
        [
            logprobs_of(logits[ask.first_row + index], token_id, request.top_logprob_count)
            for index, token_id in enumerate(token_ids)
        ],
    )


def _standing(draft: Sequence[int], token_at: Callable[[int], int], draws: Draws) -> list[int]:
    """The tokens drawn one after the other, as far as their logits were computed."""
    token_ids: list[int] = []
    for drafted in (*draft, None):
        token_ids.append(token_at(len(token_ids)))
        draws.accept(token_ids[-1])
        ended = draws.constraint is not None and draws.constraint.ended
        if token_ids[-1] != drafted or ended:
            break
    return token_ids


def _drawn_together(
    logits: Logits, free: Sequence[tuple[SamplingRequest, Draws]]
) -> dict[int, int | None]:
    """Token by row; None for a row that is no numbers."""
    rows, wanted, keys = [], [], []
    for ask, draws in free:
        for index in range(1 + len(ask.draft_token_ids)):
            rows.append(ask.first_row + index)
            wanted.append(draws)
            keys.append(keys_of(draws.sampling.seed, ask.sequence.position + index))
    drawn: dict[int, int | None] = {}
    size = max(1, SLAB_SIZE // logits.shape[1])
    for begin in range(0, len(rows), size):
        slab = slice(begin, begin + size)
        values = logits[rows[slab]]  # a copy
        for row, draws in zip(values, wanted[slab], strict=True):
            if draws.adjusts:
                adjust(row, draws.sampling, draws.history)
        token_ids = _drawn_rows(values, [draws.sampling for draws in wanted[slab]], keys[slab])
        drawn.update(zip(rows[slab], token_ids, strict=True))
    return drawn


def _drawn_rows(
    values: Logits, wanted: Sequence[Sampling], keys: list[Key], ids: Ids | None = None
) -> list[int | None]:
    """A token from each row by temperature and what narrows the choice.

    Args:
        values: logits, [rows, tokens]; overwritten.
        ids: the ids that the columns stand for; None: the column is the id.
    """
    tops = values.max(axis=1)
    sound = np.flatnonzero(np.isfinite(tops)).tolist()
    if len(sound) < len(keys):
        values, tops = values[sound], tops[sound]
    drawn: list[int | None] = [None] * len(keys)
    if not sound:
        return drawn
    temperatures = [wanted[place].temperature for place in sound]
    weights = _weights(values, tops, np.array(temperatures, np.float32))
    for row, place in zip(weights, sound, strict=True):
        if narrows(wanted[place]):
            narrow(row, wanted[place])
    token_ids = race(weights, [keys[place] for place in sound], ids)
    for place, token_id in zip(sound, token_ids, strict=True):
        drawn[place] = token_id
    return drawn


def _weights(values: Logits, tops: Logits, temperatures: Logits) -> Logits:
    """Probabilities relative to the likeliest of each row; overwrites `values`, [rows, tokens]."""
    with np.errstate(over="ignore", under="ignore"):  # what underflows is never drawn
        values -= tops[:, None]
        values /= temperatures[:, None]
        return np.exp(values, out=values)


def _drawn_alone(logits: Logits, greedy_token_id: int, draws: Draws, position: int) -> int | None:
    """One row that is greedy, constrained, or depends on the tokens drawn just before it."""
    row, constraint = logits, draws.constraint
    if draws.adjusts:
        row = logits.copy()
        adjust(row, draws.sampling, draws.history)
    if draws.is_greedy:
        likeliest = int(row.argmax()) if draws.adjusts else greedy_token_id
        if constraint is None or constraint.allows(likeliest):
            return likeliest
    key, wanted = keys_of(draws.sampling.seed, position), [draws.sampling]
    if constraint is None:
        return _drawn_rows(row[None].copy(), wanted, [key])[0]
    allowed = constraint.allowed(row.size)
    if draws.is_greedy:
        return int(np.where(allowed, row, -np.inf).argmax())
    if np.count_nonzero(allowed) > row.size * FEW_SHARE:
        values = np.where(allowed, row, np.float32(-np.inf))
        return _drawn_rows(values[None], wanted, [key])[0]
    ids = np.flatnonzero(allowed)
    return int(ids[0]) if ids.size == 1 else _drawn_rows(row[ids][None], wanted, [key], ids)[0]


def guessed_token(
    logits_of: Callable[[], Logits], greedy_token_id: int, sampling: Sampling, position: int
) -> int:
    """What a draft model would draw there; it knows no penalties, biases or constraints.

    Args:
        logits_of: its logits of the position, fetched only when the draw needs them.
        greedy_token_id: the likeliest of them.
    """
    if sampling.temperature < TEMPERATURE_MIN:
        return greedy_token_id
    key = keys_of(sampling.seed, position)
    token_id = _drawn_rows(logits_of()[None].copy(), [sampling], [key])[0]
    return greedy_token_id if token_id is None else token_id


def logprobs_of(logits: Logits, token_id: int, top_count: int) -> TokenLogprobs:
    """Natural log probabilities before penalties and constraints.

    Args:
        logits: one row, [vocabulary].
        top_count: likeliest tokens to report, of equals the smaller id first.
    """
    top = logits.max()
    mass = np.exp(logits - top).sum(dtype=np.float64)
    base = float(top) + float(np.log(mass))
    likeliest: list[int] = []
    if top_count:
        count = min(top_count, logits.size)
        # All that reach the count-th largest value: ties with it are settled by id.
        floor = np.partition(logits, logits.size - count)[logits.size - count]
        columns = np.flatnonzero(logits >= floor)
        order = np.argsort(-logits[columns], kind="stable")[:count]
        likeliest = columns[order].tolist()
    return TokenLogprobs(
        (token_id, float(logits[token_id]) - base),
        tuple((i, float(logits[i]) - base) for i in likeliest),
    )
