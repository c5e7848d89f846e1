"""A model in this process, asked by everybody at once.

What its first stage clears, and what is short, is answered where it is asked. A thread would take
the interpreter lock from the event loop several times a text, and where more threads run than there
are cores it waits for it each time: 13 ms for a prompt of 1 ms, on a full machine, which then was
all that the machine could do. Longer looks at streamed answers gather while the model works, and go
to it together; longer prompts have a thread of their own, part by part, and hold up nobody.
"""

from collections.abc import Sequence

from safety_svc.backends.base import Model
from safety_svc.backends.conversations import CLEARED, Conversations, Look, inspected
from safety_svc.backends.queue import ModelQueue
from safety_svc.backends.watched import Watch
from safety_svc.conversation import LENGTH_MAX, Found
from safety_svc.detectors.base import Audience, Finding, Turn

# Of looks as many go together as there are; of prompts as many parts as make one long one: who
# comes next waits for a batch.
BATCH_TEXT_COUNT_MAX, BATCH_LENGTH_MAX = 64, 1 << 16


class ThreadBackend:
    """Asks `model` in worker threads; make it where a loop runs.

    Args:
        model: what is asked.
        limit_s: seconds that it may take for a batch.
        stride_min: fewest characters of an answer between two looks, at least 1.
    """

    def __init__(self, model: Model, limit_s: float, stride_min: int = 1) -> None:
        self.name, self.digest, self.stride_min = model.name, model.digest, stride_min
        self._model = model
        self._cleared_looks = CLEARED.labels(self.name, "look")
        self._watch = Watch(self.name, limit_s)
        # Of looks as many wait as there are streams, each has but a few on their way: `reply.py`.
        self._looks = self._queue("look", BATCH_LENGTH_MAX, limit_s)
        self._prompts = self._queue("conversation", LENGTH_MAX, limit_s)
        self._conversations = Conversations(model, self._prompts, self._watch)

    def clears(self, text: str, audience: Audience) -> bool:
        """See `Backend.clears`."""
        clear = self._model.clears(text, audience)
        if clear:
            self._cleared_looks.inc()
        return clear

    async def inspect(self, text: str, audience: Audience, owner: str) -> Sequence[Finding]:
        """See `Backend.inspect`."""
        look = [(audience, text)]
        if len(text) <= self._model.short_length:
            return self._watch.at_once(lambda: inspected(self._model, look)[0], "look")
        return (await self._looks.ask(look, owner))[0]

    async def conversation(self, turns: Sequence[Turn], owner: str) -> Found:
        """See `Backend.conversation`."""
        return await self._conversations.judge(turns, owner)

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._looks.close()
        await self._prompts.close()

    def _queue(
        self, what: str, length_max: int, limit_s: float
    ) -> ModelQueue[Look, Sequence[Finding]]:
        return ModelQueue(
            self.name,
            what,
            lambda batch: inspected(self._model, batch),
            size=lambda look: len(look[1]),
            batch_count_max=BATCH_TEXT_COUNT_MAX,
            batch_size_max=length_max,
            limit_s=limit_s,
        )
