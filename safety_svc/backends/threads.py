"""A model in this process, asked by everybody at once.

What its first stage clears is answered where it is asked. Other looks at streamed answers gather
while the model works, and go to it together: one batch costs less than its texts one by one.
Conversations have a thread of their own, so that a long prompt does not hold up the streams.
"""

import itertools
from collections.abc import Sequence

from prometheus_client import Counter

from safety_svc.backends.base import Model, OverloadedError
from safety_svc.backends.queue import ModelQueue
from safety_svc.detectors.base import Audience, Finding, PromptFinding, Turn

BATCH_TEXT_COUNT_MAX = 64
# Looks that wait have no bound here: each stream has but a few on their way, see `reply.py`.
WAITING_CONVERSATION_COUNT_MAX = 256

_cleared = Counter(
    "chatmesh_safety_first_stage_cleared_total",
    "Looks and conversations that the classifier's first stage found harmless where they arose.",
    ["backend", "what"],
)

_Look = tuple[Audience, str]


class ThreadBackend:
    """Asks `model` in worker threads; make it where a loop runs.

    Args:
        model: what is asked.
        limit_s: seconds that it may take for a batch of looks, or for a conversation.
        stride_min: fewest characters of an answer between two looks, at least 1.
    """

    def __init__(self, model: Model, limit_s: float, stride_min: int = 1) -> None:
        self.name, self.digest, self.stride_min = model.name, model.digest, stride_min
        self._model = model
        self._cleared_looks = _cleared.labels(self.name, "look")
        self._cleared_conversations = _cleared.labels(self.name, "conversation")
        self._looks: ModelQueue[_Look, Sequence[Finding]] = ModelQueue(
            self.name,
            "look",
            self._inspect,
            batch_count_max=BATCH_TEXT_COUNT_MAX,
            limit_s=limit_s,
        )
        self._conversations: ModelQueue[Sequence[Turn], Sequence[PromptFinding]] = ModelQueue(
            self.name, "conversation", self._converse, batch_count_max=1, limit_s=limit_s
        )

    def clears(self, text: str, audience: Audience) -> bool:
        """See `Backend.clears`."""
        clear = self._model.clears(text, audience)
        if clear:
            self._cleared_looks.inc()
        return clear

    async def inspect(self, text: str, audience: Audience) -> Sequence[Finding]:
        """See `Backend.inspect`."""
        return await self._looks.ask((audience, text))

    async def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """See `Backend.conversation`."""
        if self._model.clears_conversation(turns):
            self._cleared_conversations.inc()
            return []
        if self._conversations.waiting_count >= WAITING_CONVERSATION_COUNT_MAX:
            raise OverloadedError(f"{WAITING_CONVERSATION_COUNT_MAX} prompts wait for {self.name}")
        return await self._conversations.ask(turns)

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._looks.close()
        await self._conversations.close()

    def _inspect(self, batch: Sequence[_Look]) -> list[Sequence[Finding]]:
        found: list[Sequence[Finding]] = []
        for audience, looks in itertools.groupby(batch, key=lambda look: look[0]):
            found += self._model.inspect_many([text for _, text in looks], audience)
        return found

    def _converse(self, batch: Sequence[Sequence[Turn]]) -> list[Sequence[PromptFinding]]:
        return [self._model.conversation(turns) for turns in batch]
