"""HTTP bodies to requests: what is refused before it costs anything."""

import json

import pytest

from gateway.faces.openai.requests import parse_chat_completion
from mesh.chassis.errors import MeshError
from tests.fuzz.values import HASH_MODULUS


def body(**fields) -> bytes:
    messages = [{"role": "user", "content": "Hello!"}]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def refusal(data: bytes) -> MeshError:
    with pytest.raises(MeshError) as refused:
        parse_chat_completion(data)
    return refused.value


@pytest.mark.parametrize("bias", [10**400, -(10**400), 101, -100.5, 1e308])
def test_a_bias_is_a_small_number(bias) -> None:
    found = refusal(body(logit_bias={"7": bias}))
    assert found.metadata["param"] == "logit_bias.7"
    assert "from -100 to 100" in found.message


@pytest.mark.parametrize("token_id", ["9" * 11, "9" * 5000, "-1", "²", "٣", "1.0", ""])
def test_a_token_id_is_a_short_number(token_id) -> None:
    found = refusal(body(logit_bias={token_id: 1}))
    assert found.reason == "INVALID_PARAMETER"
    assert len(found.message) < 200


def test_biases_are_counted_before_they_become_numbers() -> None:
    # Equal hashes: 40,000 of them in a dict took 18 s.
    assert len({hash(i * HASH_MODULUS) for i in range(1000)}) == 1
    found = refusal(body(logit_bias={str(i * HASH_MODULUS): 1 for i in range(20_000)}))
    assert "at most 300" in found.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{}] * 5000}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a"}] * 1025}, "messages"),
        ({"messages": [{"role": "user", "content": [{}] * 1025}]}, "messages[0].content"),
        ({"stop": ["a"] * 5}, "stop"),
    ],
)
def test_lists_have_an_end(fields, param) -> None:
    assert refusal(body(**fields)).metadata["param"] == param


def test_biases_within_the_limits_are_taken() -> None:
    biases = {str(each): 100 if each % 2 else -100.0 for each in range(300)}
    asked = parse_chat_completion(body(logit_bias=biases)).ask
    assert asked.sampling.logit_bias == {int(key): float(value) for key, value in biases.items()}
