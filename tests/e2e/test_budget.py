"""Limits bind what runs: N parallel requests on a budget for k never pass k."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.http import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
REQUEST = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": "Hello! Tell me about the sea."}],
    "max_tokens": 200,
    "seed": 7,
}
CHAT = "/v1/chat/completions"


def test_parallel_requests_never_pass_the_budget(mesh_copy):
    free = Client(mesh_copy.plain_address, mesh_copy.new_key("admin"))
    once = free.request("POST", CHAT, REQUEST)
    assert once.status == 200
    worst = _worst_case_usd(free)
    budget = worst * 5.5
    client = Client(mesh_copy.plain_address, mesh_copy.new_key("admin", budget_usd=budget))
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: client.request("POST", CHAT, REQUEST), range(32)))
    refused = [a for a in answers if a.status != 200]
    assert not [a.body for a in refused if a.status != 429]
    assert {(a.status, a.json()["error"]["code"]) for a in refused} == {(429, "insufficient_quota")}
    assert len(refused) < 32
    assert client.request("GET", "/api/usage").json()["cost_usd"] <= budget


def _worst_case_usd(client) -> float:
    """What one request costs at most, from what one did cost."""
    assert eventually(lambda: client.request("GET", "/api/usage").json()["output_tokens"], 5)
    usage = client.request("GET", "/api/usage").json()
    return usage["cost_usd"] * REQUEST["max_tokens"] / usage["output_tokens"]
