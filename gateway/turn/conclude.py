"""What is kept of a turn, whichever way it ended: the settled hold, and the thread.

Both are repeated until accepted, and keyed by the turn id: whoever concludes a turn again changes
nothing.
"""

import asyncio
from collections.abc import Sequence

import structlog

from gateway import metrics
from gateway.turn.answer import Answer
from gateway.turn.calls import read
from gateway.turn.domain import FINISH_CANCELLED, Message, Usage
from gateway.turn.plan import Plan
from gateway.upstreams.billing import Billing
from gateway.upstreams.conversation import Conversation, NewMessage, to_stored
from gateway.upstreams.failures import until_accepted

# Of a turn of which nothing came here; what its node reports is charged all the same.
NOTHING = Usage(0, 0, 0)

log = structlog.get_logger()


def usage_of(plan: Plan, answers: Sequence[Answer]) -> Usage:
    """Tokens of a turn; the prompt counts once for all n answers."""
    if plan.stored.safe_text:
        return Usage(0, 0, 0)
    return Usage(
        prompt_token_count=len(plan.stored.request.prompt_token_ids),
        cached_token_count=max((answer.cached_token_count for answer in answers), default=0),
        completion_token_count=sum(len(answer.token_ids) for answer in answers),
    )


class Concluder:
    """Settles and stores."""

    def __init__(self, billing: Billing, conversation: Conversation) -> None:
        self._billing, self._conversation = billing, conversation

    async def conclude(
        self, plan: Plan, answers: Sequence[Answer], *, is_begun: bool = False
    ) -> None:
        """Returns when billing and conversation have taken the turn; whoever runs it bounds it.

        Args:
            plan: the turn.
            answers: as they ended.
            is_begun: a node took it: it may have generated what nobody here has seen.
        """
        usage = usage_of(plan, answers)
        withheld = sum(answer.withheld_token_count for answer in answers)
        unsent = sum(answer.unreleased_token_count for answer in answers) - withheld
        _count(usage, withheld, unsent)
        cut_short = any(answer.is_cut_short for answer in answers)
        if is_begun and not usage.completion_token_count and not plan.stored.safe_text:
            usage, cut_short = NOTHING, True
        settle = self._settle(plan, usage, withheld, unsent, cut_short=cut_short)
        await asyncio.gather(settle, self._store(plan, answers[0]))

    async def renew(self, plan: Plan, output_token_count: int) -> None:
        """Lets the hold of so many output tokens live on; raises MeshError."""
        await self._billing.extend(plan.stored.hold, output_token_count)

    async def _settle(
        self, plan: Plan, usage: Usage, withheld: int, unsent: int, *, cut_short: bool
    ) -> None:
        hold = plan.stored.hold
        if usage.completion_token_count or usage is NOTHING:
            await until_accepted(
                "settle",
                lambda: self._billing.settle(hold, usage, withheld, unsent, cut_short=cut_short),
            )
        else:
            await until_accepted("settle", lambda: self._billing.release(hold.turn_id))

    async def _store(self, plan: Plan, answer: Answer) -> None:
        """Keeps the new messages with the first answer; nothing when it never came to one.

        Of n answers the first is kept: a thread has one answer to a question.
        """
        nothing_said = not answer.text and answer.finish_reason == FINISH_CANCELLED
        if not plan.thread.id or plan.stored.safe_text or nothing_said:
            return
        found = read(plan, answer)
        said = NewMessage(
            Message("assistant", found.text, calls=found.calls),
            answer.released_token_count,
            found.finish_reason,
            plan.model.id,
        )
        messages = [*plan.stored.messages, to_stored(said)]
        await until_accepted(
            "store",
            lambda: self._conversation.append(plan.caller, plan.thread, plan.model.id, messages),
        )


def _count(usage: Usage, withheld_token_count: int, unsent_token_count: int) -> None:
    if usage.completion_token_count:
        metrics.TOKENS.labels("prompt").inc(usage.prompt_token_count)
        metrics.TOKENS.labels("cached").inc(usage.cached_token_count)
        metrics.TOKENS.labels("output").inc(usage.completion_token_count)
        metrics.TOKENS.labels("withheld").inc(withheld_token_count)
        metrics.TOKENS.labels("unsent").inc(unsent_token_count)
