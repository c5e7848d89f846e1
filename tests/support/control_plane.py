"""A real control plane in a process of its own, with real servers and xDS clients around it."""

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis import bootstrap, identity
from mesh.chassis.lease import control_channel
from mesh.chassis.settings import NodeSettings

PROJECT = Path(__file__).resolve().parents[2]
# Nothing here takes a second on an idle machine; tests share theirs.
DEADLINE_S = 30.0
POLL_S = 0.01


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition that no event announces (another process's file or view)."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


class Process:
    """A child process; its output goes to a log that a failed test shows."""

    def __init__(self, log: Path, *command: str, env: dict[str, str]) -> None:
        self.log, self._command = log, command
        self._env = {**os.environ, "PYTHONPATH": str(PROJECT), **env}
        self._child: asyncio.subprocess.Process | None = None

    @property
    def child(self) -> asyncio.subprocess.Process:
        assert self._child is not None
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    async def start(self, **pipes: Any) -> asyncio.subprocess.Process:
        with self.log.open("a") as log:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                env=self._env,
                cwd=PROJECT,
                stderr=log,
                **{"stdout": log, **pipes},
            )
        return self._child

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal and waits for the end; gives the exit status."""
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)
        return await asyncio.wait_for(self._child.wait(), DEADLINE_S)


class Client:
    """A process whose gRPC channels are xDS channels with one identity."""

    def __init__(self, process: Process, child: asyncio.subprocess.Process) -> None:
        self._process, self._child = process, child
        self.calls = 0

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Runs one operation of `mesh_client.py`; see there."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        line = await asyncio.wait_for(self._child.stdout.readline(), DEADLINE_S)
        assert line, f"the client ended:\n{self._process.log.read_text()[-3000:]}"
        self.calls += 1
        return json.loads(line)


class ControlPlane:
    """A control plane, and what tests put around it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.state = folder, folder / "state"
        self.topology = folder / "topology.yaml"
        self.topology.write_text((PROJECT / "mesh" / "topology.yaml").read_text())
        self.operator_token = folder / "operator-token"
        self.operator_token.write_text(secrets.token_urlsafe())
        self._env = {
            "CONTROL_STATE_DIR": str(self.state),
            "CONTROL_TOPOLOGY": str(self.topology),
            "CONTROL_OPERATOR_TOKEN_FILE": str(self.operator_token),
            **env,
        }
        self._stack = contextlib.AsyncExitStack()
        self._operator: identity.Identity | None = None
        self.process: Process

    async def start(self) -> None:
        for name in ("address", "join-address"):
            (self.state / name).unlink(missing_ok=True)
        self.process = Process(self.folder / "control.log", "-m", "mesh.control", env=self._env)
        await self.process.start()
        await until((self.state / "join-address").exists, "the control plane serves")
        if self._operator is None:
            await self._join_as_operator()

    async def stop(self) -> None:
        await self._stack.aclose()
        await self.process.end(signal.SIGTERM)

    @property
    def address(self) -> str:
        return (self.state / "address").read_text().strip()

    @property
    def join_address(self) -> str:
        return (self.state / "join-address").read_text().strip()

    @property
    def trust_bundle(self) -> Path:
        return self.state / "ca.crt"

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "control.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]

    # Identities

    async def join(self, name: str, token: str | None = None) -> identity.Identity:
        """A fresh identity with files of its own."""
        token = token or await self.token(name)
        folder = self.folder / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir()
        return await identity.join(self.join_address, token, self.trust_bundle, folder)

    async def token(self, name: str) -> str:
        request = mesh_pb2.CreateJoinTokenRequest(service=name)
        async with self.admin() as admin:
            return (await admin.CreateJoinToken(request, timeout=5)).join_token

    # Views

    @contextlib.asynccontextmanager
    async def admin(self) -> "AsyncIterator[mesh_pb2_grpc.MeshAdminServiceAsyncStub]":
        now = datetime.datetime.now(datetime.UTC)
        if self._operator.validity()[1] - now < datetime.timedelta(seconds=1):
            await self._join_as_operator()
        async with self.channel(self._operator) as channel:
            yield mesh_pb2_grpc.MeshAdminServiceStub(channel)

    async def _join_as_operator(self) -> None:
        self.operator_token.write_text(secrets.token_urlsafe())
        self._operator = await self.join("operator", self.operator_token.read_text())

    def channel(self, own: identity.Identity) -> grpc.aio.Channel:
        return control_channel(self.address, own)

    async def status(self) -> mesh_pb2.GetStatusResponse:
        async with self.admin() as admin:
            return await admin.GetStatus(mesh_pb2.GetStatusRequest(), timeout=5)

    async def snapshot(self, include_resources: bool = False) -> mesh_pb2.GetSnapshotResponse:
        request = mesh_pb2.GetSnapshotRequest(include_resources=include_resources)
        async with self.admin() as admin:
            return await admin.GetSnapshot(request, timeout=5)

    async def until_serving(self, *names: str) -> None:
        async def serving() -> bool:
            states = {one.name: one.state for one in (await self.status()).instances}
            return all(states.get(name) == mesh_pb2.INSTANCE_STATE_SERVING for name in names)

        await until(serving, f"{names} serve")

    # Processes around it

    async def server(
        self,
        instance: str,
        module: str = "tests.support.mesh_server",
        serving: bool = True,
        **settings: str,
    ) -> Process:
        """A real instance of a service: `mesh_server.py` under the chassis; it serves."""
        service = instance.rpartition("-")[0]
        state = self.folder / instance
        state.mkdir(exist_ok=True)
        process = Process(
            self.folder / f"{instance}.log",
            "-m",
            module,
            env={
                "CHATMESH_SERVICE": service,
                "CHATMESH_INSTANCE": instance,
                "CHATMESH_CONTROL_ADDRESS": self.address,
                "CHATMESH_JOIN_ADDRESS": self.join_address,
                "CHATMESH_JOIN_TOKEN": await self.token(service),
                "CHATMESH_TRUST_BUNDLE": str(self.trust_bundle),
                "CHATMESH_STATE_DIR": str(state),
                **settings,
            },
        )
        await process.start()
        self._stack.push_async_callback(process.end)
        if serving:
            await self.until_serving(instance)
        return process

    async def client(
        self, name: str = "gateway", own: identity.Identity | None = None, way: str = "plain"
    ) -> Client:
        """A process that calls with the identity `name`; way: "plain", or "link" where it can."""
        own = own or await self.join(name)
        settings = NodeSettings(
            service=name,
            instance=f"{name}-client",
            control_address=self.address,
            join_token="",
            trust_bundle=self.trust_bundle,
            state_dir=self.folder,
        )
        env = {"GRPC_XDS_BOOTSTRAP_CONFIG": bootstrap.render(settings, own)}
        if way == "link":
            links = {"identity": str(own.folder), "control": self.address}
            env["MESH_CLIENT_LINKS"] = json.dumps(links)
        log = self.folder / f"client-{secrets.token_hex(4)}.log"
        process = Process(log, "-m", "tests.support.mesh_client", env=env)
        pipe = asyncio.subprocess.PIPE
        child = await process.start(stdin=pipe, stdout=pipe)
        self._stack.push_async_callback(process.end)
        return Client(process, child)


@contextlib.asynccontextmanager
async def control_plane(folder: Path, **env: str) -> AsyncIterator[ControlPlane]:
    """Starts a control plane with a copy of the topology; ends it with all that was started."""
    control = ControlPlane(folder, **env)
    try:
        await control.start()
        yield control
    finally:
        await control.stop()
