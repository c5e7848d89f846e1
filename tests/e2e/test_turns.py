"""Turns through a whole copy: followed at either gateway, stopped, run in the background."""

import json
import time

import pytest

from tests.support.http import Client, events
from tests.support.running import running_mesh
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
CHAT = "/v1/chat/completions"
QUESTION = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": "Tell me about the lighthouses of the north."}],
    "max_tokens": 400,
    "seed": 5,
}


@pytest.fixture(scope="module")
def slow_copy(tmp_path_factory):
    """Two gateways; an answer takes as long as it has tokens: 10 ms each."""
    slow = {
        "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": "10",
        "INFERENCE_SIMULATED_IGNORE_EOS": "true",
    }
    home = tmp_path_factory.mktemp("slow")
    with running_mesh(home, REPLICAS="gateway=2", **slow) as copy:
        yield copy


@pytest.fixture
def client(slow_copy):
    return Client(slow_copy.plain_address, slow_copy.api_key)


def state(client, turn):
    """The turn as it is; through whichever gateway the edge picks."""
    return client.request("GET", f"/api/turns/{turn}").json()


def text_of(frames):
    """The text of server-sent events, which must end."""
    found = [data for _, data in frames if not data.startswith(":")]
    assert found.pop() == "[DONE]"
    chunks = [json.loads(data) for data in found]
    return "".join(choice["delta"].get("content", "") for c in chunks for choice in c["choices"])


def test_many_readers_at_both_gateways_get_the_same_bytes(client):
    accepted = client.request("POST", CHAT, {**QUESTION, "background": True})
    assert (accepted.status, accepted.headers["x-turn-journal"]) == (202, "on")
    turn = accepted.json()["id"]
    texts = []
    for _ in range(4):
        with client.stream(path=f"/api/turns/{turn}/events") as (status, _, pieces, _c):
            assert status == 200
            texts.append(text_of(events(pieces)))
    assert texts[0]
    assert len(set(texts)) == 1
    ended = state(client, turn)
    assert (ended["status"], ended["choices"][0]["text"]) == ("completed", texts[0])
    assert ended["usage"]["completion_tokens"] == QUESTION["max_tokens"]


def test_stop_ends_the_generation_wherever_it_is_asked_for(client):
    for _ in range(4):
        turn = client.request("POST", CHAT, {**QUESTION, "background": True}).json()["id"]
        assert eventually(lambda turn=turn: state(client, turn)["choices"][0]["text"], 10)
        begin = time.monotonic()
        assert client.request("POST", f"/api/turns/{turn}/cancel").status == 200
        assert eventually(lambda turn=turn: state(client, turn)["status"] != "running", 10)
        ended = state(client, turn)
        assert ended["status"] == "cancelled"
        # The last tokens are of the time before the stop: those after it were never made.
        made_s = ended["usage"]["completion_tokens"] * 0.01
        assert made_s < QUESTION["max_tokens"] * 0.01
        print(f"stopped in {time.monotonic() - begin:.3f} s")


def test_a_client_that_comes_back_gets_exactly_the_rest(client):
    whole = client.request("POST", CHAT, QUESTION).json()["choices"][0]["message"]["content"]
    with client.stream({**QUESTION, "stream": True}) as (_, headers, pieces, connection):
        seen = []
        for event in events(pieces):
            seen.append(event)
            if len(seen) == 6:
                break
        connection.close()
    turn, cursor = headers["x-turn-id"], seen[-1][0]
    path = f"/api/turns/{turn}/events?after={cursor}"
    with client.stream(path=path) as (status, _, rest, _connection):
        assert status == 200
        assert text_of([*seen, *events(rest)]) == whole
