"""What an operator sees: traces, metrics, logs, status, snapshot."""

import json
import os
import secrets
import signal
import urllib.request

import pytest

from tests.support.http import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.mesh
SECRET_WORD = "xylophonist"
CHAT = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": f"Hello {SECRET_WORD}!"}],
    "max_tokens": 5,
    "store": True,
}


def test_one_trace_runs_through_every_service(mesh_copy, collector):
    trace_id = secrets.token_hex(16)
    client = Client(mesh_copy.plain_address, mesh_copy.api_key)
    parent = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    assert client.request("POST", "/v1/chat/completions", CHAT, headers=parent).status == 200
    services = {"gateway", "billing", "safety", "tokenizer", "inference", "conversation"}
    assert services <= collector.wait_for(trace_id, services)


def test_every_process_serves_metrics(mesh_copy):
    rows = [row for row in mesh_copy.status() if row["metrics_address"]]
    assert {row["service"] for row in rows} >= {
        "billing",
        "conversation",
        "edge",
        "gateway",
        "inference",
        "safety",
        "tokenizer",
    }
    for row in rows:
        with urllib.request.urlopen(f"http://{row['metrics_address']}/metrics", timeout=5) as got:
            assert b"chatmesh_" in got.read(), row


def test_the_supervisor_measures_what_the_copy_takes_of_the_disk(mesh_copy):
    address = (mesh_copy.home / "run" / "metrics-address").read_text().strip()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as got:
        text = got.read().decode()
    for part in ("log", "nodes", "control"):
        assert f'chatmesh_home_bytes{{part="{part}"}}' in text


def test_the_background_work_of_every_process_goes_on(mesh_copy):
    """Also of those that have nothing to do, such as following a file that is not configured."""
    logs = list((mesh_copy.home / "log").glob("*-*.log"))
    assert logs
    for path in logs:
        assert "background_work_ended" not in path.read_text(), path


def test_status_lists_every_process(mesh_copy):
    rows = {row["instance"]: row for row in mesh_copy.status()}
    assert {"postgres", "redis", "envoy", "control-1", "gateway-2", "inference-2"} <= set(rows)
    gateway = rows["gateway-1"]
    assert gateway["spiffe_id"] == "spiffe://chatmesh/gateway"
    assert gateway["address"].startswith("127.0.0.1:")
    assert gateway["pid"] > 0
    assert {row["health"] for row in rows.values()} == {"serving", "running"}


def test_nobody_refuses_the_snapshot(mesh_copy):
    snapshot = json.loads(mesh_copy.ctl("snapshot", "--json"))
    lines = snapshot["subscriptions"]
    assert not [line for line in lines if line.get("nacked_version")]
    clients = {line["node_id"] for line in lines}
    assert {"edge-1", "gateway-1", "gateway-2"} <= clients
    assert "PRIVATE KEY" not in json.dumps(snapshot)


def test_prompts_and_keys_are_in_no_log(mesh_copy):
    client = Client(mesh_copy.plain_address, mesh_copy.api_key)
    assert client.request("POST", "/v1/chat/completions", CHAT).status == 200
    bad = {**CHAT, "temperature": SECRET_WORD}
    assert client.request("POST", "/v1/chat/completions", bad).status == 400
    files = [*(mesh_copy.home / "log").iterdir(), *mesh_copy.home.glob("nodes/*/*.log")]
    assert files
    for path in files:
        text = path.read_text(errors="replace")
        assert SECRET_WORD not in text, path
        assert mesh_copy.api_key not in text, path


def test_a_drained_node_gets_no_new_calls_and_comes_back(mesh_copy):
    mesh_copy.ctl("drain", "inference-2")
    assert mesh_copy.row("inference-2")["health"] == "draining"
    client = Client(mesh_copy.plain_address, mesh_copy.api_key)
    for _ in range(6):
        assert client.request("POST", "/v1/chat/completions", CHAT).status == 200
    # Its process is another after a restart, and nobody has asked that one to drain.
    os.kill(mesh_copy.row("inference-2")["pid"], signal.SIGTERM)
    assert eventually(lambda: mesh_copy.row("inference-2")["health"] == "serving", timeout_s=30)
