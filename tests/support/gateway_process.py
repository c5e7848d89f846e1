"""The small gateway as a process of its own, so that a test can kill or pause it.

    python -m tests.support.gateway_process IDENTITY NOTES HANGS_IN

IDENTITY  folder with the keys of the gateway.
NOTES     file that gets a line of JSON for each call as it comes, the first line with the address.
HANGS_IN  "check": all is noted and never answered; "call": checks are; "nothing": everything is.
"""

# ruff: noqa: N802 - methods are called as their contracts say

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from mesh.chassis import identity, server
from tests.support.fake_gateway import Gateway, add_to

START_TIMEOUT_S = 20.0


class NotingGateway(Gateway):
    """Writes down what it is asked; hangs where it is told to."""

    def __init__(self, notes: Path, hangs_in: str) -> None:
        super().__init__()
        self._file = notes.open("a")
        self._hangs_in = hangs_in

    def note(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    async def Check(self, request, context):
        self.note(kind="check")
        if self._hangs_in == "check":
            await asyncio.Event().wait()
        return await super().Check(request, context)

    async def CreateChatCompletion(self, request, context):
        metadata = dict(context.invocation_metadata())
        turn = metadata.get("x-chatmesh-request") or metadata["x-chatmesh-turn"]
        attempt = int(metadata["x-envoy-attempt-count"])
        self.note(kind="call", turn=turn, attempt=attempt, bytes=len(request.body.data))
        if self._hangs_in != "nothing":
            await asyncio.Event().wait()
        async for body in super().CreateChatCompletion(request, context):
            yield body

    async def ListModels(self, request, context):
        if self._hangs_in == "call":
            self.note(kind="call")
            await asyncio.Event().wait()
        return await super().ListModels(request, context)


async def serve(folder: Path, notes: Path, hangs_in: str) -> None:
    """Serves until it is ended."""
    gateway = NotingGateway(notes, hangs_in)
    serving = grpc.aio.server(
        interceptors=[server.ErrorInterceptor()], options=server.SERVER_OPTIONS
    )
    add_to(serving, gateway)
    credentials = server.server_credentials(identity.Identity(folder))
    port = serving.add_secure_port("127.0.0.1:0", credentials)
    await serving.start()
    gateway.note(address=f"127.0.0.1:{port}")
    await serving.wait_for_termination()


@dataclasses.dataclass
class GatewayProcess:
    """A running one."""

    process: subprocess.Popen
    file: Path

    def notes(self) -> list[dict]:
        """What it wrote down, the address first."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def seen(self, kind: str) -> list[dict]:
        """Calls of a kind."""
        return [note for note in self.notes() if note.get("kind") == kind]

    @property
    def address(self) -> str:
        """host:port."""
        return self.notes()[0]["address"]

    @property
    def port(self) -> int:
        """The port alone."""
        return int(self.address.rpartition(":")[2])


@contextlib.contextmanager
def gateway_process(
    keys: identity.Identity, notes: Path, hangs_in: str = "nothing"
) -> Iterator[GatewayProcess]:
    """Starts one, waits for its address, ends it."""
    module = "tests.support.gateway_process"
    command = [sys.executable, "-m", module, str(keys.folder), str(notes), hangs_in]
    with subprocess.Popen(command) as process:
        try:
            running = GatewayProcess(process, notes)
            end = time.monotonic() + START_TIMEOUT_S
            while not running.notes():
                assert process.poll() is None, "the gateway did not start"
                assert time.monotonic() < end, "the gateway did not start in time"
                time.sleep(0.02)
            yield running
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
