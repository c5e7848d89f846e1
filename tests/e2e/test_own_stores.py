"""A copy with stores of one's own and the torch engine, beside the other copy on one machine."""

import asyncio
import contextlib
import subprocess
import urllib.request

import pytest

from inference_svc.model_folder import open_model
from mesh.home import PROJECT
from mesh.stores import prepare_postgres, prepare_redis
from tests.support.http import Client, events
from tests.support.running import running_mesh
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
CANCELS = "chatmesh_gateway_cancel_seconds_count"
SHIPPED = PROJECT / "inference_svc" / "models" / "chatmesh-tiny"
CHAT = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": "Hello! Who are you?"}],
    "max_tokens": 40,
    "temperature": 0,
}


@contextlib.contextmanager
def stores(folder):
    """A PostgreSQL and a Redis as an operator would run them; yields their URLs."""
    found = [prepare_postgres(folder / "pg"), prepare_redis(folder / "redis")]
    running = []
    try:
        for store in found:
            running.append(
                subprocess.Popen(store.command, env=dict(store.env), stdout=-3, stderr=-3)
            )
            asyncio.run(store.ready())
        yield [store.url for store in found]
    finally:
        for store, process in zip(found, running, strict=False):
            process.send_signal(store.stop_signal)
            process.wait(30)


def output_count(client):
    """Output tokens in the ledger of the client's account."""
    return client.request("GET", "/api/usage").json()["output_tokens"]


def leave_a_long_answer(own, client, counted):
    """A client that leaves in the middle: the generation ends long before the answer would have."""
    story = {**CHAT, "messages": [{"role": "user", "content": "Tell me a story."}]}
    # Without its end tokens it goes on to the limit.
    ends = open_model(str(SHIPPED)).eos_token_ids
    story |= {"max_tokens": 1500, "stop": None, "temperature": 2, "seed": 1}
    story["logit_bias"] = {str(token_id): -100 for token_id in ends}
    with client.stream({**story, "stream": True}) as (_, _, pieces, connection):
        next(events(pieces))
        connection.close()
    assert eventually(lambda: cancel_count(own) == 1, timeout_s=10)
    assert eventually(lambda: output_count(client) > counted, timeout_s=5)
    left = output_count(client) - counted
    assert (
        left
        < client.request("POST", "/v1/chat/completions", story).json()["usage"]["completion_tokens"]
    )


def cancel_count(own):
    """Cancellations that the gateway measured."""
    url = f"http://{own.row('gateway-1')['metrics_address']}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith(CANCELS))


@pytest.mark.timeout(180)
def test_a_second_copy_talks_with_the_shipped_model(mesh_copy, tmp_path):
    with (
        stores(tmp_path / "stores") as (database_url, redis_url),
        running_mesh(
            tmp_path / "home",
            DATABASE_URL=database_url,
            REDIS_URL=redis_url,
            INFERENCE_ENGINE="torch",
            GATEWAY_READER_GRACE_S="0",
        ) as own,
    ):
        names = {row["instance"] for row in own.status()}
        assert not {"postgres", "redis"} & names
        client = Client(own.plain_address, own.api_key)
        first = client.request("POST", "/v1/chat/completions", CHAT).json()
        again = client.request("POST", "/v1/chat/completions", CHAT).json()
        said = first["choices"][0]["message"]["content"]
        assert said.strip()
        assert again["choices"][0]["message"]["content"] == said
        expected = 2 * first["usage"]["completion_tokens"]
        assert eventually(lambda: output_count(client) == expected, timeout_s=5)
        leave_a_long_answer(own, client, counted=expected)
        # The copies know nothing of each other.
        assert (
            Client(mesh_copy.plain_address, own.api_key).request("GET", "/v1/models").status == 401
        )
