"""What begins a turn: passed by admission at the edge, named by it, admitted where it is served."""

import json
import time

import httpx
import pytest
import pytest_asyncio

from tests.support.edge import running_edge
from tests.support.fake_gateway import KEY

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

COMPLETIONS = "/v1/chat/completions"
JOINABLE = frozenset({"chatmesh.gateway.v1.OpenAIService/CreateChatCompletion"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory):
    async with running_edge(tmp_path_factory.mktemp("edge"), joinable_methods=JOINABLE) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge):
    edge.gateway.reset()
    async with httpx.AsyncClient(base_url=edge.url, timeout=20) as http:
        yield http


async def test_what_begins_a_turn_is_admitted_by_the_call_that_serves_it(client, edge):
    spoofed = {
        "x-chatmesh-account": "evil",
        "x-chatmesh-request": "1.evil",
        "x-envoy-attempt-count": "2",
        "x-request-id": "evil",
    }
    headers = {"authorization": KEY, **spoofed}
    seen = []
    for _ in range(2):
        begin_ms = time.time() * 1000
        answer = await client.post(COMPLETIONS, headers=headers, json={"do": "json"})
        assert answer.status_code == 200
        metadata = edge.gateway.calls[-1][2]
        assert "evil" not in json.dumps(metadata)
        assert "x-chatmesh-account" not in metadata
        assert (metadata["authorization"], metadata["x-envoy-attempt-count"]) == (KEY, "1")
        request = metadata["x-chatmesh-request"]
        at_ms, _, request_id = request.partition(".")
        assert begin_ms - 1 <= int(at_ms) <= time.time() * 1000
        assert request_id == metadata["x-request-id"] == answer.headers["x-request-id"]
        seen.append(request)
    assert len(set(seen)) == 2
    assert edge.gateway.checks == []


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer x"}, {"authorization": "x"}])
async def test_what_is_no_key_is_refused_before_the_gateway_sees_the_body(client, edge, given):
    answer = await client.post(COMPLETIONS, headers=given, json={"do": "json"})
    assert answer.status_code == 401
    assert len(edge.gateway.checks) == 1
    assert edge.gateway.calls == []
