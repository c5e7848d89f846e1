"""A turn belongs to the system: it is followed, stopped, joined and adopted, whoever began it."""

import asyncio
import contextlib

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from gateway.turn.journal import RUNNING
from tests.support.fakes import Fakes, Script, failure
from tests.support.gateway_turns import TURN, failed, identity, running_gateway
from tests.support.memory_journal import MemoryJournal
from tests.support.turn_streams import (
    OTHER,
    PATIENCE_S,
    WHOLE,
    WORDS,
    gated,
    key,
    last_id,
    read_until,
    rest_of,
    until,
)


async def test_every_cursor_leads_to_exactly_the_rest():
    async with running_gateway(gated(99)) as gateway:
        whole = await gateway.post({"stream": True})
        await gateway.background.finish()
        ids = [each for each, _ in whole.frames]
        for index, cursor in enumerate(ids):
            rest = await gateway.follow(after=cursor)
            assert rest.status == 200
            behind = [frame for frame in whole.frames if frame[0] not in ids[: index + 1]]
            # The last event's frames share its cursor: who has one of them still gets the end.
            wanted = [data for _, data in behind] or ["[DONE]"]
            assert [data for _, data in rest.frames] == wanted
        again = await gateway.follow()
    assert again.frames == whole.frames
    assert again.headers["x-turn-id"] == TURN
    assert again.headers["x-turn-journal"] == "on"


async def test_a_cursor_inside_an_event_leads_to_the_rest_of_its_text():
    """Another owner may have cut the text elsewhere."""
    async with running_gateway() as gateway:
        gateway.fakes.inference.scripts = [Script(["αβγδ"])]
        await gateway.post({"stream": True})
        rest = await gateway.follow(after=f"{TURN}:0:4")
        torn = await gateway.follow(after=f"{TURN}:0:3")
    assert rest.text == "γδ"
    assert torn.frames[0][1]["error"]["code"] == "cursor_invalid"


async def test_an_event_source_goes_on_by_itself():
    async with running_gateway(gated(99)) as gateway:
        whole = await gateway.post({"stream": True})
        cursor = whole.frames[4][0]
        headers = (*identity(), ("last-event-id", cursor))
        rest = await gateway.follow(metadata=headers)
    assert rest.text == WHOLE[len("".join(WORDS[:4])) :]


async def test_a_reader_comes_back_while_the_turn_runs():
    async with running_gateway(gated(), reader_grace_s=30) as gateway:
        call = gateway.call({"stream": True})
        begun = await read_until(call, "wörd5")
        call.cancel()
        following = gateway.following(after=last_id(begun))
        assert (await following.read()).data == b": following\n\n"
        gateway.fakes.inference.gate.set()
        rest = await rest_of(following)
        await gateway.background.finish()
    assert len(gateway.fakes.inference.requests) == 1
    assert rest.count(b"w\xc3\xb6rd") == 6
    assert rest.endswith(b"data: [DONE]\n\n")
    assert gateway.fakes.billing.settled[TURN].output_token_count == 12


async def test_nobody_reads_and_the_grace_ends_the_turn():
    """Going away is not Stop, but it is not for ever either."""
    async with running_gateway(gated(), reader_grace_s=0.0) as gateway:
        call = gateway.call({"stream": True, "store": True})
        await read_until(call, "wörd5")
        call.cancel()
        await asyncio.wait_for(gateway.fakes.billing.concluded.wait(), PATIENCE_S)
        await until(lambda: gateway.journal.turns[TURN].head.state != RUNNING)
        state = (await gateway.state()).json
    assert state["status"] == "cancelled"
    assert state["choices"][0]["cancelled"] is True
    assert gateway.fakes.billing.settled[TURN].output_token_count == 6
    assert gateway.fakes.conversation.appended[0].messages[-1].finish_reason == "cancelled"


async def test_a_background_turn_runs_on_and_is_there_when_they_return():
    async with running_gateway(gated()) as gateway:
        accepted = await gateway.post({"background": True, "store": True})
        assert (accepted.status, accepted.json["status"]) == (202, "running")
        assert accepted.json["id"] == TURN
        assert TURN in gateway.journal.turns
        gateway.fakes.inference.gate.set()
        whole = await gateway.follow()
        await gateway.background.finish()
        await until(lambda: gateway.journal.turns[TURN].head.state != RUNNING)
        state = (await gateway.state()).json
    assert whole.text == WHOLE
    assert (state["status"], state["choices"][0]["text"]) == ("completed", WHOLE)
    assert state["usage"]["completion_tokens"] == 12
    assert gateway.fakes.conversation.appended[0].messages[-1].content == WHOLE


async def test_a_conversation_whose_owner_asked_for_it_is_answered_in_the_background():
    async with running_gateway(gated(99)) as gateway:
        first = await gateway.post({"store": True})
        thread = first.json["conversation_id"]
        gateway.fakes.conversation.background[thread] = True
        gateway.fakes.inference.scripts = [Script(WORDS, gate_at=6)]
        call = gateway.call({"conversation_id": thread, "stream": True})
        begun = await read_until(call, "wörd5")
        call.cancel()
        turn = last_id(begun).split(":")[0]
        await asyncio.sleep(0.3)  # longer than the grace, which is none
        gateway.fakes.inference.gate.set()
        assert (await gateway.follow(turn)).text == WHOLE


@pytest.mark.parametrize("redraws", [True, False])
@pytest.mark.parametrize("choices", [1, 2])
async def test_another_gateway_goes_on_when_one_dies(redraws, choices):
    """The same bytes as of an undisturbed turn, from the cursor that the client had."""
    fakes, journal = gated(), MemoryJournal()
    fakes.inference.draws_by_position = redraws
    async with (
        running_gateway(fakes, journal=journal, reader_grace_s=30) as first,
        running_gateway(fakes, journal=journal, name="gateway-2", reader_grace_s=30) as second,
    ):
        call = first.call({"stream": True, "n": choices, "store": True})
        begun = await read_until(call, "wörd5")
        await first.die()
        call.cancel()
        following = second.following(after=last_id(begun))
        assert (await following.read()).data == b": following\n\n"
        await until(lambda: journal.turns[TURN].head.epoch == 1)
        fakes.inference.gate.set()
        rest = await rest_of(following)
        whole = await second.follow()
        await second.background.finish()
    both = begun + rest
    assert both.count("wörd".encode()) == 12 * choices
    assert f"id: {TURN}:1:".encode() in rest
    numbers = [int(line.split(b":")[3]) for line in both.split(b"\n") if line.startswith(b"id: ")]
    assert numbers == sorted(numbers)
    assert whole.text == WHOLE
    assert fakes.billing.settled[TURN].output_token_count == 12 * choices
    assert [each.messages[-1].content for each in fakes.conversation.appended] == [WHOLE]


async def test_an_orphan_is_adopted_although_nobody_asks_for_it():
    fakes, journal = gated(), MemoryJournal()
    async with (
        running_gateway(fakes, journal=journal) as first,
        running_gateway(fakes, journal=journal, name="gateway-2") as second,
    ):
        await first.post({"background": True})
        await until(lambda: journal.turns[TURN].head.number > 20)
        await first.die()
        await until(lambda: journal.turns[TURN].head.epoch == 1)
        fakes.inference.gate.set()
        await until(lambda: journal.turns[TURN].head.state != RUNNING)
        state = (await second.state()).json
    assert (state["status"], state["choices"][0]["text"]) == ("completed", WHOLE)
    assert journal.turns[TURN].head.epoch_numbers[0] > 20


async def test_a_gateway_that_slept_finds_out_and_its_readers_read_on():
    """Fencing: it neither appends nor settles."""
    fakes, journal = gated(), MemoryJournal()
    async with (
        running_gateway(fakes, journal=journal, reader_grace_s=30) as first,
        running_gateway(fakes, journal=journal, name="gateway-2", reader_grace_s=30) as second,
    ):
        call = first.call({"stream": True})
        begun = await read_until(call, "wörd5")
        await until(lambda: journal.turns[TURN].head.number > 20)
        first.link.is_cut = True  # for longer than its lease: to the others it is no more
        await until(lambda: journal.turns[TURN].head.epoch == 1)
        first.link.is_cut = False
        fakes.inference.gate.set()
        rest = await rest_of(call)
        await second.background.finish()
        await first.background.finish()
    assert (begun + rest).count("wörd".encode()) == 12
    assert rest.endswith(b"data: [DONE]\n\n")
    assert journal.turns[TURN].head.owner.startswith("gateway-2.")
    assert fakes.billing.calls.count("Settle") == 1


async def test_stop_ends_generation_and_keeps_what_was_said():
    async with running_gateway(gated(), reader_grace_s=30) as gateway:
        call = gateway.call({"stream": True, "store": True})
        begun = await read_until(call, "wörd5")
        stopped = await gateway.stop()
        rest = await rest_of(call)
        again = await gateway.stop()
        await gateway.background.finish()
    assert stopped.status == again.status == 200
    assert gateway.fakes.inference.cancelled.is_set()
    assert b'"finish_reason":"stop","cancelled":true' in rest
    assert (begun + rest).endswith(b"data: [DONE]\n\n")
    assert gateway.fakes.billing.settled[TURN].output_token_count == 6
    kept = gateway.fakes.conversation.appended[0].messages[-1]
    assert (kept.content, kept.finish_reason) == ("".join(WORDS[:6]), "cancelled")


@pytest.mark.parametrize("owner_dies", [False, True])
async def test_stop_reaches_a_turn_at_another_gateway(owner_dies):
    fakes, journal = gated(), MemoryJournal()
    async with (
        running_gateway(fakes, journal=journal, reader_grace_s=30) as first,
        running_gateway(fakes, journal=journal, name="gateway-2", reader_grace_s=30) as second,
    ):
        call = first.call({"stream": True})
        await read_until(call, "wörd5")
        await until(lambda: journal.turns[TURN].head.number > 20)
        if owner_dies:
            await first.die()
        stopped = await second.stop()
        assert stopped.status == 200
        await until(lambda: journal.turns[TURN].head.state == "cancelled")
        call.cancel()
        await second.background.finish()
    assert fakes.billing.settled[TURN].output_token_count == 6


async def test_a_repeated_post_joins_the_turn():
    async with running_gateway(gated(), reader_grace_s=30) as gateway:
        call = gateway.call({"stream": True}, key("once", TURN))
        await read_until(call, "wörd5")
        other = gateway.call({"stream": True}, key("once", TURN[:-2] + "99"))
        gateway.fakes.inference.gate.set()
        joined = await rest_of(other)
        await read_until(call, "[DONE]")
        after = await gateway.post({"stream": True}, key("once", TURN[:-2] + "98"))
        await gateway.background.finish()
    assert dict(await other.initial_metadata())["x-turn-id"] == TURN
    assert joined.count("wörd".encode()) == 12
    assert after.text == WHOLE
    assert len(gateway.fakes.inference.requests) == 1
    assert list(gateway.fakes.billing.holds) == [TURN]


async def test_an_idempotency_key_means_one_request():
    """IDEMPOTENCY_KEY_REUSED."""
    async with running_gateway() as gateway:
        first = await gateway.post({}, key("once", TURN))
        reused = await gateway.post({"temperature": 0.5}, key("once", TURN[:-2] + "98"))
        stranger = await gateway.post(
            {"temperature": 0.5}, (*identity("acc_2", turn=TURN[:-2] + "97"), key("once", "")[-1])
        )
        ugly = await gateway.post({}, key("x" * 256, TURN[:-2] + "96"))
    assert first.status == stranger.status == 200
    assert (reused.status, reused.json["error"]["code"]) == (409, "idempotency_key_reused")
    assert (ugly.status, ugly.json["error"]["param"]) == (400, "idempotency_key")


async def test_a_turn_that_nothing_came_of_may_be_tried_again_under_its_key():
    fakes = Fakes()
    crash = failure(grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    fakes.inference.faults.add("Generate", crash)
    async with running_gateway(fakes) as gateway:
        refused = await gateway.post({}, key("once", TURN))
        await until(lambda: not gateway.journal.claims)
        accepted = await gateway.post({}, key("once", TURN[:-2] + "98"))
        bad = await gateway.post({"n": 9}, key("twice", TURN[:-2] + "97"))
    assert (refused.status, accepted.status, bad.status) == (500, 200, 400)
    assert TURN not in gateway.journal.turns


async def test_the_turn_of_a_gateway_that_died_while_it_planned_is_planned_anew():
    fakes, journal = Fakes(), MemoryJournal()
    fakes.billing.hold_gate = asyncio.Event()
    async with (
        running_gateway(fakes, journal=journal) as first,
        running_gateway(fakes, journal=journal, name="gateway-2") as second,
    ):
        call = first.call({}, key("once", TURN))
        reading = asyncio.create_task(call.read())
        await asyncio.wait_for(fakes.billing.called["Hold"].wait(), PATIENCE_S)
        await first.die()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        fakes.billing.hold_gate.set()
        answer = await second.post({}, key("once", TURN[:-2] + "98"))
    assert answer.status == 200
    assert answer.headers["x-turn-id"] == TURN
    assert list(fakes.billing.holds) == [TURN]


async def test_an_id_is_no_credential():
    """TURN_NOT_FOUND."""
    async with running_gateway() as gateway:
        await gateway.post({"stream": True})
        answers = [
            await gateway.follow(metadata=OTHER),
            await gateway.state(metadata=OTHER),
            await gateway.stop(metadata=OTHER),
            await gateway.follow("01JD0000000000000000000077"),
        ]
        mine = await gateway.state()
    assert {(each.status, each.json["error"]["code"]) for each in answers} == {
        (404, "turn_not_found")
    }
    assert mine.status == 200


@pytest.mark.parametrize(
    "cursor",
    ["x", f"{TURN}:0", f"{TURN}:0:x", f"{TURN}:-1:2", f"{TURN}:9:2", "01JD:0:2", f"{TURN}:0:999"],
)
async def test_a_cursor_is_checked_and_never_guessed(cursor):
    """CURSOR_INVALID."""
    async with running_gateway() as gateway:
        await gateway.post({"stream": True})
        answer = await gateway.follow(after=cursor)
    assert (answer.status, answer.json["error"]["code"]) == (400, "cursor_invalid")


async def test_the_readers_of_a_turn_that_failed_are_told_and_do_not_wait():
    fakes, journal = Fakes(), MemoryJournal()
    crash = failure(grpc.StatusCode.INTERNAL, "ENGINE_FAILED")
    fakes.inference.scripts = [Script(["Half", " an"], break_after=2, error=crash)]
    async with (
        running_gateway(fakes, journal=journal) as first,
        running_gateway(fakes, journal=journal, name="gateway-2") as second,
    ):
        await first.post({"stream": True})
        await first.background.finish()
        await until(lambda: journal.turns[TURN].head.state == "failed")
        here, there = await first.follow(), await second.follow()
        state = (await second.state()).json
    for answer in (here, there):
        assert answer.text == "Half an"
        assert answer.frames[-2][1]["error"]["code"] == "internal_error"
        assert answer.frames[-1][1] == "[DONE]"
    assert (state["status"], state["error"]["code"]) == ("failed", "internal_error")


async def test_a_client_that_leaves_at_once_leaves_nothing_behind():
    """Not queued for ever: the hold is given back, the turn is forgotten."""
    fakes = Fakes()
    fakes.inference.scripts = [Script(WORDS, gate_at=0)]
    async with running_gateway(fakes) as gateway:
        call = gateway.call({"stream": True})
        reading = asyncio.create_task(call.read())
        await until(gateway.is_taken)
        call.cancel()
        await asyncio.wait([reading])
        await asyncio.wait_for(fakes.inference.cancelled.wait(), PATIENCE_S)
        await asyncio.wait_for(fakes.billing.concluded.wait(), PATIENCE_S)
        await gateway.background.finish()
    # Settled, for a node took it and may report more than came here.
    assert fakes.billing.settled[TURN].output_token_count == 0
    assert fakes.billing.released == []


async def test_the_typed_face_follows_cancels_and_looks():
    fakes = gated()
    async with running_gateway(fakes, reader_grace_s=30) as gateway:
        message = chat_pb2.Message(role=content_pb2.ROLE_USER, content="How are you?")
        request = chat_pb2.ChatRequest(messages=[message], idempotency_key="once")
        call = gateway.chat.Chat(request, metadata=identity())
        events = []
        while not events or "wörd5" not in events[-1].delta.text:
            events.append(await call.read())
        call.cancel()
        state = await gateway.chat.GetTurn(
            chat_pb2.GetTurnRequest(turn_id=TURN), metadata=identity()
        )
        following = gateway.chat.Follow(
            chat_pb2.FollowRequest(turn_id=TURN, after=events[-1].cursor), metadata=identity()
        )
        await gateway.chat.Cancel(chat_pb2.CancelRequest(turn_id=TURN), metadata=identity())
        rest = [response.event async for response in following]
        joined = [
            each
            async for each in gateway.chat.Chat(request, metadata=identity(turn=TURN[:-1] + "9"))
        ]
        await gateway.background.finish()
        stopped = await gateway.chat.GetTurn(
            chat_pb2.GetTurnRequest(turn_id=TURN), metadata=identity()
        )
        gone = await failed(
            gateway.chat.Follow(chat_pb2.FollowRequest(turn_id=TURN), metadata=OTHER)
        )
    assert state.turn.state == chat_pb2.TURN_STATE_RUNNING
    assert state.turn.choices[0].text == "".join(WORDS[:6])
    assert [each.WhichOneof("event") for each in rest] == ["choice_finished", "finished"]
    assert rest[0].choice_finished.finish_reason == content_pb2.FINISH_REASON_CANCELLED
    assert "".join(each.delta.text for each in joined) == "".join(WORDS[:6])
    assert stopped.turn.state == chat_pb2.TURN_STATE_CANCELLED
    assert stopped.turn.usage.completion_token_count == 6
    assert gone.code() is grpc.StatusCode.NOT_FOUND
