"""Load in the background, a kill -9 in its midst, and what the clients saw."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections import Counter

from tests.support.http import Client, events
from tests.support.running import RunningMesh

RESTART_TIMEOUT_S = 40.0
SETTLE_S = 1.0
AFTER_COUNT = 8


@dataclasses.dataclass
class Outcome:
    """One request as its client saw it."""

    begin: float
    end: float
    kind: str  # "ok", "refused <status> <code>", "stream error <code>", "cut"


@dataclasses.dataclass
class Seen:
    """What a kill did."""

    process: str
    restarted: bool
    down_s: float
    ok_during: int
    failed_during: int
    failures: dict[str, int]
    ok_after: int
    failed_after: int
    slowest_s: float
    unexplained: list[str]


class Load:
    """Clients that stream short answers one after the other until the block ends."""

    def __init__(self, mesh: RunningMesh, client_count: int) -> None:
        self._client = Client(mesh.plain_address, mesh.api_key)
        self._threads = [threading.Thread(target=self._run) for _ in range(client_count)]
        self._stop = threading.Event()
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                kind = self._once()
            except (OSError, EOFError, ValueError, AssertionError) as error:
                kind = f"cut ({type(error).__name__})"
                self._stop.wait(0.05)  # as a client would, before it connects again
            self.outcomes.append(Outcome(begin, time.monotonic(), kind))

    def _once(self) -> str:
        body = {
            "model": "chatmesh-tiny",
            "messages": [{"role": "user", "content": "Hello! Tell me about the sea."}],
            "max_tokens": 60,
            "stream": True,
        }
        with self._client.stream(body) as (status, _, pieces, _connection):
            if status != 200:
                code = json.loads(b"".join(pieces))["error"]["code"]
                return f"refused {status} {code}"
            for _, data in events(pieces):
                if data == "[DONE]":
                    return "ok"
                if data.startswith('{"error"'):
                    return f"stream error {json.loads(data)['error']['code']}"
        return "cut (no [DONE])"


def kill_and_watch(mesh: RunningMesh, load: Load, process: str) -> Seen:
    """Kills a process under load and watches until it is back and all is well."""
    before = mesh.row(process)
    _await_count(load, 4)
    killed = time.monotonic()
    os.kill(before["pid"], signal.SIGKILL)
    back = _await_back(mesh, process, before)
    time.sleep(SETTLE_S)
    settled = time.monotonic()
    _await_count(load, AFTER_COUNT, since=settled)
    during = [o for o in load.outcomes if o.end >= killed and o.begin < settled]
    after = [o for o in load.outcomes if o.begin >= settled]
    failures = Counter(o.kind for o in during if o.kind != "ok")
    # A stream that ran through a killed gateway is cut, which its client can tell: no [DONE].
    explained = (
        ("refused", "stream error", "cut")
        if "gateway" in process
        else (
            "refused",
            "stream error",
        )
    )
    return Seen(
        process=process,
        restarted=back is not None,
        down_s=round((back or settled) - killed, 2),
        ok_during=sum(o.kind == "ok" for o in during),
        failed_during=sum(failures.values()),
        failures=dict(failures),
        ok_after=sum(o.kind == "ok" for o in after),
        failed_after=sum(o.kind != "ok" for o in after),
        slowest_s=round(max((o.end - o.begin for o in load.outcomes), default=0), 2),
        unexplained=[kind for kind in failures if not kind.startswith(explained)],
    )


def _await_count(load: Load, count: int, since: float | None = None) -> None:
    """Waits for `count` more requests that begin from now on to end."""
    since = time.monotonic() if since is None else since
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if sum(o.begin >= since for o in load.outcomes) >= count:
            return
        time.sleep(0.02)


def _await_back(mesh: RunningMesh, process: str, before: dict) -> float | None:
    end = time.monotonic() + RESTART_TIMEOUT_S
    while time.monotonic() < end:
        row = mesh.row(process)
        if row["pid"] not in (0, before["pid"]) and row["health"] == before["health"]:
            return time.monotonic()
        time.sleep(0.1)
    return None
