"""A real Envoy fed by a real ADS server, before a small gateway, all on loopback with mTLS.

The ADS server speaks the control plane's own protocol code (AdsSession) and serves a snapshot that
the control plane's own code has checked; the clusters are the control plane's too.
"""

# ruff: noqa: N802 - methods are called as their contracts say

import asyncio
import contextlib
import copy
import datetime
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from grpc_reflection.v1alpha import reflection

import mesh.edge.messages  # noqa: F401 - ParseDict finds them
from mesh import topology
from mesh.chassis import identity, server
from mesh.control import ca, render, snapshot
from mesh.control.ads import AdsSession
from mesh.control.registry import Instance, State
from mesh.edge import admin
from mesh.edge.bootstrap import bootstrap, envoy_command, write_files
from mesh.edge.inputs import EdgeInputs, EdgeLimits
from mesh.edge.render import edge_resources
from mesh.edge.settings import EnvoySettings
from tests.support.fake_gateway import Gateway, add_to
from tests.support.pki import TestMesh
from tests.support.running import free_ports

WAIT_S = 20.0
DEFAULT_LIMITS = EdgeLimits()
Change = Callable[[dict[str, Any]], None]


class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """Serves the newest snapshot; keeps what clients refused."""

    def __init__(self) -> None:
        self.snapshot = snapshot.EMPTY
        self.refused: list[str] = []
        self._changed = asyncio.Condition()
        self._sessions: list[AdsSession] = []

    async def publish(self, rendered: dict[str, Any]) -> None:
        """Checks and serves; returns when every stream has accepted or refused all of it."""
        version = self.snapshot.version + 1
        async with self._changed:
            self.snapshot = snapshot.build(version, {"envoy": rendered})
            self._changed.notify_all()
            await asyncio.wait_for(self._changed.wait_for(self._settled), WAIT_S)

    def _settled(self) -> bool:
        """Nothing is to be sent, and what was sent is answered."""
        return all(
            max(state.acked_version, state.nacked_version) >= state.sent_version
            for session in self._sessions
            for state in session.types.values()
        ) and not any(self._due(session) for session in self._sessions)

    def _due(self, session: AdsSession) -> bool:
        return any(True for _ in copy.deepcopy(session).poll(self.snapshot))

    async def StreamAggregatedResources(self, request_iterator, context):
        session = AdsSession("envoy", secrets=True)
        self._sessions.append(session)
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            while True:
                async with self._changed:
                    responses = list(session.poll(self.snapshot))
                    if not responses:
                        await self._changed.wait()
                for response in responses:
                    yield response
        finally:
            self._sessions.remove(session)
            reader.cancel()

    async def _read(self, session, requests):
        async for request in requests:
            async with self._changed:
                refusal = session.on_request(request, time.time())
                if refusal:
                    self.refused.append(refusal)
                self._changed.notify_all()


class Edge:
    """Envoy with its two servers. Made by `running_edge`."""

    def __init__(self, folder: Path, limits: EdgeLimits, **inputs: Any) -> None:
        self.folder, self.limits = folder, limits
        self.mesh = TestMesh(folder / "mesh")
        self.web_ca = ca.create("test web", datetime.datetime.now(datetime.UTC))
        self.state_dir = folder / "edge"
        self.plain_port, self.tls_port = free_ports(2)
        self.gateway, self.ads = Gateway(), Ads()
        self._inputs = inputs
        self.gateway_address = ""
        # Gateways of a test's own that stand in for the one started here.
        self.gateway_addresses: list[str] = []
        self._servers: list[grpc.aio.Server] = []
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.plain_port}"

    @property
    def tls_url(self) -> str:
        return f"https://localhost:{self.tls_port}"

    @property
    def web_ca_file(self) -> Path:
        path = self.folder / "web-ca.crt"
        path.write_text(self.web_ca.trust_bundle_pem)
        return path

    def web_certificate(self) -> tuple[str, str]:
        """A fresh (certificate chain, key) for localhost."""
        key = ca.new_key()
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        issued = self.web_ca.sign(key.public_key(), now, day, names=["localhost"])
        return issued.certificate_chain_pem, ca.key_pem(key)

    def inputs(self, **changes: Any) -> EdgeInputs:
        if not hasattr(self, "_web"):
            self._web = self.web_certificate()
        certificate, key = self._web
        given = {
            "plain_port": self.plain_port,
            "tls_port": self.tls_port,
            "web_certificate_pem": certificate,
            "web_key_pem": key,
            "trust_bundle_pem": self.mesh.authority.trust_bundle_pem,
            "limits": self.limits,
            **self._inputs,
            **changes,
        }
        return EdgeInputs(**given)

    def rendered(self, **changes: Any) -> dict[str, Any]:
        """What the control plane would serve; a dict of one's own to change."""
        addresses = self.gateway_addresses or [self.gateway_address]
        instances = [
            Instance("gateway", f"gateway-{number}", address, number, State.SERVING)
            for number, address in enumerate(addresses, 1)
        ]
        clusters = render.for_envoy(topology.load(), instances, "edge")
        return copy.deepcopy({**clusters, **edge_resources(self.inputs(**changes))})

    async def publish(self, change: Change | None = None, **changes: Any) -> None:
        """Serves the rendered resources, changed by `change`, and waits for Envoy's answer."""
        rendered = self.rendered(**changes)
        if change:
            change(rendered)
        await self.ads.publish(rendered)

    async def start_gateway(self, identity_: identity.Identity) -> None:
        """Serves the gateway at a new address; what is published next names this one."""
        self.gateway_server = grpc.aio.server(
            interceptors=[server.ErrorInterceptor()], options=server.SERVER_OPTIONS
        )
        add_to(self.gateway_server, self.gateway)
        names = ("chatmesh.chat.v1.ChatService", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.gateway_server)
        credentials = server.server_credentials(identity_)
        port = self.gateway_server.add_secure_port("127.0.0.1:0", credentials)
        await self.gateway_server.start()
        self.gateway_address = f"127.0.0.1:{port}"
        self._servers.append(self.gateway_server)

    async def start_ads(self, identity: str = "control") -> str:
        """Serves ADS; returns its address."""
        self.ads_server = grpc.aio.server(options=server.SERVER_OPTIONS)
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self.ads, self.ads_server)
        credentials = server.server_credentials(self.mesh.identity(identity))
        port = self.ads_server.add_secure_port("127.0.0.1:0", credentials)
        await self.ads_server.start()
        self._servers.append(self.ads_server)
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Ends Envoy and the servers."""
        if self.process is not None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait, 10)
        for serving in reversed(self._servers):
            await serving.stop(0)

    def start_envoy(self, ads_address: str, drain_s: int) -> None:
        self.mesh.identity("edge", state_dir=self.state_dir)
        write_files(self.state_dir, bootstrap("edge-1", ads_address, self.limits, 512 << 20))
        settings = EnvoySettings(drain_s=drain_s, log_flush_ms=20)
        with (self.folder / "envoy.log").open("w") as log:
            self.process = subprocess.Popen(
                envoy_command(self.state_dir, settings), stdout=log, stderr=log
            )

    async def ready(self) -> admin.EnvoyHealth:
        """Waits until Envoy listens on both ports."""
        async for _ in until(WAIT_S):
            health = await asyncio.to_thread(admin.health, self.state_dir)
            if len(health.listeners) == 2 and health.live:
                return health
            assert self.process.poll() is None, self.log()
        raise AssertionError(f"not ready: {self.ads.refused} {self.log()}")

    def log(self) -> str:
        return (self.folder / "envoy.log").read_text()[-4000:]

    async def access_log(self, request_id: str) -> dict[str, Any]:
        """The line of a request, once it is written."""
        async for _ in until(WAIT_S):
            for line in (self.state_dir / "access.log").read_text().splitlines():
                if (entry := json.loads(line))["request_id"] == request_id:
                    return entry
        raise AssertionError(f"no line for {request_id}")


async def until(timeout_s: float) -> AsyncIterator[None]:
    """Polls another process, at most timeout_s."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        yield
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running_edge(
    folder: Path,
    limits: EdgeLimits = DEFAULT_LIMITS,
    *,
    drain_s: int = 3600,
    gateway_identity: str = "gateway",
    **inputs: Any,
) -> AsyncIterator[Edge]:
    """Starts all three, waits until Envoy listens, ends them."""
    edge = Edge(folder, limits, **inputs)
    try:
        await edge.start_gateway(edge.mesh.identity(gateway_identity))
        await edge.publish()
        edge.start_envoy(await edge.start_ads(), drain_s)
        await edge.ready()
        yield edge
    finally:
        await edge.stop()
