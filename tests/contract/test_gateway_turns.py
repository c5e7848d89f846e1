"""Whole turns through the gateway, word for word."""

import json

from tests.support.fakes import Fakes, Script
from tests.support.gateway_turns import TURN, question, running_gateway

HEAD = (
    f'{{"id":"chatcmpl-{TURN}","object":"chat.completion.chunk","created":CREATED,'
    '"model":"chatmesh-tiny","system_fingerprint":"fp_0121b50b4c"'
)


def golden(body: bytes) -> str:
    """A body without what time changes."""
    text = body.decode()
    created = json.loads(text[text.index("{") : text.index("\n\n")])["created"]
    return text.replace(str(created), "CREATED")


async def test_a_stream_word_for_word():
    async with running_gateway() as gateway:
        gateway.fakes.inference.scripts = [Script(["Hi", ' "you"\n✓'])]
        answer = await gateway.post({"stream": True})
    role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
    quoted = r" \"you\"\n✓"
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert golden(answer.body) == (
        f'id: {TURN}:0:0\ndata: {HEAD},"choices":[{{"index":0,{role}}}]}}\n\n'
        f'id: {TURN}:0:2\ndata: {HEAD},"choices":[{{"index":0,"delta":{{"content":"Hi"}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
        f'id: {TURN}:0:12\ndata: {HEAD},"choices":[{{"index":0,"delta":{{"content":"{quoted}"}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
        f'id: {TURN}:0:13\ndata: {HEAD},"choices":[{{"index":0,"delta":{{}},'
        '"logprobs":null,"finish_reason":"stop"}]}\n\n'
        f"id: {TURN}:0:14\ndata: [DONE]\n\n"
    )


async def test_usage_is_a_chunk_of_its_own_and_null_before():
    async with running_gateway() as gateway:
        answer = await gateway.post({"stream": True, "stream_options": {"include_usage": True}})
    *chunks, last, done = [data for _, data in answer.frames]
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_without_stream_one_json_body():
    async with running_gateway() as gateway:
        answer = await gateway.post({})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert len(answer.messages) == 1
    shown = answer.json
    assert shown["object"] == "chat.completion"
    assert shown["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello wide world.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert shown["usage"]["total_tokens"] == 7
    assert "conversation_id" not in shown


async def test_several_answers_run_beside_each_other_with_seeds_of_their_own():
    fakes = Fakes()
    said = {0: ["zero"], 1: ["one", " two"]}
    fakes.inference.choose = lambda request: Script(said[request.choice_index])
    async with running_gateway(fakes) as gateway:
        whole = await gateway.post({"n": 2, "seed": 7})
        streamed = await gateway.post({"n": 2, "stream": True})
    texts = [choice["message"]["content"] for choice in whole.json["choices"]]
    assert texts == ["zero", "one two"]
    assert whole.json["usage"]["completion_tokens"] == 3
    assert whole.json["usage"]["prompt_tokens"] == 3
    assert sorted(each.sampling.seed for each in fakes.inference.requests[:2]) == [7, 8]
    seeds = {each.sampling.seed for each in fakes.inference.requests[2:]}
    assert len(seeds) == 2
    assert fakes.billing.holds[TURN].output_token_count_max > 4096
    texts = ["", ""]
    for _, data in streamed.frames[:-1]:
        for choice in data["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["zero", "one two"]
    ids = [int(each.split(":")[2]) for each, _ in streamed.frames]
    assert ids == sorted(ids)


async def test_what_was_asked_reaches_the_node_and_the_tokenizer():
    asked = question(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "21 degrees", "tool_call_id": "x"},
        ],
        stop="END",
        max_completion_tokens=9,
        temperature=0,
        top_p=0.5,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-0.5,
        logit_bias={"17": -100},
        user="someone",
        a_field_of_tomorrow={"x": 1},
    )
    async with running_gateway() as gateway:
        answer = await gateway.post(json.dumps(asked).encode())
    assert answer.status == 200
    encoded = gateway.fakes.tokenizer.requests[0]
    assert [(each.role, each.content) for each in encoded.messages] == [
        (1, "Be brief."),
        (2, "a b"),
        (3, ""),
        (4, "21 degrees"),
    ]
    assert encoded.max_tokens == 9
    request = gateway.fakes.inference.requests[0]
    assert request.max_tokens == 9
    assert list(request.stop.strings) == ["END"]
    assert (request.sampling.temperature, request.sampling.top_p) == (0, 0.5)
    assert request.sampling.seed == (1 << 64) - 1
    assert request.sampling.presence_penalty == 1
    assert request.sampling.frequency_penalty == -0.5
    assert dict(request.sampling.logit_bias) == {17: -100}
    assert "acc_1" not in request.cache_salt


async def test_log_probabilities():
    fakes = Fakes()
    fakes.inference.scripts = [Script(["é", "b"])]
    async with running_gateway(fakes) as gateway:
        whole = await gateway.post({"logprobs": True, "top_logprobs": 1})
        streamed = await gateway.post({"logprobs": True, "stream": True})
    content = whole.json["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["é", "b"]
    assert content[0]["bytes"] == [195, 169]
    assert content[0]["top_logprobs"][0]["logprob"] == -0.5
    deltas = [data["choices"][0] for _, data in streamed.frames[1:3]]
    assert [delta["logprobs"]["content"][0]["token"] for delta in deltas] == ["é", "b"]


async def test_a_conversation_is_begun_and_continued():
    async with running_gateway() as gateway:
        first = await gateway.post({"store": True})
        thread = first.json["conversation_id"]
        assert first.headers["x-conversation-id"] == thread
        more = [{"role": "user", "content": "And then?"}]
        second = await gateway.post({"conversation_id": thread, "messages": more, "stream": True})
    assert second.headers["x-conversation-id"] == thread
    assert second.frames[0][1]["conversation_id"] == thread
    seen = [each.content for each in gateway.fakes.tokenizer.requests[1].messages]
    assert seen == ["How are you?", "Hello wide world.", "And then?"]
    assert len(gateway.fakes.safety.prompts[1].messages) == 3
    kept = [
        (each.role, each.content, each.finish_reason)
        for each in gateway.fakes.conversation.threads["acc_1", thread]
    ]
    assert kept == [
        (2, "How are you?", ""),
        (3, "Hello wide world.", "stop"),
        (2, "And then?", ""),
        (3, "Hello wide world.", "stop"),
    ]
    # The answer is there before the last byte is: the next turn may follow at once.
    assert [each.create_if_missing for each in gateway.fakes.conversation.appended] == [True, False]


async def test_an_answer_of_open_length_gets_what_the_context_leaves():
    async with running_gateway() as gateway:
        await gateway.post({})
        assert gateway.fakes.tokenizer.requests[0].max_tokens == 512
        assert gateway.fakes.inference.requests[0].max_tokens == 4093
        gateway.fakes.tokenizer.context = 100
        answer = await gateway.post({})
    assert answer.status == 200
    assert gateway.fakes.inference.requests[1].max_tokens == 97


async def test_safety_may_hold_text_back_and_still_all_of_it_arrives():
    fakes = Fakes()
    fakes.safety.window = 4
    fakes.inference.scripts = [Script(["αβγδ", " ε", " ζη", ""])]
    async with running_gateway(fakes) as gateway:
        answer = await gateway.post({"stream": True})
    assert answer.text == "αβγδ ε ζη"
    assert fakes.billing.settled[TURN].withheld_token_count == 0
