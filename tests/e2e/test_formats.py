"""Constrained answers of the shipped model to unmodified clients, through a running mesh."""

import json
import re
from typing import Literal

import grpc
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from tests.support.running import running_mesh

pytestmark = pytest.mark.mesh
MODEL = "chatmesh-tiny"
HELLO = [{"role": "user", "content": "Tell me about a boy who is ten years old."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["sea", "sky"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


class Person(BaseModel):
    """What a client would write."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["happy", "sad"]


@pytest.fixture(scope="module")
def torch_copy(tmp_path_factory):
    with running_mesh(tmp_path_factory.mktemp("formats"), INFERENCE_ENGINE="torch") as copy:
        yield copy


@pytest.fixture
def client(torch_copy):
    with openai.OpenAI(
        base_url=torch_copy.base_url, api_key=torch_copy.api_key, max_retries=0, timeout=60
    ) as client:
        yield client


def as_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}


@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_validates(client, seed):
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 120, "seed": seed}
    request |= {"response_format": as_schema(SCHEMA)}
    answer = client.chat.completions.create(**request).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)
    chunks = client.chat.completions.create(**request, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.message.content


def test_a_pydantic_model_is_parsed(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=HELLO, max_tokens=120, seed=3, response_format=Person
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    assert person.mood in ("happy", "sad")


def test_an_answer_cut_at_its_length_says_so(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=HELLO, max_tokens=3, response_format=Person
        )


def test_expressions_and_choices_as_vllm_names_them(client):
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 40}
    texts = [
        client.chat.completions.create(**request, extra_body=extra).choices[0].message.content
        for extra in (
            {"structured_outputs": {"regex": r"\d{4}-\d{2}"}},
            {"guided_choice": ["the sea", "the sky"]},
            {"structured_outputs": {"json": {"const": {"a": [1, None]}}}},
        )
    ]
    assert re.fullmatch(r"\d{4}-\d{2}", texts[0])
    assert texts[1] in ("the sea", "the sky")
    assert json.loads(texts[2]) == {"a": [1, None]}


def test_what_cannot_be_enforced_is_refused_by_name(client):
    for schema, named in (({"not": {}}, "not"), ({"type": "array", "uniqueItems": True}, "uniq")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=MODEL, messages=HELLO, response_format=as_schema(schema)
            )
        assert caught.value.param == "response_format"
        assert named in caught.value.message


def test_log_probabilities(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=3, temperature=0
    )
    entries = answer.choices[0].logprobs.content
    assert entries
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        # Greedy: the likeliest is the one that stands there.
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    assert "".join(entry.token for entry in entries).startswith(answer.choices[0].message.content)


def test_a_typed_client_asks_for_the_same(torch_copy):
    credentials = grpc.ssl_channel_credentials(torch_copy.ca_cert.read_bytes())
    address = torch_copy.tls_address.replace("127.0.0.1", "localhost")
    message = chat_pb2.Message(role=content_pb2.ROLE_USER, content="Tell me about the sea.")
    request = chat_pb2.ChatRequest(
        messages=[message],
        max_tokens=120,
        seed=5,
        logprobs=True,
        response_format=content_pb2.ResponseFormat(json_schema=json.dumps(SCHEMA)),
    )
    with grpc.secure_channel(address, credentials) as channel:
        key = (("authorization", f"Bearer {torch_copy.api_key}"),)
        stub = chat_pb2_grpc.ChatServiceStub(channel)
        events = list(stub.Chat(request, metadata=key, timeout=60))
    text = "".join(event.delta.text for event in events)
    jsonschema.validate(json.loads(text), SCHEMA)
    spoken = b"".join(entry.chosen.text for event in events for entry in event.delta.logprobs)
    assert spoken.decode() == text
