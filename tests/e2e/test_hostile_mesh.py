"""A whole copy under strangers and bad luck; then it serves a chat, and the ledger is exact."""

import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.support.disk import full, root_only, small_disk
from tests.support.http import Client, connect
from tests.support.running import running_mesh
from tests.support.waiting import eventually

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(300)]
CHAT = {
    "model": "chatmesh-tiny",
    "messages": [{"role": "user", "content": "Hello! Tell me about the sea."}],
    "max_tokens": 20,
}
IDLE_CONNECTION_COUNT = 2000
BACK_S = 60
PAUSE_S = 1.0
# One of each kind that a copy runs, but the supervisor, which has a test of its own.
KINDS = (
    "gateway-1",
    "billing-1",
    "conversation-1",
    "safety-1",
    "tokenizer-1",
    "inference-1",
    "control-1",
    "edge-1",
    "envoy",
    "redis",
    "postgres",
)


def chat(client) -> int:
    """The status of a chat; 0: the connection was cut."""
    with contextlib.suppress(OSError, EOFError, ValueError):
        return client.request("POST", "/v1/chat/completions", {**CHAT, "store": True}).status
    return 0


def is_exact(copy, key) -> bool:
    summary = copy.audit(copy.account_of(key))["summary"]
    return summary["turns"] > 0 and not summary["differing_turns"] and not summary["running_turns"]


def serves_and_is_exact(copy, key) -> None:
    client = Client(copy.plain_address, key)
    assert eventually(lambda: chat(client) == 200, BACK_S), "no normal chat afterwards"
    assert eventually(lambda: is_exact(copy, key), BACK_S), copy.audit(copy.account_of(key))
    rows = eventually(lambda: well(copy), BACK_S)
    assert rows, copy.status()


def well(copy) -> bool:
    rows = copy.status()
    return bool(rows) and {row["health"] for row in rows} <= {"serving", "running"}


@pytest.fixture
def key(mesh_copy):
    """An account of the test's own, whose ledger is looked at when all is over."""
    made = mesh_copy.new_key("admin")
    yield made
    serves_and_is_exact(mesh_copy, made)


def test_idle_connections_and_halves_of_requests(mesh_copy, key):
    host, _, port = mesh_copy.plain_address.rpartition(":")
    opened = []
    try:
        for number in range(IDLE_CONNECTION_COUNT):
            one = socket.create_connection((host, int(port)), timeout=10)
            opened.append(one)
            if number % 2:
                one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-slow: ")
        client = Client(mesh_copy.plain_address, key)
        assert [chat(client) for _ in range(3)] == [200] * 3
    finally:
        for one in opened:
            one.close()


def test_slow_readers_of_long_answers(mesh_copy, key):
    """Each asks for a stream and reads nothing of it."""
    long = {**CHAT, "max_tokens": 400, "stream": True}
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(Client(mesh_copy.plain_address, key).stream(long))
        assert chat(Client(mesh_copy.plain_address, key)) == 200


def test_a_flood_of_bad_keys_and_giant_headers(mesh_copy, key):
    statuses = set()
    for number in range(300):
        bad = Client(mesh_copy.plain_address, f"cm-bad{number:040d}")
        statuses.add(bad.request("GET", "/v1/models").status)
    # Unknown; then not looked up, for too many were. Nobody else's key is touched by that.
    assert statuses == {401, 503}
    assert chat(Client(mesh_copy.plain_address, key)) == 200
    for size in (10_000, 15_000, 40_000, 100_000):
        with contextlib.suppress(OSError, EOFError), connect(mesh_copy.plain_address) as one:
            giant = {"authorization": f"Bearer {key}", "x-giant": "g" * size}
            one.send("GET", "/v1/models", headers=giant)
            assert one.head()[0] in (200, 431)
    written = sum(path.stat().st_size for path in (mesh_copy.home / "nodes/edge-1").glob("*.log*"))
    assert written < 4 << 20


def test_every_kind_of_process_stands_still_for_a_while(mesh_copy, key):
    """As long as somebody asks; whatever comes of that request, it ends, and the next is served."""
    pids = {row["instance"]: row["pid"] for row in mesh_copy.status()}
    client = Client(mesh_copy.plain_address, key)
    for kind in KINDS:
        with ThreadPoolExecutor() as pool:
            os.kill(pids[kind], signal.SIGSTOP)
            try:
                asked = pool.submit(chat, client)
                time.sleep(PAUSE_S)
            finally:
                os.kill(pids[kind], signal.SIGCONT)
            assert asked.result(BACK_S) in (0, 200, 429, 500, 503, 504), kind
        assert eventually(lambda: chat(client) == 200, BACK_S), kind


def test_a_supervisor_that_stands_still_stops_nobody(mesh_copy, key):
    """Its children log into pipes that nobody reads meanwhile."""
    os.kill(mesh_copy.pid, signal.SIGSTOP)
    try:
        client = Client(mesh_copy.plain_address, key)
        refused = {**CHAT, "temperature": "warm"}
        for _ in range(50):
            assert client.request("POST", "/v1/chat/completions", refused).status == 400
        assert chat(client) == 200
    finally:
        os.kill(mesh_copy.pid, signal.SIGCONT)


@root_only
def test_a_disk_that_is_full_and_every_process_dies_on_it(tmp_path):
    """What cannot be written is refused or waits; when there is room again all of it is there."""
    with (
        small_disk(tmp_path / "disk", "900m") as disk,
        running_mesh(disk / "home", CHATMESH_LOG_LEVEL="info") as copy,
    ):
        key = copy.new_key("admin")
        client = Client(copy.plain_address, key)
        assert chat(client) == 200
        with full(disk):
            statuses = [chat(client) for _ in range(3)]
            assert set(statuses) <= {0, 200, 402, 429, 500, 503, 504}, statuses
            rows = {row["instance"]: row["pid"] for row in copy.status()}
            for kind in KINDS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rows[kind], signal.SIGKILL)
            for _ in range(3):
                chat(client)
            started = supervised(copy)
            assert len(started) == len(set(started)), f"one beside the other: {started}"
        serves_and_is_exact(copy, key)
        started = supervised(copy)
        assert len(started) == len(set(started)) == len(copy.status())


def supervised(copy) -> list[str]:
    """The commands of the supervisor's children, with the instance that each is."""
    children = []
    for child in psutil.Process(copy.pid).children():
        with contextlib.suppress(psutil.Error):
            name = child.environ().get("CHATMESH_INSTANCE", "")
            children.append(f"{name} {' '.join(child.cmdline())}")
    return children
