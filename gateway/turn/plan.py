"""What is decided before a turn runs: checked, screened, encoded, and money held for it.

    history → [screen prompt ‖ (encode → hold)] → plan

A plan is all that another gateway needs to run the turn; the journal keeps it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from chatmesh.billing.v1.billing_pb2 import HoldRequest
from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2
from chatmesh.gateway.v1 import journal_pb2 as pb
from gateway import errors
from gateway.content import LIMITS, PAYERS
from gateway.context.builder import ContextBuilder
from gateway.context.parts import MESSAGES, Context
from gateway.errors import bad_parameter
from gateway.settings import TurnLimits
from gateway.turn.background import Background
from gateway.turn.checks import check, logprob_token_count_max
from gateway.turn.domain import (
    Ask,
    Caller,
    Grant,
    Message,
    ModelInfo,
    Prompt,
    Started,
    TokenAllowance,
)
from gateway.turn.fair_queue import FairQueue
from gateway.turn.stored import left_out_of_stored, left_out_to_stored
from gateway.turn.threads import Threads
from gateway.upstreams.billing import Billing
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.conversation import NewMessage, Thread, to_stored
from gateway.upstreams.failures import may_pass, until_accepted
from gateway.upstreams.inference import Job
from gateway.upstreams.safety import Safety, Screened
from mesh.chassis.errors import MeshError

T = TypeVar("T")
MS = 1000
# What is said of billing while it is away; and how long between two tries to hold then.
AWAY = {errors.SERVICE_UNAVAILABLE, errors.TIMEOUT}
HOLD_RETRY_S = 0.2
# When a hold that may have been granted is looked for: a call ends at its deadline, 3 s.
RELEASE_DELAYS_S = (0.0, 1.0, 4.0)


@dataclass(frozen=True)
class Plan:
    """A turn that may run, in its stored form and in the words of a turn."""

    stored: pb.TurnPlan
    # What was left of the minute's tokens when it was held; None: no limit, or not known here.
    tokens: TokenAllowance | None = None

    @classmethod
    def read(cls, data: bytes) -> "Plan":
        """The plan of serialised bytes."""
        return cls(pb.TurnPlan.FromString(data))

    @property
    def turn_id(self) -> str:
        """The turn."""
        return self.stored.turn_id

    @property
    def choice_count(self) -> int:
        """How many answers."""
        return self.stored.choice_count

    @property
    def redraws(self) -> bool:
        """Whether made again it has the same events at the same numbers.

        Several answers do not: which of them says something first is chance. Nor do log
        probabilities: they come with the frames of a node.
        """
        return (
            self.stored.redraws and self.choice_count == 1 and not self.stored.request.logprobs
        ) or bool(self.stored.safe_text)

    @property
    def is_json(self) -> bool:
        """Whether its answers are JSON documents."""
        wanted = self.stored.request.response_format.WhichOneof("format")
        return wanted in ("json_object", "json_schema") and not self.has_tools

    @property
    def has_tools(self) -> bool:
        """Whether its answers may hold tool calls."""
        return self.stored.request.HasField("calls")

    @cached_property
    def caller(self) -> Caller:
        """Who asked."""
        found = self.stored
        return Caller(found.account_id, found.tier, found.turn_id, found.jurisdiction)

    @cached_property
    def model(self) -> ModelInfo:
        """Who answers."""
        found = self.stored
        return ModelInfo(
            id=found.request.model,
            context_token_count_max=found.context_token_count_max,
            fingerprint=found.fingerprint,
            created_unix_s=found.model_created_unix_s,
            draws_by_position=found.redraws,
        )

    @cached_property
    def job(self) -> Job:
        """What a node does for the first answer."""
        return Job(self.stored.request, self.stored.affinity)

    @property
    def thread(self) -> Thread:
        """Where it is kept."""
        return Thread(self.stored.conversation_id, self.stored.conversation_is_new)

    def started(self, *, journaled: bool) -> Started:
        """Its first event."""
        found = self.stored
        return Started(
            turn_id=found.turn_id,
            model=self.model,
            # What safety answers instead of a model is not kept.
            conversation_id="" if found.safe_text else found.conversation_id,
            dropped_message_count=found.dropped_message_count,
            left_out=tuple(map(left_out_of_stored, found.left_out)),
            choice_count=found.choice_count,
            created_unix_s=found.create_time_ms // MS,
            include_usage=found.include_usage,
            journaled=journaled,
        )


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans; what it needs, in the order it needs it."""

    catalogue: Catalogue
    threads: Threads
    safety: Safety
    context: ContextBuilder
    billing: Billing
    background: Background
    queue: FairQueue
    limits: TurnLimits

    async def plan(self, ask: Ask, caller: Caller) -> Plan:
        """A turn that may run, with a hold on what it may cost at most.

        Raises:
            MeshError: with a reason of chat.v1.Reason; nothing is held or charged then. OVERLOADED
                when it would wait too long for its turn to be planned.
        """
        check(ask, caller.tier, self.limits)
        model = await self.catalogue.find(ask.model)
        if ask.tool_use and not model.binds_calls:
            raise bad_parameter("tools", f"No node of {model.id} can call tools; leave them out.")
        async with self.queue.entered(caller.account_id, caller.tier, model.id):
            return await self._planned(replace(ask, model=model.id), caller, model)

    async def _planned(self, ask: Ask, caller: Caller, model: ModelInfo) -> Plan:
        thread = await self.threads.open(ask, caller, model)
        context = await self.context.build(
            model, caller, thread.history, ask.messages, ask.tool_use
        )
        async with running(self.safety.screen_prompt(caller, context)) as screening:
            limit = min(
                self.limits.answer_token_count_max[caller.tier], logprob_token_count_max(ask)
            )
            prompt = await self.context.encode(context, ask.max_tokens, limit)
            async with self._held(ask, caller, prompt) as (hold, grant):
                screened = await screening
                if screened.masked:  # the model reads, and the thread keeps, the masked messages
                    context = context.masked(screened.masked)
                    prompt = await self.context.encode(context, ask.max_tokens, prompt.max_tokens)
                    await self._raise_hold(hold, prompt)
        context = context.without(prompt.dropped_message_count)
        found = _Found(model, thread, prompt, context, hold, grant, screened)
        return Plan(_stored(ask, caller, found), grant.tokens)

    async def is_served_as_planned(self, plan: Plan) -> bool:
        """Whether the model still is the one that the turn began with."""
        try:
            model = await self.catalogue.find(plan.model.id)
        except MeshError:
            return False
        return model.fingerprint == plan.model.fingerprint

    @asynccontextmanager
    async def _held(
        self, ask: Ask, caller: Caller, prompt: Prompt
    ) -> AsyncIterator[tuple[HoldRequest, Grant]]:
        """Holds the worst case, or what there is room for; gives it back when what is inside fails.

        Raises:
            MeshError: INSUFFICIENT_QUOTA, RATE_LIMIT_EXCEEDED and what else refuses a hold.
        """
        hold = self.billing.hold_of(caller, ask, prompt, self.limits.hold_lifetime_s)
        holding = asyncio.create_task(self._granted(hold, caller.tier))
        try:
            grant = await asyncio.shield(holding)
        except (asyncio.CancelledError, MeshError) as error:
            # It may have been granted although we never heard, or may be yet.
            if isinstance(error, asyncio.CancelledError) or may_pass(error):
                self.background.start(self._give_back(hold, holding), "release_hold")
            raise
        try:
            yield hold, grant
        except BaseException:
            self.background.start(self._give_back(hold, holding), "release_hold")
            raise

    async def _granted(self, hold: HoldRequest, tier: str) -> Grant:
        """What billing grants; while it is away some tiers wait for it."""
        away, loop = self.limits.away, asyncio.get_running_loop()
        end = loop.time() + (away.hold_wait_s if away.hold.get(tier) == "queue" else 0.0)
        while True:
            try:
                return await self.billing.hold(hold)
            except MeshError as error:
                if error.reason not in AWAY or loop.time() >= end:
                    raise
            await asyncio.sleep(HOLD_RETRY_S)

    async def _raise_hold(self, hold: HoldRequest, prompt: Prompt) -> None:
        """A mask may be longer than what it hides.

        Raises:
            MeshError: INSUFFICIENT_QUOTA and what else refuses that.
        """
        if len(prompt.token_ids) > hold.prompt_token_count:
            hold.prompt_token_count = len(prompt.token_ids)
            await self.billing.extend(hold, hold.output_token_count_max)

    async def _give_back(self, hold: HoldRequest, holding: "asyncio.Task[Grant]") -> None:
        """Releases a hold that nobody needs, once it is known whether it was granted.

        A call that failed may still be under way: one that is not found is looked for again.
        """
        await asyncio.wait([holding])
        is_granted = not holding.cancelled() and holding.exception() is None
        for delay_s in (0.0,) if is_granted else RELEASE_DELAYS_S:
            await asyncio.sleep(delay_s)
            if await until_accepted("release", lambda: self.billing.release(hold.turn_id)):
                return


@dataclass(frozen=True, slots=True)
class _Found:
    """What the services said of a request."""

    model: ModelInfo
    thread: Thread
    prompt: Prompt
    # What the model reads.
    context: Context
    hold: HoldRequest
    grant: Grant
    screened: Screened


def _stored(ask: Ask, caller: Caller, found: _Found) -> pb.TurnPlan:
    model, thread, prompt = found.model, found.thread, found.prompt
    share = min(prompt.max_tokens, found.grant.output_token_count // ask.n)
    job = Job.of(ask, caller, replace(prompt, max_tokens=share))
    bound = found.grant.bound if share < prompt.max_tokens else None
    return pb.TurnPlan(
        turn_id=caller.turn_id,
        account_id=caller.account_id,
        tier=caller.tier,
        jurisdiction=caller.jurisdiction,
        create_time_ms=time.time_ns() // 1_000_000,
        choice_count=ask.n,
        request=job.request,
        affinity=job.affinity,
        fingerprint=model.fingerprint,
        model_created_unix_s=model.created_unix_s,
        context_token_count_max=model.context_token_count_max,
        redraws=model.draws_by_position,
        hold=found.hold,
        conversation_id=thread.id,
        conversation_is_new=thread.is_new,
        messages=_kept(found.context.of(MESSAGES), prompt) if thread.id else (),
        dropped_message_count=sum(each.message_count for each in found.context.left_out),
        left_out=map(left_out_to_stored, found.context.left_out),
        policy_version=found.screened.policy_version,
        background=found.thread.background if ask.background is None else ask.background,
        include_usage=ask.include_usage,
        safe_text=found.screened.safe_text,
        safe_category=found.screened.category,
        answer_token_count_max=prompt.max_tokens if share < prompt.max_tokens else 0,
        limit=LIMITS[bound.limit] if bound else content_pb2.LIMIT_UNSPECIFIED,
        limit_payer=PAYERS[bound.payer] if bound else content_pb2.PAYER_UNSPECIFIED,
    )


def _kept(messages: Sequence[Message], prompt: Prompt) -> list[conversation_pb2.NewMessage]:
    """The new messages that the model read: what it did not is told, and kept nowhere."""
    counts = prompt.message_token_counts[-len(messages) :]
    return [
        to_stored(NewMessage(message, count))
        for message, count in zip(messages, counts, strict=True)
    ]


@asynccontextmanager
async def running(work: Coroutine[None, None, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Runs work beside what is inside; leaving cancels it when it is not done."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        if not task.done():  # no await otherwise: between a hold and its owner nothing may cancel
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whoever awaited it knows
