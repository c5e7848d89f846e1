"""What the gateway tells the meter when a turn is settled."""

from chatmesh.billing.v1 import billing_pb2, billing_pb2_grpc
from gateway.turn.domain import Usage
from gateway.upstreams.billing import Billing
from tests.support.fakes import FakeBilling
from tests.support.loopback import loopback

HOLD = billing_pb2.HoldRequest(turn_id="01AAA", account_id="acc_1")
USAGE = Usage(prompt_token_count=10, cached_token_count=4, completion_token_count=7)


async def settled(*arguments: object, **more: object) -> billing_pb2.SettleRequest:
    meter = FakeBilling()
    registration = (billing_pb2_grpc.add_QuotaServiceServicer_to_server, meter)
    async with loopback([registration]) as channel:
        await Billing(channel).settle(HOLD, USAGE, *arguments, **more)
    return meter.settled["01AAA"]


async def test_a_turn_of_one_step() -> None:
    request = await settled(2)
    counts = (request.prompt_token_count, request.cached_token_count, request.output_token_count)
    assert counts == (10, 4, 7)
    assert (request.withheld_token_count, request.unsent_token_count) == (2, 0)
    assert not request.steps


async def test_unsent_tokens_and_further_steps() -> None:
    further = billing_pb2.StepUsage(step=1, prompt_token_count=20, output_token_count=3)
    request = await settled(2, 5, further_steps=[further])
    assert (request.withheld_token_count, request.unsent_token_count) == (2, 5)
    assert list(request.steps) == [further]
