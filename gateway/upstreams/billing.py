"""The meter: what a turn may cost, what it did cost."""

from collections.abc import Awaitable, Callable, Sequence

import grpc
from google.protobuf import duration_pb2

from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from gateway.turn.domain import Ask, Caller, Grant, Prompt, TokenAllowance, Usage
from gateway.turn.stored import bound_of
from gateway.upstreams.failures import translated
from mesh.chassis.errors import MeshError

HOLD_NOT_FOUND = "HOLD_NOT_FOUND"
MS = 1000


class Billing:
    """Holds, settlements and sums."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._quota = billing_pb2_grpc.QuotaServiceStub(channel)
        self._usage = billing_pb2_grpc.UsageServiceStub(channel)

    def hold_of(
        self, caller: Caller, ask: Ask, prompt: Prompt, lifetime_s: float
    ) -> pb.HoldRequest:
        """What `hold` reserves for a turn: its worst case."""
        return pb.HoldRequest(
            turn_id=caller.turn_id,
            account_id=caller.account_id,
            model=ask.model,
            prompt_token_count=len(prompt.token_ids),
            # A token for each answer.
            output_token_count_min=ask.n,
            output_token_count_max=ask.n * prompt.max_tokens,
            lifetime=_duration(lifetime_s),
            key_id=caller.key_id,
        )

    async def hold(self, hold: pb.HoldRequest) -> Grant:
        """Reserves as many of the tokens as there is room for; repeatable.

        Raises:
            MeshError: INSUFFICIENT_QUOTA, RATE_LIMIT_EXCEEDED, SERVICE_UNAVAILABLE, TIMEOUT.
        """
        with translated("billing"):
            held = await self._quota.Hold(hold)
        tokens = None
        if held.HasField("token_allowance"):
            left = held.token_allowance
            reset_s = left.reset.ToMilliseconds() / MS
            tokens = TokenAllowance(left.limit, left.remaining, reset_s)
        # Of the version before: all or nothing.
        count = held.output_token_count or hold.output_token_count_max
        return Grant(count, bound_of(held.bound.limit, held.bound.payer), tokens)

    async def extend(self, hold: pb.HoldRequest, output_token_count: int) -> None:
        """Lets a hold live for its lifetime from now, with at least the prompt that it names.

        Args:
            hold: what was held.
            output_token_count: what of it was granted, and more since; one that a crash of the
                store forgot is held again with so many.

        Raises:
            MeshError: INSUFFICIENT_QUOTA, RATE_LIMIT_EXCEEDED, SERVICE_UNAVAILABLE, TIMEOUT.
        """
        request = pb.ExtendRequest(
            turn_id=hold.turn_id,
            lifetime=hold.lifetime,
            prompt_token_count=hold.prompt_token_count,
        )
        again = pb.HoldRequest()
        again.CopyFrom(hold)
        again.output_token_count_min = again.output_token_count_max = output_token_count
        with translated("billing"):
            await self._of(again, lambda: self._quota.Extend(request))

    async def raise_hold(self, hold: pb.HoldRequest, output_token_count: int) -> Grant:
        """Raises a hold towards so many output tokens, as far as there is room.

        Raises:
            MeshError: SERVICE_UNAVAILABLE, TIMEOUT; INTERNAL_ERROR: the hold is not known.
        """
        request = pb.ExtendRequest(
            turn_id=hold.turn_id,
            lifetime=hold.lifetime,
            prompt_token_count=hold.prompt_token_count,
            output_token_count_max=output_token_count,
            output_token_count_min=1,
        )
        with translated("billing"):
            held = await self._quota.Extend(request)
        return Grant(held.output_token_count, bound_of(held.bound.limit, held.bound.payer))

    async def settle(
        self,
        hold: pb.HoldRequest,
        usage: Usage,
        withheld_token_count: int,
        unsent_token_count: int = 0,
        further_steps: Sequence[pb.StepUsage] = (),
        *,
        cut_short: bool = False,
    ) -> None:
        """Replaces the hold by what was used. Repeatable.

        Args:
            hold: what `hold` returned.
            usage: of step 0, the turn's first model call; withheld and unsent tokens included.
            withheld_token_count: of these, withheld by safety.
            unsent_token_count: of these, neither released to a reader nor withheld.
            further_steps: the model calls after the first.
            cut_short: nodes may have generated more than this: they were not through.
        """
        request = pb.SettleRequest(
            turn_id=hold.turn_id,
            prompt_token_count=usage.prompt_token_count,
            cached_token_count=usage.cached_token_count,
            output_token_count=usage.completion_token_count,
            withheld_token_count=withheld_token_count,
            unsent_token_count=unsent_token_count,
            steps=further_steps,
            cut_short=cut_short,
        )
        with translated("billing"):
            await self._of(hold, lambda: self._quota.Settle(request))

    async def release(self, turn_id: str) -> bool:
        """Gives the hold back: nothing was generated. Repeatable; False: there is none."""
        with translated("billing"):
            try:
                await self._quota.Release(pb.ReleaseRequest(turn_id=turn_id))
            except grpc.aio.AioRpcError as error:
                if MeshError.from_rpc(error).reason != HOLD_NOT_FOUND:
                    raise
                return False
            return True

    async def _of(self, hold: pb.HoldRequest, call: Callable[[], Awaitable[object]]) -> None:
        """Makes a call about a hold; one that a crash of the store forgot is held again first."""
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            if MeshError.from_rpc(error).reason != HOLD_NOT_FOUND:
                raise
            await self._quota.Hold(hold)
            await call()

    async def usage(self, account_id: str, period: str) -> pb.GetUsageResponse:
        """The sum over an account's ledger; period "YYYY-MM", empty for this month."""
        with translated("billing"):
            return await self._usage.GetUsage(
                pb.GetUsageRequest(account_id=account_id, period=period)
            )


def _duration(seconds: float) -> duration_pb2.Duration:
    result = duration_pb2.Duration()
    result.FromMilliseconds(int(seconds * 1000))
    return result
