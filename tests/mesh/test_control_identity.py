"""Identity on the wire: impostors, rotation under a running stream."""

import asyncio
import contextlib

import grpc
import pytest

from chatmesh.mesh.v1 import mesh_pb2
from chatmesh.tokenizer.v1 import tokenizer_pb2_grpc
from mesh.chassis import identity
from mesh.chassis.lease import Lease
from mesh.chassis.server import server_credentials
from tests.support.control_plane import control_plane, until
from tests.support.mesh_server import Tokenizer

pytestmark = pytest.mark.mesh


@contextlib.asynccontextmanager
async def listed(control, own, address):
    """Keeps a lease that says that tokenizer-9 is at `address`."""
    described = mesh_pb2.Instance(service="tokenizer", name="tokenizer-9", pid=1)
    described.state, described.address = mesh_pb2.INSTANCE_STATE_SERVING, address
    lease = Lease(control.address, own, described)
    keeping = asyncio.create_task(lease.keep())
    try:
        await asyncio.wait_for(lease.ready.wait(), 20)
        yield
    finally:
        keeping.cancel()


@contextlib.asynccontextmanager
async def serving(own):
    """A tokenizer with the certificate of `own`, whoever that is."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(Tokenizer("tokenizer-9"), server)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(own))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize("way", ["plain", "link"])
async def test_an_impostor_with_a_certificate_of_the_mesh_is_refused(tmp_path, way):
    async with control_plane(tmp_path) as control:
        tokenizer, billing = await control.join("tokenizer"), await control.join("billing")
        client = await control.client(way=way)
        async with serving(billing) as address, listed(control, tokenizer, address):
            answer = await client.call("unary", target="xds:///tokenizer", wait_for_ready=False)
            assert answer["code"] == "UNAVAILABLE"
            assert "SANs" in answer["details"]
        # The same address book, with the right certificate behind it.
        async with serving(tokenizer) as address, listed(control, tokenizer, address):
            answer = await client.call("unary", target="xds:///tokenizer", wait_for_ready=True)
            assert answer.get("instance") == "tokenizer-9"


async def test_certificates_rotate_while_a_stream_runs(tmp_path):
    async with control_plane(tmp_path, CONTROL_CERT_LIFETIME_S="4") as control:
        server = await control.server("inference-1")
        own = await control.join("gateway")
        folder = own.folder.parent
        renewing = asyncio.create_task(identity.keep_renewed(control.address, own, folder))
        try:
            client = await control.client(own=own)
            opened = await client.call("generate", target="xds:///inference", timeout=100)
            assert opened.get("instance") == "inference-1", opened
            _, first_end = own.validity()
            files = identity.Identity(tmp_path / "inference-1" / "identity")

            async def both_expired() -> bool:
                assert (await client.call("read", count=20))["read"] == 20
                # What was valid at the beginning is not any more.
                return all(one.validity()[0] > first_end for one in (own, files))

            await until(both_expired, "certificates of both ends have been replaced")
            assert (await client.call("read", count=20))["read"] == 20
            # A new process, and so a new connection, meets the new certificates.
            other = await control.client(own=own)
            answer = await other.call("generate", target="xds:///inference", timeout=100)
            assert answer.get("instance") == "inference-1", answer
        finally:
            renewing.cancel()
        assert server.pid
