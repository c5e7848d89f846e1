"""Sequences and logits for tests of the sampler, without an engine."""

from array import array
from collections.abc import Sequence as Ids

import numpy as np

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import EngineRequest, Sampling, StopRule
from inference_svc.engine.torch.sampler import Outcome, SamplingRequest, sample_batch
from inference_svc.engine.torch.sequence import Sequence
from inference_svc.engine.vocabulary import Vocabulary

NO_WORDS = Vocabulary([], frozenset(), "")


def sequence(
    prompt: Ids[int] = (1, 2, 3),
    output: Ids[int] = (),
    *,
    logprobs: bool = False,
    top_logprob_count: int = 0,
    **sampling: object,
) -> Sequence:
    request = EngineRequest(
        "x",
        list(prompt),
        StopRule(10_000),
        sampling=Sampling(**sampling),
        logprobs=logprobs,
        top_logprob_count=top_logprob_count,
    )
    made = Sequence(request, AnswerState(request.stop, NO_WORDS), 0)
    made.token_ids.extend(array("i", output))
    return made


def ask(rows: np.ndarray, *asks: SamplingRequest) -> list[Outcome]:
    greedy = np.nan_to_num(rows, nan=-np.inf).argmax(axis=1).astype(np.int32)
    return sample_batch(rows, greedy, list(asks))


def draw(row: Ids[float] | np.ndarray, of: Sequence | None = None, **sampling: object) -> int:
    """The next token behind one row of logits."""
    rows = np.array([row], np.float32)
    outcome = ask(rows, SamplingRequest(of or sequence(**sampling), 0))[0]
    assert not outcome.error, outcome.error
    return outcome.token_ids[0]
