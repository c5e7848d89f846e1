"""What safety makes of prompts and answers: refused, masked, cut, or answered in its own words."""

import grpc
import pytest

from chatmesh.chat.v1 import chat_pb2
from chatmesh.safety.v1 import safety_pb2
from tests.support.fakes import Fakes, Script, failure
from tests.support.gateway_turns import TURN, running_gateway
from tests.support.turn_streams import happens, rest_of


async def test_a_blocked_prompt_is_refused_before_any_generation():
    """CONTENT_FILTER."""
    async with running_gateway() as gateway:
        bad = [{"role": "user", "content": "FORBIDDEN thing"}]
        answer = await gateway.post({"messages": bad, "stream": True, "store": True})
        await gateway.background.finish()
    assert answer.status == 400
    assert answer.json["error"]["code"] == "content_filter"
    assert answer.json["error"]["message"] == "That is not something to help with."
    assert gateway.fakes.inference.requests == []
    assert gateway.fakes.billing.released == [TURN]
    assert gateway.fakes.conversation.appended == []


async def test_a_prompt_may_be_answered_with_a_safe_text_instead():
    fakes = Fakes()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_SAFE_COMPLETE
    async with running_gateway(fakes) as gateway:
        bad = [{"role": "user", "content": "FORBIDDEN thing"}]
        answer = await gateway.post({"messages": bad, "stream": True, "store": True})
        await gateway.background.finish()
    assert (answer.status, answer.text) == (200, "That is not something to help with.")
    assert answer.frames[-2][1]["choices"][0]["finish_reason"] == "content_filter"
    assert fakes.inference.requests == []
    assert fakes.billing.released == [TURN]
    assert fakes.conversation.appended == []


async def test_the_model_reads_and_the_thread_keeps_a_masked_prompt():
    fakes = Fakes()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_REDACT
    fakes.safety.bad_prompt_masks = [
        safety_pb2.Mask(start_offset=3, end_offset=12, replacement="[it]", message_index=1),
        safety_pb2.Mask(start_offset=14, end_offset=17, replacement="é", message_index=1),
    ]
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "é FORBIDDEN, abc and more"},
    ]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"messages": messages, "store": True})
        await gateway.background.finish()
    assert answer.status == 200
    masked = "é [it], \u00e9 and more"
    assert [each.content for each in fakes.tokenizer.requests[-1].messages] == ["Be kind.", masked]
    words = len(masked.split()) + 2
    assert len(fakes.inference.requests[0].prompt_token_ids) == words
    assert fakes.billing.settled[TURN].prompt_token_count == words
    kept = [each.content for each in fakes.conversation.appended[0].messages]
    assert kept[:2] == ["Be kind.", masked]


def masked_to(replacement: str) -> Fakes:
    """Fakes that mask the word FORBIDDEN at the beginning of a prompt."""
    fakes = Fakes()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_REDACT
    mask = safety_pb2.Mask(start_offset=0, end_offset=9, replacement=replacement)
    fakes.safety.bad_prompt_masks = [mask]
    return fakes


@pytest.mark.parametrize(("mask", "raised"), [("[it]", False), ("[taken out by the policy]", True)])
async def test_a_mask_longer_than_what_it_hides_is_held_before_it_is_charged(mask, raised):
    fakes = masked_to(mask)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"messages": [{"role": "user", "content": "FORBIDDEN"}]})
        await gateway.background.finish()
    assert answer.status == 200
    charged = fakes.billing.settled[TURN].prompt_token_count
    held = fakes.billing.holds[TURN].prompt_token_count
    assert (charged > held) == raised
    assert [each.prompt_token_count for each in fakes.billing.extended] == [charged] * raised


async def test_a_longer_mask_that_the_budget_does_not_cover_ends_the_turn_unused():
    """INSUFFICIENT_QUOTA."""
    fakes = masked_to("[taken out by the policy]")
    broke = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")
    fakes.billing.faults.add("Extend", broke)
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"messages": [{"role": "user", "content": "FORBIDDEN"}]})
        await gateway.background.finish()
    assert (answer.status, answer.json["error"]["code"]) == (429, "insufficient_quota")
    assert fakes.inference.requests == []
    assert fakes.billing.released == [TURN]


async def test_an_answer_is_masked_while_it_streams():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["Mail ", "a@b.de", " now", "."], gate_at=3)]
    fakes.safety.reply_masks = [
        safety_pb2.Mask(start_offset=5, end_offset=11, replacement="[email_address]")
    ]
    async with running_gateway(fakes) as gateway:
        call = gateway.call({"stream": True, "store": True})
        await happens(fakes.inference.at_gate)  # the answer has not ended
        data = b""
        while b"now" not in data:
            data += (await call.read()).data
        fakes.inference.gate.set()
        data += await rest_of(call)
    assert b"a@b.de" not in data
    assert b"[email_address]" in data
    assert fakes.safety.starts[0].accepts_masks
    kept = fakes.conversation.appended[0].messages[-1].content
    assert kept == "Mail [email_address] now."


async def test_a_halted_answer_says_why_and_may_end_with_a_safe_text():
    fakes = Fakes()
    fakes.safety.bad_reply_verdict = safety_pb2.Verdict(
        action=safety_pb2.ACTION_SAFE_COMPLETE,
        category=safety_pb2.CATEGORY_SELF_HARM,
        message="Please talk to someone.",
    )
    fakes.inference.scripts = [Script(["Good", "POISON", " hidden"])]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True, "store": True})
        whole = await gateway.post({})
        request = chat_pb2.ChatRequest(messages=[chat_pb2.Message(role=2, content="Hi")])
        typed = [each async for each in gateway.chat.Chat(request, metadata=gateway.identity())]
    assert answer.text == "Good\n\nPlease talk to someone."
    said = {"category": "self_harm", "offset": 4}
    ended = answer.frames[-2][1]["choices"][0]
    assert (ended["finish_reason"], ended["content_filter"]) == ("content_filter", said)
    choice = whole.json["choices"][0]
    assert (choice["finish_reason"], choice["content_filter"]) == ("content_filter", said)
    (finished,) = (each.choice_finished for each in typed if each.HasField("choice_finished"))
    assert (finished.filter_category, finished.filter_offset) == ("self_harm", 4)
    assert fakes.conversation.appended[0].messages[-1].finish_reason == "content_filter"


async def test_a_prompt_that_should_be_masked_nobody_knows_where_is_refused():
    fakes = Fakes()
    fakes.safety.bad_prompt_action = safety_pb2.ACTION_REDACT
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"messages": [{"role": "user", "content": "FORBIDDEN"}]})
    assert (answer.status, answer.json["error"]["code"]) == (400, "content_filter")
    assert fakes.inference.requests == []


async def test_an_answer_is_masked_where_it_has_not_left():
    fakes = Fakes()
    finding = safety_pb2.Finding(start_offset=4, end_offset=10)
    fakes.safety.reply_verdict = safety_pb2.Verdict(
        action=safety_pb2.ACTION_REDACT, findings=[finding]
    )
    fakes.safety.window = 99
    fakes.inference.scripts = [Script(["Key ABC", "DEF!"])]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True, "store": True})
    assert answer.text == "Key [redacted]!"
    assert fakes.conversation.appended[0].messages[-1].content == "Key [redacted]!"


@pytest.mark.parametrize("told", ["by its masks", "by a word"])
async def test_what_was_only_flagged_is_not_masked_at_the_end(told: str):
    fakes = Fakes()
    flagged = safety_pb2.Finding(start_offset=8, end_offset=11)
    masked = safety_pb2.Finding(start_offset=4, end_offset=7)
    # All that is to be masked came with a release; the rest leaves with the verdict.
    fakes.safety.reply_verdict = safety_pb2.Verdict(
        action=safety_pb2.ACTION_REDACT,
        findings=[masked, flagged],
        knows_masks=told == "by a word",
    )
    if told == "by its masks":
        fakes.safety.reply_masks = [
            safety_pb2.Mask(start_offset=4, end_offset=7, replacement="[key]")
        ]
    fakes.safety.window = 3
    fakes.inference.scripts = [Script(["Key ABC", " DEF"])]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
    assert answer.text == ("Key [key] DEF" if told == "by its masks" else "Key ABC DEF")


async def test_the_screen_reads_names_and_hears_of_no_operator():
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        named = {"role": "user", "content": "Hi", "name": "Jo"}
        await gateway.post({"messages": [named]})
    (request,) = fakes.safety.prompts
    assert [(each.name, each.content) for each in request.messages] == [("Jo", "Hi")]
    assert not request.has_operator_prompt
