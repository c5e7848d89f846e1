"""A copy with stores of one's own and the torch engine, beside the other copy on one machine."""

import asyncio
import contextlib
import subprocess
import time

import pytest

from mesh.stores import prepare_postgres, prepare_redis
from tests.support.http import Client
from tests.support.running import running_mesh

pytestmark = pytest.mark.mesh
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


@pytest.mark.timeout(180)
def test_a_second_copy_talks_with_the_shipped_model(mesh_copy, tmp_path):
    with (
        stores(tmp_path / "stores") as (database_url, redis_url),
        running_mesh(
            tmp_path / "home",
            DATABASE_URL=database_url,
            REDIS_URL=redis_url,
            INFERENCE_ENGINE="torch",
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
        end = time.monotonic() + 5
        while client.request("GET", "/api/usage").json()["output_tokens"] != expected:
            assert time.monotonic() < end
            time.sleep(0.05)
        # The copies know nothing of each other.
        assert (
            Client(mesh_copy.plain_address, own.api_key).request("GET", "/v1/models").status == 401
        )
