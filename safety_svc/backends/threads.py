"""A model in this process, asked by everybody at once.

What its first stage clears, and what is short, is answered where it is asked. A thread would take
the interpreter lock from the event loop several times a text, and where more threads run than there
are cores it waits for it each time: 13 ms for a prompt of 1 ms, on a full machine, which then was
all that the machine could do. Longer looks at streamed answers gather while the model works, and go
to it together; longer conversations have a thread of their own, so that they hold up nobody.
"""

import itertools
from collections.abc import Sequence

from prometheus_client import Counter

from safety_svc.backends.base import Model, OverloadedError
from safety_svc.backends.queue import ModelQueue
from safety_svc.backends.watched import Watch
from safety_svc.detectors.base import Audience, Finding, PromptFinding, Turn

BATCH_TEXT_COUNT_MAX = 64
# Looks that wait have no bound here: each stream has but a few on their way, see `reply.py`.
WAITING_CONVERSATION_COUNT_MAX = 256

# Each turn is a text of its own to the model.
SHORT_TURN_COUNT_MAX = 4

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
        self._watch = Watch(self.name, limit_s)
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
        if len(text) <= self._model.short_length:
            look = [(audience, text)]
            return self._watch.at_once(lambda: self._inspect(look)[0], "look")
        return await self._looks.ask((audience, text))

    async def conversation(self, turns: Sequence[Turn]) -> Sequence[PromptFinding]:
        """See `Backend.conversation`."""
        if self._model.clears_conversation(turns):
            self._cleared_conversations.inc()
            return []
        if self._is_short(turns):
            return self._watch.at_once(lambda: self._model.conversation(turns), "conversation")
        if self._conversations.waiting_count >= WAITING_CONVERSATION_COUNT_MAX:
            raise OverloadedError(f"{WAITING_CONVERSATION_COUNT_MAX} prompts wait for {self.name}")
        return await self._conversations.ask(turns)

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._looks.close()
        await self._conversations.close()

    def _is_short(self, turns: Sequence[Turn]) -> bool:
        length = sum(len(turn.text) for turn in turns)
        return len(turns) <= SHORT_TURN_COUNT_MAX and length <= self._model.short_length

    def _inspect(self, batch: Sequence[_Look]) -> list[Sequence[Finding]]:
        found: list[Sequence[Finding]] = []
        for audience, looks in itertools.groupby(batch, key=lambda look: look[0]):
            found += self._model.inspect_many([text for _, text in looks], audience)
        return found

    def _converse(self, batch: Sequence[Sequence[Turn]]) -> list[Sequence[PromptFinding]]:
        return [self._model.conversation(turns) for turns in batch]
