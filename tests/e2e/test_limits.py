"""Two hundred streams at once, at two gateways, on money for one: not a token more is charged."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.test_budget import CHAT, LEDGER_TIMEOUT_S, NANO, PRICE, REQUEST
from tests.support.http import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
STREAM_COUNT = 200
STREAM = REQUEST | {"stream": True, "stream_options": {"include_usage": True}}


def ending(status: int, text: str) -> str:
    """How a stream ended, in a word; each has one."""
    if status != 200:
        return json.loads(text)["error"]["code"]
    *chunks, done = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert done == "[DONE]", text[-500:]
    (reason,) = (
        choice
        for chunk in map(json.loads, chunks)
        for choice in chunk["choices"]
        if choice["finish_reason"]
    )
    return f"cut: {reason['limit']['kind']} {reason['limit']['of']}" if "limit" in reason else "ran"


@pytest.mark.timeout(300)
def test_two_hundred_streams_on_money_for_one(mesh_copy):
    gateways = [row for row in mesh_copy.status() if row["service"] == "gateway"]
    assert len(gateways) >= 2, "the copy needs two gateways"
    free = Client(mesh_copy.plain_address, mesh_copy.new_key("admin"))
    prompt_count = free.request("POST", CHAT, REQUEST).json()["usage"]["prompt_tokens"]
    worst = prompt_count * PRICE["input_nanousd"] + REQUEST["max_tokens"] * PRICE["output_nanousd"]
    budget = worst * 3 // 2  # for one, and a part of another
    org = mesh_copy.ctl("orgs", "create", "team", "--budget-usd", str(budget / NANO)).strip()
    keys = [mesh_copy.new_key("admin") for _ in range(4)]
    for key in keys:
        mesh_copy.ctl("orgs", "add", org, mesh_copy.account_of(key))

    def stream(number: int) -> str:
        client = Client(mesh_copy.plain_address, keys[number % len(keys)])
        answer = client.request("POST", CHAT, STREAM | {"seed": number})
        return ending(answer.status, answer.body.decode())

    with ThreadPoolExecutor(STREAM_COUNT) as pool:
        endings = Counter(pool.map(stream, range(STREAM_COUNT)))
    assert endings["ran"] >= 1, endings
    assert endings["insufficient_quota"] >= 100, endings
    assert set(endings) <= {"ran", "cut: budget organisation", "insufficient_quota"}, endings

    def settled() -> dict:
        found = json.loads(mesh_copy.ctl("limits", org, "--json"))
        return found if found["held_usd"] == 0 and found["running"] == 0 else {}

    found = eventually(settled, LEDGER_TIMEOUT_S)
    assert found, mesh_copy.ctl("limits", org) + mesh_copy.ctl("orgs", "list", "--json")
    assert 0 < round(found["spent_usd"] * NANO) <= budget
    told = 0.0
    for key in keys:
        usage = Client(mesh_copy.plain_address, key).request("GET", "/api/usage").json()
        told += usage["cost_usd"]
        assert sum(each["cost_usd"] for each in usage["keys"]) == pytest.approx(usage["cost_usd"])
        summary = mesh_copy.audit(mesh_copy.account_of(key))["summary"]
        assert summary["differing_turns"] == 0
    assert round(told * NANO) == round(found["spent_usd"] * NANO)
