"""Every way a turn can end: what is shown, stored, settled and cancelled."""

import asyncio

import grpc
import pytest
from prometheus_client import REGISTRY

from gateway.turn.background import Background
from gateway.turn.feed import WAITING_BYTES_MAX
from tests.support.fakes import Fakes, Script, failure
from tests.support.gateway_turns import TURN, running_gateway
from tests.support.turn_streams import happens, rest_of, until


def cancel_count(bound: str = "+Inf") -> float:
    labels = {"le": bound}
    return REGISTRY.get_sample_value("chatmesh_gateway_cancel_seconds_bucket", labels) or 0.0


async def test_a_hold_that_the_store_forgot_is_held_again_and_settled():
    fakes = Fakes()
    gone = failure(grpc.StatusCode.NOT_FOUND, "HOLD_NOT_FOUND")
    fakes.billing.faults.add("Settle", gone)
    async with running_gateway(fakes) as gateway:
        await gateway.post({})
    assert fakes.billing.calls == ["Hold", "Settle", "Hold", "Settle"]
    assert fakes.billing.settled[TURN].output_token_count == 4


async def test_nothing_is_generated_without_a_hold():
    fakes = Fakes()
    broke = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")
    fakes.billing.faults.add("Hold", broke)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({})
    assert (answer.status, answer.json["error"]["code"]) == (429, "insufficient_quota")
    assert answer.headers["x-should-retry"] == "false"
    assert fakes.inference.requests == []
    assert "Settle" not in fakes.billing.calls


@pytest.mark.parametrize("stream", [True, False])
async def test_a_blocked_answer_is_cut_and_its_rest_neither_shown_nor_stored(stream):
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Good", " start", "POISON", " hidden"], gate_at=3)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": stream, "store": True})
        await happens(fakes.inference.cancelled)
        await gateway.background.finish()
    assert answer.status == 200
    if stream:
        assert answer.text == "Good start"
        assert answer.frames[-2][1]["choices"][0]["finish_reason"] == "content_filter"
        assert answer.frames[-1][1] == "[DONE]"
    else:
        choice = answer.json["choices"][0]
        assert choice["message"]["content"] == "Good start"
        assert choice["finish_reason"] == "content_filter"
    assert b"POISON" not in answer.body
    settled = fakes.billing.settled[TURN]
    assert (settled.output_token_count, settled.withheld_token_count) == (3, 1)
    stored = fakes.conversation.appended[0].messages[-1]
    assert (stored.content, stored.finish_reason) == ("Good start", "content_filter")
    assert stored.token_count == 2


async def test_a_client_that_leaves_before_the_first_token():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["never"], gate_at=0)]
    before = cancel_count(), cancel_count("0.25")
    async with running_gateway(fakes) as gateway:
        call = gateway.call({"stream": True, "store": True})
        reading = asyncio.create_task(call.read())
        await until(gateway.is_taken)
        call.cancel()
        await asyncio.wait([reading])
        await happens(fakes.inference.cancelled)
        await happens(fakes.billing.concluded)
        await gateway.background.finish()
    settle = fakes.billing.settled[TURN]  # what the node may have made of it stays reserved
    assert (settle.output_token_count, settle.prompt_token_count, settle.cut_short) == (0, 0, True)
    assert fakes.conversation.appended == []
    assert cancel_count() == before[0] + 1
    assert cancel_count("0.25") == before[1] + 1


async def test_a_client_that_leaves_in_the_middle():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["So", " far", " never"], gate_at=2)]
    async with running_gateway(fakes) as gateway:
        call = gateway.call({"stream": True, "store": True})
        seen = b""
        while b" far" not in seen:
            seen += (await call.read()).data
        call.cancel()
        await happens(fakes.inference.cancelled)
        await happens(fakes.billing.concluded)
        await happens(fakes.conversation.stored)
        await gateway.background.finish()
    settled = fakes.billing.settled[TURN]
    assert (settled.prompt_token_count, settled.output_token_count) == (3, 2)
    stored = fakes.conversation.appended[0].messages[-1]
    assert (stored.content, stored.finish_reason) == ("So far", "cancelled")


async def test_a_failure_before_the_first_byte_is_a_status():
    fakes = Fakes()
    crash = failure(grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    fakes.inference.faults.add("Generate", crash)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
    assert fakes.billing.released == [TURN]


async def test_a_failure_after_a_node_accepted_but_before_the_first_byte_is_a_status_too():
    fakes = Fakes()
    crash = failure(grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    fakes.inference.scripts = [Script(["never"], break_after=0, error=crash)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
    settle = fakes.billing.settled[TURN]  # what the node may have made of it stays reserved
    assert (settle.output_token_count, settle.prompt_token_count, settle.cut_short) == (0, 0, True)


async def test_silence_before_the_first_token_is_filled_with_heartbeats():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["late"], gate_at=0)]
    async with running_gateway(fakes, heartbeat_s=0.05) as gateway:
        call = gateway.call({"stream": True})
        first, second = await call.read(), await call.read()
        fakes.inference.gate.set()
        rest = await rest_of(call)
    assert first.content_type == "text/event-stream"
    assert b'"role":"assistant"' in first.data
    assert first.data.endswith(b": ping\n\n")
    assert second.data == b": ping\n\n"
    assert b'"late"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_failure_after_the_first_byte_is_an_event_and_the_end():
    fakes = Fakes()
    crash = failure(grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    fakes.inference.scripts = [Script(["Half", " an"], break_after=2, error=crash)]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True, "store": True})
        await gateway.background.finish()
    assert answer.status == 200
    frames = [data for _, data in answer.frames]
    assert frames[-2]["error"]["code"] == "internal_error"
    assert frames[-1] == "[DONE]"
    assert fakes.billing.settled[TURN].output_token_count == 2
    assert answer.text == "Half an"
    stored = fakes.conversation.appended[0].messages[-1]
    assert (stored.content, stored.finish_reason) == ("Half an", "cancelled")


async def test_safety_that_breaks_lets_nothing_more_out():
    fakes = Fakes()
    fakes.safety.break_reply_after = [1, 0, 0]
    fakes.inference.scripts = [Script(["One", " two", " three"], gate_at=2)]
    async with running_gateway(fakes, safety_attempt_count_max=2) as gateway:
        answer = await gateway.post({"stream": True})
        await happens(fakes.inference.cancelled)
        await gateway.background.finish()
    assert "One".startswith(answer.text)
    error = answer.frames[-2][1]["error"]
    assert error["code"] == "service_unavailable"
    assert error["metadata"] == {"service": "safety"}
    assert TURN in fakes.billing.settled


@pytest.mark.parametrize("window", [0, 4])
async def test_a_safety_process_that_dies_is_replaced_in_the_middle(window):
    fakes = Fakes()
    fakes.safety.window = window
    fakes.safety.break_reply_after = [1, 0, 0, 2]
    words = [f" wörd{number}" for number in range(12)]
    fakes.inference.scripts = [Script([*words, "POISON", "hidden"])]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    assert answer.text == "".join(words)
    assert answer.frames[-2][1]["choices"][0]["finish_reason"] == "content_filter"
    released = [start.released_text for start in fakes.safety.starts]
    assert len(released) >= 4
    assert released == sorted(released, key=len)
    assert all(answer.text.startswith(text) for text in released)


@pytest.mark.parametrize("undecided_count", [1, 2])
async def test_safety_that_says_nothing_to_the_end_is_asked_again(undecided_count):
    fakes = Fakes()
    fakes.safety.window, fakes.safety.undecided_count = 1000, undecided_count
    async with running_gateway(fakes, safety_stall_s=0.05) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    assert answer.text == "Hello wide world."
    assert answer.frames[-1][1] == "[DONE]"
    assert len(fakes.safety.starts) == undecided_count + 1
    assert fakes.billing.settled[TURN].output_token_count == 4


async def test_a_turn_that_makes_no_progress_ends_and_says_so():
    fakes = Fakes()
    fakes.safety.undecided_count = 1
    async with running_gateway(fakes, turn_stall_s=0.2) as gateway:
        answer = await gateway.post({"stream": True})
        await gateway.background.finish()
    assert answer.text == "Hello wide world."
    assert answer.frames[-2][1]["error"]["code"] == "internal_error"
    assert answer.frames[-1][1] == "[DONE]"
    assert fakes.billing.settled[TURN].output_token_count == 4


async def test_a_slow_node_is_no_stuck_turn():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Slow", " but", " sure"], gate_at=1)]
    async with running_gateway(fakes, turn_stall_s=0.1, reader_grace_s=5) as gateway:
        call = gateway.call({"stream": True})
        messages = aiter(call)
        assert (await anext(messages)).data
        await asyncio.sleep(0.5)  # several times the watchdog's patience
        fakes.inference.gate.set()
        rest = b"".join([message.data async for message in messages])
    assert b"[DONE]" in rest
    assert b"error" not in rest


async def test_the_time_for_a_turn_runs_out():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Slow", " never"], gate_at=1)]
    async with running_gateway(fakes, turn_duration_s_max=0.3) as gateway:
        answer = await gateway.post({"stream": True})
        await happens(fakes.inference.cancelled)
        await happens(fakes.billing.concluded)
    assert answer.text == "Slow"
    assert answer.frames[-2][1]["error"]["code"] == "timeout"
    assert answer.frames[-1][1] == "[DONE]"


async def test_settling_and_storing_are_repeated_until_accepted():
    fakes = Fakes()
    away = failure(grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    fakes.billing.faults.add("Settle", away)
    fakes.conversation.faults.add("AppendMessages", away)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"store": True})
        await gateway.background.finish()
    assert answer.status == 200
    assert TURN in fakes.billing.settled
    assert len(fakes.conversation.appended) == 1


async def test_the_hold_is_renewed_while_the_turn_runs():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["a", "b"], gate_at=1)]
    async with running_gateway(fakes, hold_lifetime_s=2) as gateway:
        posting = asyncio.create_task(gateway.post({}))
        await happens(fakes.billing.called["Extend"])
        fakes.inference.gate.set()
        assert (await posting).status == 200


async def test_a_reader_that_stalls_bounds_what_is_read_and_ends():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["x" * 4000 + " "] * 1000)]
    async with running_gateway(fakes, reader_stall_s_max=0.3) as gateway:
        call = gateway.call({"stream": True})
        await call.read()
        await happens(fakes.billing.concluded)
        call.cancel()
    # 4 MB were asked for; what the gateway took is bounded by its limit and the client's windows.
    assert fakes.billing.settled[TURN].output_token_count * 4000 < 2 * WAITING_BYTES_MAX


async def test_background_work_is_bounded_and_waited_for():
    background = Background(limit_s=0.05)
    task = background.start(asyncio.sleep(60), "never")
    await background.finish()
    assert task.done()
