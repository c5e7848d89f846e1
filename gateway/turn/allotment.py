"""What a turn may generate: as many tokens as are paid for, and more while it runs.

A node is asked for no more tokens than are held, so that whatever happens to this process none is
generated that nobody pays. Where the hold had no room for all that was asked, an answer that comes
to the end of its share asks for more: then a node goes on behind the last token, as after a broken
stream. It ends there, with the limit's name, when there is none.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from gateway.turn.answer import Answer
from gateway.turn.domain import FINISH_LENGTH, Frame
from gateway.turn.generation import Generator
from gateway.turn.plan import Plan
from gateway.turn.stored import bound_of
from gateway.upstreams.billing import Billing
from gateway.upstreams.inference import Job
from mesh.chassis.errors import MeshError

# Between the attempts of one stretch of an answer and those of the next.
ATTEMPTS_OF_A_STRETCH = 8


class Allotment:
    """The tokens of a turn that are paid, in equal shares for its answers."""

    def __init__(self, plan: Plan, generator: Generator, billing: Billing) -> None:
        self._plan, self._generator, self._billing = plan, generator, billing
        stored = plan.stored
        self._share = stored.request.max_tokens
        self._wanted = max(self._share, stored.answer_token_count_max)
        self._bound = bound_of(stored.limit, stored.limit_payer)

    @property
    def token_count(self) -> int:
        """Output tokens that are held for the turn, as far as is known here."""
        return self._share * self._plan.choice_count

    async def generate(
        self, answer: Answer, first_attempt: int, *, is_begun: bool
    ) -> AsyncGenerator[Frame, None]:
        """Streams an answer to its end, or to the last token that is paid; else as the generator.

        Raises:
            MeshError: as `Generator.generate`.
        """
        job = self._plan.job.choice(answer.choice_index)
        token_ids = list(answer.token_ids)
        # An earlier owner may have come to the end of what was held at first.
        if len(token_ids) >= self._share and not await self._more(len(token_ids)):
            self._share = max(self._share, len(token_ids))
        while True:
            share = self._share
            frames = self._generator.generate(
                _limited(job, share), token_ids, first_attempt, is_begun=is_begun
            )
            async with aclosing(frames):
                async for frame in frames:
                    token_ids += frame.token_ids
                    if frame.finish_reason == FINISH_LENGTH and len(token_ids) >= share:
                        break
                    yield frame
                else:
                    return
            # What the node had held back of the text it says again, behind the last token.
            if not await self._more(len(token_ids)):
                if share < self._wanted:
                    answer.bound = self._bound
                yield frame
                return
            first_attempt, is_begun = first_attempt + ATTEMPTS_OF_A_STRETCH, True

    async def _more(self, token_count: int) -> bool:
        """Whether an answer that has so many tokens may have more."""
        if token_count < self._share:
            return True  # another answer has asked
        if self._share >= self._wanted:
            return False
        count = self._plan.choice_count
        try:
            grant = await self._billing.raise_hold(self._plan.stored.hold, self._wanted * count)
        except MeshError:
            return False
        self._share = max(self._share, min(grant.output_token_count // count, self._wanted))
        self._bound = grant.bound or self._bound
        return token_count < self._share


def _limited(job: Job, max_tokens: int) -> Job:
    if job.request.max_tokens == max_tokens:
        return job
    request = type(job.request)()
    request.CopyFrom(job.request)
    request.max_tokens = max_tokens
    return replace(job, request=request)
