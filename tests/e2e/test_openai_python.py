"""The unmodified OpenAI Python SDK against a whole running mesh."""

import openai
import pytest

pytestmark = pytest.mark.mesh
MODEL = "chatmesh-tiny"
HELLO = [{"role": "user", "content": "Hello! Tell me about the sea."}]


@pytest.fixture
def client(mesh_copy):
    with openai.OpenAI(
        base_url=mesh_copy.base_url, api_key=mesh_copy.api_key, max_retries=0, timeout=30
    ) as client:
        yield client


def test_a_whole_answer(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, seed=1)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 20
    assert answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )


def test_a_stream_says_what_the_whole_answer_says(client):
    arguments = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "seed": 7}
    whole = client.chat.completions.create(**arguments)
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options=options))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    # What the prefix cache had may differ from one request to the next.
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_several_answers(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, max_tokens=12, temperature=1, seed=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_stop_string_is_not_part_of_the_answer(client):
    arguments = {"model": MODEL, "messages": HELLO, "max_tokens": 60, "seed": 5}
    whole = client.chat.completions.create(**arguments).choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    cut = client.chat.completions.create(**arguments, stop=[stop]).choices[0]
    assert cut.message.content == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_models(client):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": "gpt-none"}, 404, "model_not_found", "model"),
        ({"temperature": 5}, 400, None, "temperature"),
        ({"max_tokens": 0}, 400, None, "max_tokens"),
        ({"n": 9}, 400, None, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, None, "stop"),
        ({"messages": []}, 400, None, "messages"),
        ({"max_tokens": 100_000}, 400, "context_length_exceeded", None),
        (
            {"messages": [{"role": "user", "content": "sea " * 20_000}]},
            400,
            "context_length_exceeded",
            None,
        ),
    ],
)
def test_a_refusal_names_the_reason(client, change, status, code, param):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **change})
    error = caught.value
    assert error.status_code == status
    assert error.message
    if code:
        assert error.code == code
    if param:
        assert error.param == param


def test_a_bad_key(mesh_copy):
    client = openai.OpenAI(base_url=mesh_copy.base_url, api_key="cm-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_an_empty_budget(mesh_copy):
    key = mesh_copy.new_key("pro", budget_usd=0)
    client = openai.OpenAI(base_url=mesh_copy.base_url, api_key=key, max_retries=0)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.code == "insufficient_quota"


def test_ten_requests_a_minute_on_the_free_tier(mesh_copy):
    key = mesh_copy.new_key("free")
    client = openai.OpenAI(base_url=mesh_copy.base_url, api_key=key, max_retries=0)
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    for used in range(10):
        raw = client.chat.completions.with_raw_response.create(**request)
        assert int(raw.headers["x-ratelimit-limit-requests"]) == 10, used
    for _ in range(2):
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**request)
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_stored_conversation_goes_on(mesh_copy, client):
    first = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=10, extra_body={"store": True}
    )
    thread = first.conversation_id
    second = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "And now about the sky."}],
        max_tokens=10,
        extra_body={"conversation_id": thread},
    )
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    raw = client._client.get(
        f"{mesh_copy.root_url}/api/conversations/{thread}",
        headers={"authorization": f"Bearer {mesh_copy.api_key}"},
    ).json()
    assert [message["role"] for message in raw["messages"]] == ["user", "assistant"] * 2
    assert raw["messages"][1]["content"] == first.choices[0].message.content


async def test_the_async_client_runs_many_streams(mesh_copy):
    import asyncio

    async with openai.AsyncOpenAI(
        base_url=mesh_copy.base_url, api_key=mesh_copy.api_key, max_retries=0, timeout=60
    ) as client:

        async def one(seed):
            stream = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=30, seed=seed, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        first = await asyncio.gather(*(one(seed) for seed in range(24)))
        again = await asyncio.gather(*(one(seed) for seed in range(24)))
    assert first == again
    assert all(first)
