"""The real Envoy takes what the control plane serves."""

import asyncio
import ssl
import urllib.error
import urllib.request

import pytest

from chatmesh.mesh.v1 import mesh_pb2
from mesh.edge.bootstrap import envoy_command
from tests.support.control_plane import DEADLINE_S, control_plane, until
from tests.support.running import free_ports

pytestmark = pytest.mark.mesh


async def test_envoy_accepts_the_snapshot_and_serves_the_public_certificate(tmp_path):
    plain, tls = free_ports(2)
    async with control_plane(tmp_path, EDGE_PORT=str(plain), EDGE_TLS_PORT=str(tls)) as control:
        await control.server("edge-1", module="mesh.edge", serving=False)
        state = tmp_path / "edge-1"
        await until((state / "envoy.json").exists, "the agent has written Envoy's files")
        envoy = await asyncio.create_subprocess_exec(*envoy_command(state))
        try:
            # Serving is what the agent says once Envoy has its listeners.
            await control.until_serving("edge-1")
            answer = await asyncio.to_thread(get, f"http://127.0.0.1:{plain}/healthz")
            assert answer == 200
            trust = ssl.create_default_context(cafile=control.state / "web-ca.crt")
            assert await asyncio.to_thread(get, f"https://localhost:{tls}/healthz", trust) == 200

            lines = (await control.snapshot()).subscriptions
            assert {line.type_url.rpartition(".")[2] for line in lines} == {
                "Listener", "RouteConfiguration", "Cluster", "ClusterLoadAssignment", "Secret",
            }  # fmt: skip
            assert all(line.acked_version and not line.nacked_version for line in lines), lines
            assert {(line.client_kind, line.spiffe_id) for line in lines} == {
                ("envoy", "spiffe://chatmesh/edge")
            }
            assert [one.state for one in (await control.status()).instances] == [
                mesh_pb2.INSTANCE_STATE_SERVING
            ]
        finally:
            envoy.kill()
            await asyncio.wait_for(envoy.wait(), DEADLINE_S)


def get(url: str, trust: ssl.SSLContext | None = None) -> int:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S, context=trust) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
