"""Limits bind what runs: N parallel requests on a budget for k never pass k."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.support.http import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
MODEL = "chatmesh-tiny"
REQUEST = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello! Tell me about the sea."}],
    "max_tokens": 200,
    "seed": 7,
}
CHAT = "/v1/chat/completions"
REQUEST_COUNT = 32
LEDGER_TIMEOUT_S = 60
PROJECT = Path(__file__).resolve().parents[2]
PRICE = yaml.safe_load((PROJECT / "billing_svc" / "prices.yaml").read_text())["models"][MODEL]
NANO = 1_000_000_000


def test_parallel_requests_never_pass_the_budget(mesh_copy):
    free = Client(mesh_copy.plain_address, mesh_copy.new_key("admin"))
    once = free.request("POST", CHAT, REQUEST)
    assert once.status == 200
    prompt_count = once.json()["usage"]["prompt_tokens"]
    worst = prompt_count * PRICE["input_nanousd"] + REQUEST["max_tokens"] * PRICE["output_nanousd"]
    budget = worst * 11 // 2
    key = mesh_copy.new_key("admin", budget_usd=budget / NANO)
    client = Client(mesh_copy.plain_address, key)
    with ThreadPoolExecutor(REQUEST_COUNT) as pool:
        answers = list(pool.map(lambda _: client.request("POST", CHAT, REQUEST), range(32)))
    refused = [a for a in answers if a.status != 200]
    assert not [a.body for a in refused if a.status != 429]
    assert {(a.status, a.json()["error"]["code"]) for a in refused} == {(429, "insufficient_quota")}
    usages = [a.json()["usage"] for a in answers if a.status == 200]
    assert usages
    # The ledger is a little behind the answers: what is read before it has them all says nothing.
    account = mesh_copy.account_of(key)
    ended = eventually(lambda: _ended(mesh_copy.audit(account), len(usages)), LEDGER_TIMEOUT_S)
    assert ended, mesh_copy.audit(account)
    told = client.request("GET", "/api/usage").json()
    assert told["input_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert told["output_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    cost_nanousd = round(told["cost_usd"] * NANO)
    assert cost_nanousd == sum(map(_cost_nanousd, usages))
    assert 0 < cost_nanousd <= budget


def _ended(audit: dict, turn_count: int) -> bool:
    """All these turns have ended, and the ledger has every token of them."""
    summary = audit["summary"]
    assert summary["turns"] <= turn_count
    done = (summary["turns"], summary["running_turns"], summary["differing_turns"])
    return done == (turn_count, 0, 0)


def _cost_nanousd(usage: dict) -> int:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return (
        (usage["prompt_tokens"] - cached) * PRICE["input_nanousd"]
        + cached * PRICE["cached_input_nanousd"]
        + usage["completion_tokens"] * PRICE["output_nanousd"]
    )
