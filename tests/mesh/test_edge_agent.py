"""The agent and Envoy with the real control plane, each a process of its own."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys

import grpc
import httpx
import pytest

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis import identity
from mesh.edge.bootstrap import BOOTSTRAP_FILE, envoy_command
from mesh.edge.settings import EnvoySettings
from tests.support.edge import until
from tests.support.running import PROJECT, free_ports

pytestmark = pytest.mark.mesh

WAIT_S = 40
CERTIFICATE_LIFETIME_S = 8


class Processes:
    """A control plane, an agent and Envoy in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.control_dir, self.state_dir = folder / "control", folder / "edge-1"
        for path in (self.control_dir, self.state_dir):
            path.mkdir(mode=0o700)
        self.plain_port, self.tls_port = free_ports(2)
        self.token_file = folder / "operator-token"
        self.running: list[subprocess.Popen] = []

    def start(self, command, **environment):
        name = command[2] if command[1] == "-m" else "envoy"
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                command,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.running.append(process)
        return process

    def start_control(self):
        return self.start(
            [sys.executable, "-m", "mesh.control"],
            CONTROL_STATE_DIR=str(self.control_dir),
            CONTROL_OPERATOR_TOKEN_FILE=str(self.token_file),
            CONTROL_CERT_LIFETIME_S=str(CERTIFICATE_LIFETIME_S),
            EDGE_PORT=str(self.plain_port),
            EDGE_TLS_PORT=str(self.tls_port),
        )

    def address(self, name):
        return (self.control_dir / name).read_text().strip()

    async def join_operator(self):
        token = secrets.token_urlsafe(32)  # works once
        self.token_file.write_text(token)
        self.operator = await identity.join(
            self.address("join-address"),
            token,
            self.control_dir / "ca.crt",
            self.folder / "operator",
        )

    @contextlib.asynccontextmanager
    async def admin(self):
        credentials = self.operator.channel_credentials()
        async with grpc.aio.secure_channel(self.address("address"), credentials) as channel:
            yield mesh_pb2_grpc.MeshAdminServiceStub(channel)

    async def start_agent(self):
        await self.join_operator()
        async with self.admin() as admin:
            request = mesh_pb2.CreateJoinTokenRequest(service="edge")
            answer = await admin.CreateJoinToken(request, timeout=10)
        return self.start(
            [sys.executable, "-m", "mesh.edge"],
            CHATMESH_SERVICE="edge",
            CHATMESH_INSTANCE="edge-1",
            CHATMESH_CONTROL_ADDRESS=self.address("address"),
            CHATMESH_JOIN_ADDRESS=self.address("join-address"),
            CHATMESH_JOIN_TOKEN=answer.join_token,
            CHATMESH_TRUST_BUNDLE=str(self.control_dir / "ca.crt"),
            CHATMESH_STATE_DIR=str(self.state_dir),
        )

    def start_envoy(self):
        return self.start(envoy_command(self.state_dir, EnvoySettings()))

    async def state(self):
        """State and address of edge-1; (0, "") while it is not registered."""
        async with self.admin() as admin:
            answer = await admin.GetStatus(mesh_pb2.GetStatusRequest(), timeout=10)
        for each in answer.instances:
            if each.name == "edge-1":
                return each.state, each.address
        return 0, ""

    async def accepted(self):
        """Type names of which Envoy has accepted a version, and what it refused."""
        await self.join_operator()
        async with self.admin() as admin:
            answer = await admin.GetSnapshot(mesh_pb2.GetSnapshotRequest(), timeout=10)
        lines = [each for each in answer.subscriptions if each.client_kind == "envoy"]
        refused = [each.nack_message for each in lines if each.nacked_version]
        return {each.type_url.rpartition(".")[2] for each in lines if each.acked_version}, refused

    async def healthz(self):
        async with httpx.AsyncClient(timeout=10) as client:
            try:
                url = f"http://127.0.0.1:{self.plain_port}/healthz"
                return (await client.get(url)).status_code
            except httpx.HTTPError:
                return 0

    def logs(self):
        parts = [
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log")
        ]
        return "\n".join(parts)

    async def wait(self, condition):
        async for _ in until(WAIT_S):
            if await condition():
                return
        raise AssertionError(self.logs())

    def stop(self):
        for process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
                process.wait(20)


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path)
    yield made
    made.stop()


def exists(path):
    async def condition():
        return path.exists()

    return condition


async def test_the_agent_reports_envoy_and_envoy_outlives_it(processes):
    control = processes.start_control()
    await processes.wait(exists(processes.control_dir / "join-address"))
    agent = await processes.start_agent()
    await processes.wait(exists(processes.state_dir / BOOTSTRAP_FILE))
    assert (await processes.state())[0] == mesh_pb2.INSTANCE_STATE_STARTING
    envoy = processes.start_envoy()

    async def serving():
        return await processes.state() == (
            mesh_pb2.INSTANCE_STATE_SERVING,
            f"127.0.0.1:{processes.plain_port}",
        )

    await processes.wait(serving)
    assert await processes.healthz() == 200
    types, refused = await processes.accepted()
    assert types >= {"Listener", "RouteConfiguration", "Cluster", "Secret"}
    assert refused == []
    assert stat_mode(processes.state_dir / "identity" / "tls.key") == 0o600

    # The agent dies: nobody notices at the edge; its successor finds Envoy as it is.
    agent.send_signal(signal.SIGKILL)
    agent.wait(10)
    assert await processes.healthz() == 200

    async def gone():
        return (await processes.state())[0] == 0

    await processes.join_operator()
    await processes.wait(gone)
    agent = await processes.start_agent()
    await processes.wait(serving)
    assert envoy.poll() is None

    # Certificates are renewed; a new control plane accepts Envoy with the one of now, although the
    # one that it began with has expired.
    versions = processes.state_dir / "identity.d"

    async def renewed_twice():
        return max(int(path.name) for path in versions.iterdir()) >= 4

    await processes.wait(renewed_twice)
    control.terminate()
    control.wait(20)
    assert await processes.healthz() == 200
    (processes.control_dir / "join-address").unlink()
    processes.start_control()
    await processes.wait(exists(processes.control_dir / "join-address"))

    async def accepted_again():
        return "Listener" in (await processes.accepted())[0]

    await processes.wait(accepted_again)

    # Envoy dies: the agent says so.
    envoy.send_signal(signal.SIGKILL)
    envoy.wait(10)

    async def starting():
        await processes.join_operator()
        return (await processes.state())[0] == mesh_pb2.INSTANCE_STATE_STARTING

    await processes.wait(starting)
    agent.terminate()
    assert await asyncio.to_thread(agent.wait, 20) == 0
    assert json.loads((processes.state_dir / BOOTSTRAP_FILE).read_text())["node"]["id"] == "edge-1"


def stat_mode(path):
    return path.stat().st_mode & 0o777
