"""The whole way of a chat request. Knows neither gRPC nor HTTP; two faces show it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.context.builder import ContextBuilder
from gateway.context.parts import MESSAGES
from gateway.settings import TurnLimits
from gateway.turn.checks import check
from gateway.turn.choice import Choice, choosing
from gateway.turn.domain import (
    FINISH_CONTENT_FILTER,
    Ask,
    Caller,
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    ModelInfo,
    Started,
    Usage,
)
from gateway.turn.generation import Generator
from gateway.turn.record import Recorder, usage_of
from gateway.turn.threads import Threads
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.inference import Job
from gateway.upstreams.safety import Safety, Screened

T = TypeVar("T")
# A turn that another gateway adopts will carry another epoch; today every turn ends where it began.
EPOCH = 0


@dataclass(frozen=True, slots=True)
class Upstreams:
    """What a turn needs, in the order it needs it."""

    catalogue: Catalogue
    threads: Threads
    context: ContextBuilder
    safety: Safety
    recorder: Recorder
    generator: Generator
    limits: TurnLimits


async def turn(ask: Ask, caller: Caller, up: Upstreams) -> AsyncGenerator[Event, None]:
    """Runs one turn: Started, then deltas and the end of each answer, then Finished.

    Events are numbered from 0 in the order in which they are yielded. Close the generator (or
    cancel its task) when the client is gone: generation is cancelled at once, and what was used
    and said is still recorded. Nothing is yielded, generated or charged when the prompt is refused.

    Raises:
        MeshError: with a reason of chat.v1.Reason; before Started nothing was generated.
    """
    check(ask, caller.tier, up.limits)
    model = await up.catalogue.find(ask.model)
    ask = replace(ask, model=model.id)
    thread = await up.threads.open(ask, caller, model)
    context = await up.context.build(model, caller, thread.history, ask.messages)
    async with running(up.safety.screen_prompt(caller, context.screened)) as screening:
        limit = up.limits.answer_token_count_max[caller.tier]
        prompt = await up.context.encode(context, ask.max_tokens, limit)
        async with up.recorder.recorded(ask, caller, thread, prompt) as record:
            screened = await screening
            if screened.safe_text:
                for event in safe_completion(caller, model, ask.n, screened):
                    yield event
                return
            if screened.masked:  # the model reads, and the thread keeps, the masked messages
                context = context.masked(screened.masked)
                ask = replace(ask, messages=context.of(MESSAGES))
                prompt = await up.context.encode(context, ask.max_tokens, prompt.max_tokens)
                await up.recorder.mask(record, ask, prompt)
            choices = [
                Choice(
                    answer,
                    up.generator.generate(
                        Job.of(ask, caller, prompt, answer.choice_index), answer.token_ids
                    ),
                    up.safety.screen_reply(caller, answer.choice_index),
                )
                for answer in record.answers
            ]
            async with choosing(choices) as run, aclosing(run.events()) as events:
                await run.accepted()
                left_out = context.left_out(prompt.dropped_message_count)
                dropped = sum(each.message_count for each in left_out)
                yield Started(caller.turn_id, model, thread.id, dropped, left_out)
                async for event in events:
                    yield event
    yield Finished(usage_of(prompt, record.answers))


def safe_completion(caller: Caller, model: ModelInfo, n: int, screened: Screened) -> list[Event]:
    """What is said instead of an answer: nothing was generated, nothing is kept or charged."""
    events: list[Event] = [Started(caller.turn_id, model, "", 0)]
    for index in range(n):
        ended = ChoiceFinished(index, FINISH_CONTENT_FILTER, screened.category)
        events += [Delta(index, screened.safe_text, 0), ended]
    return [*events, Finished(Usage(0, 0, 0))]


@asynccontextmanager
async def running(work: Coroutine[None, None, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Runs work beside what is inside; leaving cancels it when it is not done."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whoever awaited it was told
