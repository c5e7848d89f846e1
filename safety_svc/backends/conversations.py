"""Conversations before a model in this process: cut into parts, judged fairly, remembered."""

import collections
from collections.abc import Iterable, Sequence

from prometheus_client import Counter

from safety_svc import conversation
from safety_svc.backends.base import Model, OverloadedError
from safety_svc.backends.fair import Turns
from safety_svc.backends.queue import ModelQueue
from safety_svc.backends.watched import Watch
from safety_svc.conversation import Found, Part
from safety_svc.detectors.base import Audience, Finding, Turn
from safety_svc.memory import Memory, digest

# Conversations that wait for the model: of all accounts, and of one.
WAITING_COUNT_MAX, WAITING_OWNER_COUNT_MAX = 256, 64
# Characters of a conversation that were not judged before and are judged at once: about a second of
# the model where its first stage clears nothing. What is beyond is told.
NEW_LENGTH_MAX = 1 << 18
# Texts that are judged where they are asked for: so many, and together as short as the model says.
SHORT_PART_COUNT_MAX = 5
# Parts that are looked up in one turn at the loop.
LOOKUP_COUNT = 32

CLEARED = Counter(
    "chatmesh_safety_first_stage_cleared_total",
    "Looks and conversations that the classifier's first stage found harmless where they arose.",
    ["backend", "what"],
)

Look = tuple[Audience, str]


class Conversations:
    """Judges conversations; make it where a loop runs.

    Args:
        model: what is asked.
        queue: what waits for it.
        watch: times what is judged here.
    """

    def __init__(
        self, model: Model, queue: ModelQueue[Look, Sequence[Finding]], watch: Watch
    ) -> None:
        self._model, self._queue, self._watch = model, queue, watch
        self._memory: Memory[Finding] = Memory("classifier")
        self._turns = Turns()
        self._waiting: collections.Counter[str] = collections.Counter()
        self._cleared = CLEARED.labels(model.name, "conversation")

    async def judge(self, turns: Sequence[Turn], owner: str) -> Found:
        """What is in a conversation.

        Raises:
            BackendError: no answer; OverloadedError when too many ask.
        """
        found: dict[Part, Sequence[Finding]] = {}
        left_out = await self._add(conversation.parts(turns), owner, found)
        findings = conversation.combined(turns, found, self._model.lessened)
        if wrapped := list(conversation.wrapped(turns, findings)):
            left_out += await self._add(wrapped, owner, found)
            findings = conversation.combined(turns, found, self._model.lessened)
        return Found(findings, conversation.unjudged(turns, left_out))

    async def _add(
        self, parts: Iterable[Part], owner: str, found: dict[Part, Sequence[Finding]]
    ) -> list[Part]:
        """Adds what is in `parts` to `found`; returns those that nobody judged."""
        asked: list[Part] = []
        left_out: list[Part] = []
        room = NEW_LENGTH_MAX
        for number, part in enumerate(parts, 1):
            if number % LOOKUP_COUNT == 0:
                await self._turns.turn(owner)
            known = self._known(part, owner)
            if known is not None:
                found[part] = known
            elif len(part.text) <= room:
                room -= len(part.text)
                asked.append(part)
            else:
                room = 0  # what weighs less is not judged in its place
                left_out.append(part)
        answers = await self._answers(asked, owner) if asked else []
        for part, findings in zip(asked, answers, strict=True):
            found[part] = findings
            self._memory.put(_key(part, owner), findings)
        if not any(found.values()) and not asked and not left_out:
            self._cleared.inc()
        return left_out

    def _known(self, part: Part, owner: str) -> Sequence[Finding] | None:
        """What is in a part, if that shows without asking."""
        if self._model.clears(part.text, part.audience):
            return ()
        return self._memory.get(_key(part, owner))

    async def _answers(self, parts: Sequence[Part], owner: str) -> Sequence[Sequence[Finding]]:
        looks = [(part.audience, part.text) for part in parts]
        length = sum(len(part.text) for part in parts if not part.is_whole)
        if len(looks) <= SHORT_PART_COUNT_MAX and length <= self._model.short_length:
            return self._watch.at_once(lambda: inspected(self._model, looks), "conversation")
        if self._waiting.total() >= WAITING_COUNT_MAX:
            raise OverloadedError(f"{WAITING_COUNT_MAX} prompts wait for {self._model.name}")
        if self._waiting[owner] >= WAITING_OWNER_COUNT_MAX:
            raise OverloadedError(f"{WAITING_OWNER_COUNT_MAX} prompts of the account wait")
        self._waiting[owner] += 1
        try:
            return await self._queue.ask(looks, owner)
        finally:
            self._waiting[owner] -= 1
            self._waiting += collections.Counter()  # drops owners of whom none waits


def inspected(model: Model, looks: Sequence[Look]) -> list[Sequence[Finding]]:
    """The model's answers; those of one audience are asked together."""
    found: list[Sequence[Finding]] = [()] * len(looks)
    for audience in dict.fromkeys(audience for audience, _ in looks):
        places = [place for place, look in enumerate(looks) if look[0] is audience]
        answers = model.inspect_many([looks[place][1] for place in places], audience)
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
    return found


def _key(part: Part, owner: str) -> bytes:
    return digest(owner, part.audience, part.text)
