"""Limits that bind the running stream: cut at the last whole token that is paid, and told why."""

import asyncio

import grpc
import pytest

from chatmesh.billing.v1 import billing_pb2
from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from gateway.settings import WhenAway
from mesh.chassis.errors import MeshError
from tests.support.fakes import MODEL, Fakes, Script, failure
from tests.support.gateway_turns import TURN, identity, running_gateway
from tests.support.turn_streams import PATIENCE_S

WORDS = [f" word{n}" for n in range(12)]


def granted(*counts: int, **script: object) -> Fakes:
    fakes = Fakes()
    fakes.inference.scripts = [Script(WORDS, **script)]
    fakes.billing.grants = list(counts)
    return fakes


async def test_an_answer_is_cut_at_the_last_token_that_is_paid_and_says_so():
    async with running_gateway(granted(5)) as gateway:
        answer = await gateway.post({"stream": True, "max_tokens": 50})
        whole = await gateway.post({"max_tokens": 50})
        await gateway.background.finish()
    assert answer.text == "".join(WORDS[:5])
    *_, ended, done = [data for _, data in answer.frames]
    (choice,) = ended["choices"]
    assert (choice["finish_reason"], choice["limit"]) == ("length", {"kind": "budget", "of": "key"})
    assert done == "[DONE]"
    assert whole.json["choices"][0]["limit"] == {"kind": "budget", "of": "key"}
    fakes = gateway.fakes
    assert {each.max_tokens for each in fakes.inference.requests} == {5}
    hold, settle = fakes.billing.holds[TURN], fakes.billing.settled[TURN]
    assert (hold.output_token_count_min, hold.output_token_count_max, hold.key_id) == (
        *(1, 50),
        "key_1",
    )
    # The node was through: nothing more comes of it.
    assert (settle.output_token_count, settle.unsent_token_count, settle.cut_short) == (5, 0, False)


async def test_what_was_asked_for_is_no_limit():
    async with running_gateway(granted(1 << 20)) as gateway:
        answer = await gateway.post({"max_tokens": 5})
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert "limit" not in answer.json["choices"][0]
    assert not gateway.fakes.billing.extended


async def test_grpc_clients_read_which_limit_it_was():
    async with running_gateway(granted(5)) as gateway:
        request = chat_pb2.ChatRequest(model=MODEL)
        request.messages.add(role=content_pb2.ROLE_USER, content="hi")
        events = [each async for each in gateway.chat.Chat(request, metadata=identity())]
    (ended,) = (each.choice_finished for each in events if each.HasField("choice_finished"))
    assert (ended.finish_reason, ended.limit, ended.limit_payer) == (
        content_pb2.FINISH_REASON_LENGTH,
        content_pb2.LIMIT_BUDGET,
        content_pb2.PAYER_KEY,
    )


@pytest.mark.parametrize("counts", [(5, 7, 50), (1, 50), (5, 12, 12)])
async def test_an_answer_goes_on_where_there_is_more_and_nobody_sees_the_seam(counts):
    async with running_gateway(granted(*counts)) as gateway:
        answer = await gateway.post({"stream": True, "max_tokens": 50})
        await gateway.background.finish()
    assert answer.text == "".join(WORDS)
    *_, ended, _ = [data for _, data in answer.frames]
    assert ended["choices"][0]["finish_reason"] == "stop"
    asked = [(len(r.emitted_token_ids), r.max_tokens) for r in gateway.fakes.inference.requests]
    assert asked == list(zip((0, *counts), counts, strict=False))[: len(asked)]
    assert gateway.fakes.billing.settled[TURN].output_token_count == 12


async def test_answers_of_a_turn_have_equal_shares():
    async with running_gateway(granted(9)) as gateway:
        answer = await gateway.post({"n": 4, "max_tokens": 50})
        await gateway.background.finish()
    assert [c["message"]["content"] for c in answer.json["choices"]] == ["".join(WORDS[:2])] * 4
    assert gateway.fakes.billing.settled[TURN].output_token_count == 8


async def test_whoever_adopts_a_turn_does_not_go_past_what_is_paid():
    fakes = granted(8, 8, gate_at=5)
    async with running_gateway(fakes) as first:
        call = first.call({"stream": True, "max_tokens": 50})
        await asyncio.wait_for(fakes.inference.at_gate.wait(), PATIENCE_S)
        await asyncio.sleep(0.4)  # a flush of the journal
        await first.die()
        async with running_gateway(fakes, journal=first.journal, name="gateway-2") as second:
            fakes.inference.gate.set()
            rest = await second.follow()
        call.cancel()
    assert rest.text == "".join(WORDS[:8])
    assert rest.frames[-2][1]["choices"][0]["limit"] == {"kind": "budget", "of": "key"}
    assert {each.max_tokens for each in fakes.inference.requests} == {8}


async def test_a_turn_whose_hold_others_have_taken_ends_with_the_reason():
    fakes = granted(1 << 20, gate_at=1)
    refusal = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED", payer="key")
    fakes.billing.faults.add("Extend", refusal)
    async with running_gateway(fakes, hold_lifetime_s=2) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    error, done = [data for _, data in answer.frames][-2:]
    assert (error["error"]["code"], done) == ("insufficient_quota", "[DONE]")
    assert error["error"]["metadata"] == {"payer": "key"}
    settle = fakes.billing.settled[TURN]
    assert (settle.output_token_count, settle.cut_short) == (1, True)


async def test_a_turn_that_cannot_renew_its_hold_ends_before_that_does():
    fakes = granted(1 << 20, gate_at=1)
    away = failure(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    fakes.billing.faults.add("Extend", *[away] * 20)
    async with running_gateway(fakes, hold_lifetime_s=2) as gateway:
        answer = await gateway.post({"stream": True})
    error = answer.frames[-2][1]["error"]
    assert (error["code"], error["metadata"]) == ("service_unavailable", {"service": "billing"})


async def test_tokens_left_are_told_in_headers_as_openai_does():
    fakes = Fakes()
    allowance = billing_pb2.TokenAllowance(limit=1000, remaining=940)
    allowance.reset.FromMilliseconds(12_345)
    fakes.billing.token_allowance = allowance
    async with running_gateway(fakes) as gateway:
        for body in ({}, {"stream": True}):
            headers = (await gateway.post(body)).headers
            assert headers["x-ratelimit-limit-tokens"] == "1000"
            assert headers["x-ratelimit-remaining-tokens"] == "940"
            assert headers["x-ratelimit-reset-tokens"] == "12.345s"


@pytest.mark.parametrize(
    ("tier", "status", "hold_count"), [("free", 503, 1), ("pro", 200, 4), ("admin", 200, 4)]
)
async def test_billing_away_by_tier(tier, status, hold_count):
    fakes = Fakes()
    away = failure(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    fakes.billing.faults.add("Hold", *[away] * 3)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({}, metadata=identity(tier=tier))
    assert answer.status == status
    assert fakes.billing.calls.count("Hold") == hold_count


async def test_billing_that_stays_away_is_waited_for_so_long_and_no_longer():
    fakes = Fakes()
    away = failure(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    fakes.billing.faults.add("Hold", *[away] * 1000)
    policy = WhenAway(hold_wait_s=0.3)
    async with running_gateway(fakes, away=policy) as gateway:
        answer = await gateway.post({})
    assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")
    assert 1 < fakes.billing.calls.count("Hold") < 10


@pytest.mark.parametrize("reason", ["TOKEN_RATE_EXCEEDED", "PARALLEL_EXCEEDED"])
async def test_a_limit_without_room_refuses_before_anything_runs(reason):
    fakes = Fakes()
    error = MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        reason,
        "words of billing",
        metadata={"payer": "organisation", "limit": "7"},
        retry_after_s=3.0,
    )
    fakes.billing.faults.add("Hold", error)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")
    assert answer.json["error"]["code"] == "rate_limit_exceeded"
    assert answer.json["error"]["metadata"] == {"payer": "organisation", "limit": "7"}
    assert not fakes.inference.requests


async def test_a_hold_that_is_granted_to_a_client_that_left_is_given_back():
    fakes = Fakes()
    fakes.billing.hold_gate = asyncio.Event()
    fakes.billing.faults.add("Release", failure(grpc.StatusCode.UNAVAILABLE))
    async with running_gateway(fakes) as gateway:
        call = gateway.call({"stream": True})
        await asyncio.wait_for(fakes.billing.called["Hold"].wait(), PATIENCE_S)
        call.cancel()
        await asyncio.sleep(0.05)
        assert not fakes.billing.released  # nothing is there yet
        fakes.billing.hold_gate.set()
        await asyncio.wait_for(fakes.billing.concluded.wait(), PATIENCE_S)
    assert fakes.billing.calls == ["Hold", "Release", "Release"]
    assert fakes.billing.released == list(fakes.billing.holds)
    assert not fakes.inference.requests
