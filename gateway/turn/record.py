"""What is kept of a turn, on every way out: the hold before, the settling and the thread after."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import structlog

from chatmesh.billing.v1.billing_pb2 import HoldRequest
from gateway import metrics
from gateway.settings import TurnLimits
from gateway.turn.answer import Answer
from gateway.turn.background import Background, wait_at_most
from gateway.turn.domain import Ask, Caller, Message, Prompt, Usage
from gateway.upstreams.billing import Billing
from gateway.upstreams.conversation import Conversation, NewMessage, Thread
from mesh.chassis.errors import MeshError

RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
# What the same call may mend later.
TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
}

log = structlog.get_logger()


def usage_of(prompt: Prompt, answers: Sequence[Answer]) -> Usage:
    """Tokens of a turn; the prompt counts once for all n answers."""
    return Usage(
        prompt_token_count=len(prompt.token_ids),
        cached_token_count=answers[0].cached_token_count,
        completion_token_count=sum(len(answer.token_ids) for answer in answers),
    )


def messages_to_keep(ask: Ask, prompt: Prompt, answers: Sequence[Answer]) -> Sequence[NewMessage]:
    """The new messages with the first answer; nothing when it never came to an answer.

    Of n answers the first is kept: a thread has one answer to a question.
    """
    answer = answers[0]
    if not answer.text and answer.finish_reason == "cancelled":
        return ()
    counts = prompt.message_token_counts[-len(ask.messages) :]
    new = [NewMessage(message, count) for message, count in zip(ask.messages, counts, strict=True)]
    said = Message("assistant", answer.text)
    kept = NewMessage(said, answer.released_token_count, answer.finish_reason, ask.model)
    return [*new, kept]


@dataclass(slots=True)
class Record:
    """What will be kept of a turn."""

    ask: Ask
    caller: Caller
    thread: Thread
    prompt: Prompt
    hold: HoldRequest
    answers: Sequence[Answer]


class Recorder:
    """Keeps turns; its work outlives the client."""

    def __init__(
        self,
        billing: Billing,
        conversation: Conversation,
        background: Background,
        limits: TurnLimits,
    ) -> None:
        self._billing, self._conversation = billing, conversation
        self._background, self._limits = background, limits

    @asynccontextmanager
    async def recorded(
        self, ask: Ask, caller: Caller, thread: Thread, prompt: Prompt
    ) -> AsyncIterator[Record]:
        """Holds, yields the record with the n answers, then settles or releases and stores.

        Raises:
            MeshError: INSUFFICIENT_QUOTA and what else refuses a hold; nothing is recorded then.
        """
        lifetime_s = self._limits.hold_lifetime_s
        hold = await self._hold(ask, caller, prompt, lifetime_s)
        answers = [Answer(index) for index in range(ask.n)]
        record = Record(ask, caller, thread, prompt, hold, answers)
        renewing = asyncio.create_task(self._renew(hold, lifetime_s))
        wait_s = self._limits.conclude_wait_s
        try:
            yield record
        except (asyncio.CancelledError, GeneratorExit):
            wait_s = 0.0  # nobody is there to be told
            raise
        finally:
            renewing.cancel()
            concluding = self._background.start(self._conclude(record), "conclude_turn")
            if wait_s:
                await wait_at_most(concluding, wait_s)

    async def mask(self, record: Record, ask: Ask, prompt: Prompt) -> None:
        """Takes the masked messages, which are kept, and their prompt, which is charged.

        A mask may be longer than what it hides: then the hold is raised first.

        Raises:
            MeshError: INSUFFICIENT_QUOTA and what else refuses that.
        """
        record.ask, record.prompt = ask, prompt
        if len(prompt.token_ids) > record.hold.prompt_token_count:
            record.hold.prompt_token_count = len(prompt.token_ids)
            await self._billing.extend(record.hold)

    async def _hold(
        self, ask: Ask, caller: Caller, prompt: Prompt, lifetime_s: float
    ) -> HoldRequest:
        try:
            return await self._billing.hold(caller, ask.model, prompt, ask.n, lifetime_s)
        except (asyncio.CancelledError, MeshError) as error:
            # It may have been granted although we never heard.
            if isinstance(error, asyncio.CancelledError) or error.code in TRANSIENT:
                self._background.start(self._billing.release(caller.turn_id), "release_hold")
            raise

    async def _renew(self, hold: HoldRequest, lifetime_s: float) -> None:
        while True:
            await asyncio.sleep(lifetime_s / 2)
            try:
                await self._billing.extend(hold)
            except MeshError as error:  # the hold may lapse; settling works all the same
                log.warning("hold_not_renewed", turn_id=hold.turn_id, reason=error.reason)

    async def _conclude(self, record: Record) -> None:
        usage = usage_of(record.prompt, record.answers)
        withheld = sum(answer.withheld_token_count for answer in record.answers)
        _count(usage, withheld)
        work = [_until_accepted("settle", lambda: self._settle(record.hold, usage, withheld))]
        kept = messages_to_keep(record.ask, record.prompt, record.answers)
        if record.thread.id and kept:
            model = record.ask.model
            append = self._conversation.append
            work.append(
                _until_accepted("store", lambda: append(record.caller, record.thread, model, kept))
            )
        await asyncio.gather(*work)

    async def _settle(self, hold: HoldRequest, usage: Usage, withheld_token_count: int) -> None:
        if usage.completion_token_count:
            await self._billing.settle(hold, usage, withheld_token_count)
        else:
            await self._billing.release(hold.turn_id)


def _count(usage: Usage, withheld_token_count: int) -> None:
    if usage.completion_token_count:
        metrics.TOKENS.labels("prompt").inc(usage.prompt_token_count)
        metrics.TOKENS.labels("cached").inc(usage.cached_token_count)
        metrics.TOKENS.labels("output").inc(usage.completion_token_count)
        metrics.TOKENS.labels("withheld").inc(withheld_token_count)


async def _until_accepted(what: str, call: Callable[[], Awaitable[None]]) -> None:
    """Repeats a repeatable call; whoever runs it bounds the time."""
    delay_s = RETRY_S_MIN
    while True:
        try:
            return await call()
        except MeshError as error:
            if error.code not in TRANSIENT:
                metrics.CONCLUSIONS_LOST.labels(what).inc()
                log.error("conclusion_refused", what=what, reason=error.reason)
                return None
        except asyncio.CancelledError:
            metrics.CONCLUSIONS_LOST.labels(what).inc()
            raise
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RETRY_S_MAX)
