"""One request on its way through the scheduler: its tokens, its blocks, how far it is computed."""

from inference_svc.engine.answer import Answer
from inference_svc.engine.protocol import BLOCK_TOKEN_COUNT, EngineRequest
from inference_svc.engine.torch.block_manager import chained_hash, root_hash


class Sequence:
    """Pure state, no torch.

    Attributes:
        token_ids: prompt, tokens of earlier attempts, tokens generated here.
        computed_count: tokens whose keys and values are in `blocks`.
        cached_count: tokens that the prefix cache had when the sequence first ran; None before.
        arrival: order of arrival; kept by a preempted sequence, so that it goes first again.
    """

    def __init__(self, request: EngineRequest, answer: Answer, arrival: int) -> None:
        self.request, self.answer, self.arrival = request, answer, arrival
        self.token_ids = [*request.prompt_token_ids, *request.emitted_token_ids]
        self.prompt_count = len(request.prompt_token_ids)
        self.computed_count = 0
        self.cached_count: int | None = None
        self.prefilled_count = 0  # prompt positions computed or cached; preemption keeps it
        self.blocks: list[int] = []
        self._hashes: list[bytes] = []
        self._parent = root_hash(request.cache_salt)

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: the higher priority, then the earlier arrival (smallest rank)."""
        return (-self.request.priority, self.arrival)

    @property
    def position(self) -> int:
        """Position in the answer of the next token."""
        return len(self.token_ids) - self.prompt_count

    @property
    def decoding(self) -> bool:
        """Only the newest token is not computed yet."""
        return self.computed_count == len(self.token_ids) - 1

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
