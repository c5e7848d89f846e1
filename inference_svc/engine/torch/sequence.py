"""One request on its way through the scheduler: its tokens, its blocks, how far it is computed."""

from array import array
from typing import TYPE_CHECKING

from inference_svc.engine.answer import AnswerState
from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineRequest
from inference_svc.engine.torch.block_manager import chained_hash, root_hash

if TYPE_CHECKING:
    from inference_svc.engine.torch.constrained import Constraint


class Sequence:
    """Pure state, no torch.

    Attributes:
        arrival: order of arrival; kept by a preempted sequence, so that it goes first again.
        arrived_s: when it arrived, by the clock that the scheduler is given.
        token_ids: prompt, tokens of earlier attempts, tokens generated here.
        blocks: KV blocks in order; they cover at least the computed tokens.
        computed_count: tokens whose keys and values are in `blocks`.
        cached_count: prompt tokens that the prefix cache had when the sequence, or the one that it
            was forked from, first ran; None before.
        prefilled_count: prompt tokens computed or cached; preemption does not lower it.
        preempted: waits because its blocks were taken.
        tenant: whose account of service it is on: the cache salt, or the sequence itself.
        is_plain: greedy and nothing else: its next token is the likeliest one.
        constraint: the grammar's state, of a constrained answer.
        draws, speculation: what the sampler and the drafter remember of it.
        admitted_s, first_token_s, last_token_s: moments; None before.
    """

    def __init__(
        self, request: EngineRequest, answer: AnswerState, arrival: int, arrived_s: float = 0.0
    ) -> None:
        self.request, self.answer = request, answer
        self.arrival, self.arrived_s = arrival, arrived_s
        self.token_ids = array("i", request.prompt_token_ids)
        self.token_ids.extend(request.emitted_token_ids)
        self.prompt_count = len(request.prompt_token_ids)
        self.blocks = array("i")
        self.computed_count = 0
        self.cached_count: int | None = None
        self.prefilled_count = 0
        self.preempted = False
        self.tenant: str | int = request.cache_salt or arrival
        self.is_plain = _is_plain(request)
        self.constraint: Constraint | None = None
        self.draws: object = None
        self.speculation: object = None
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self._hashes: list[bytes] = []
        self._parent = root_hash(request.cache_salt)

    @property
    def position(self) -> int:
        """Position in the answer of the next token."""
        return len(self.token_ids) - self.prompt_count

    @property
    def decoding(self) -> bool:
        """Only the newest token is not computed yet."""
        return self.computed_count == len(self.token_ids) - 1

    def same_prompt(self, other: "Sequence") -> bool:
        """Both are answers of one turn to one prompt."""
        group = self.request.group
        return (
            group != ""
            and group == other.request.group
            and self.prompt_count == other.prompt_count
            and self.token_ids[: self.prompt_count] == other.token_ids[: self.prompt_count]
        )

    def hashes(self, token_count: int) -> list[bytes]:
        """Hashes of the full blocks within the first `token_count` tokens; none without a salt."""
        if not self.request.cache_salt:
            return []
        block_count = token_count // BLOCK_TOKEN_COUNT
        while len(self._hashes) < block_count:
            begin = len(self._hashes) * BLOCK_TOKEN_COUNT
            ids = self.token_ids[begin : begin + BLOCK_TOKEN_COUNT]
            self._parent = chained_hash(self._parent, ids)
            self._hashes.append(self._parent)
        return self._hashes[:block_count]


def _is_plain(request: EngineRequest) -> bool:
    sampling = request.sampling
    return (
        sampling.temperature == 0
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
        and sampling.repetition_penalty == 1
        and not sampling.logit_bias
        and not request.logprobs
        and not request.top_logprob_count
        and request.response_format is None
    )
