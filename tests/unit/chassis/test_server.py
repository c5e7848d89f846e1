"""Who may call, with what time: over real mTLS on a loopback port."""

import contextlib

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chatmesh.mesh.v1 import mesh_pb2
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis import deadlines
from mesh.chassis.channel import MeshChannel
from mesh.chassis.errors import MeshError
from mesh.chassis.server import SERVER_OPTIONS, MeshServer
from tests.support.pki import TestMesh

DECODE = "chatmesh.tokenizer.v1.TokenizerService/Decode"


class Tokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    async def Decode(self, request, context):  # noqa: N802
        return tokenizer_pb2.DecodeResponse(text=f"{deadlines.remaining_s()}")


def policy(callers=("gateway",), **fields):
    allowed = [f"spiffe://chatmesh/{name}" for name in callers]
    values = {"deadline_ms": 2000, **fields}
    return {DECODE: mesh_pb2.MethodPolicy(method=DECODE, allowed_spiffe_ids=allowed, **values)}


@contextlib.asynccontextmanager
async def serving(mesh, policies, state_dir=None):
    own = mesh.identity("tokenizer", state_dir=state_dir)
    server = MeshServer(own, lambda: policies, connection_age_max_s=60)
    add = tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server
    address = await server.start([(add, Tokenizer())], "127.0.0.1")
    try:
        yield address
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def stub(address, caller):
    async with grpc.aio.secure_channel(address, caller.channel_credentials()) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def refused(address, caller, **kwargs):
    async with stub(address, caller) as tokenizer:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tokenizer.Decode(tokenizer_pb2.DecodeRequest(), **kwargs)
    return MeshError.from_rpc(caught.value)


async def test_a_named_caller_is_served_and_its_deadline_is_known(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(mesh, policy()) as address, stub(address, mesh.identity("gateway")) as t:
        answer = await t.Decode(tokenizer_pb2.DecodeRequest(), timeout=5)
    assert 4 < float(answer.text) <= 5


async def test_another_identity_of_the_same_ca_is_refused(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(mesh, policy()) as address:
        error = await refused(address, mesh.identity("inference"), timeout=5)
    assert (error.code, error.reason) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "CALLER_NOT_ALLOWED",
    )
    assert error.metadata["peer"] == "spiffe://chatmesh/inference"


async def test_a_method_without_policy_is_nobodys(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(mesh, {}) as address:
        error = await refused(address, mesh.identity("gateway"), timeout=5)
    assert error.reason == "CALLER_NOT_ALLOWED"


async def test_a_call_without_deadline_is_refused(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(mesh, policy()) as address:
        error = await refused(address, mesh.identity("gateway"))
    assert (error.code, error.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "DEADLINE_REQUIRED",
    )


async def test_strangers_get_the_methods_own_deadline(tmp_path):
    mesh = TestMesh(tmp_path)
    policies = policy(callers=["edge"], deadline_optional=True)
    async with serving(mesh, policies) as address, stub(address, mesh.identity("edge")) as t:
        answer = await t.Decode(tokenizer_pb2.DecodeRequest())
    assert 1 < float(answer.text) <= 2


async def test_a_certificate_of_another_ca_does_not_connect(tmp_path):
    mesh, foreign = TestMesh(tmp_path / "a"), TestMesh(tmp_path / "b")
    stranger = foreign.identity("gateway")
    # It trusts our CA, so that only the server can refuse.
    stranger.trust_bundle.write_text(mesh.authority.trust_bundle_pem)
    async with serving(mesh, policy()) as address:
        error = await refused(address, stranger, timeout=5)
    assert error.code == grpc.StatusCode.UNAVAILABLE


async def test_plaintext_does_not_connect(tmp_path):
    # Pitfall 2: xds_server_credentials on grpc.aio would have served plaintext here.
    async with (
        serving(TestMesh(tmp_path), policy()) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tokenizer.Decode(tokenizer_pb2.DecodeRequest(), timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_health_is_for_the_mesh(tmp_path):
    mesh = TestMesh(tmp_path)
    async with serving(mesh, {}) as address:
        caller = mesh.identity("inference")
        async with grpc.aio.secure_channel(address, caller.channel_credentials()) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_next_handshake_serves_the_renewed_certificate(tmp_path):
    mesh = TestMesh(tmp_path)
    caller = mesh.identity("gateway")
    async with serving(mesh, policy()) as address:
        async with stub(address, caller) as tokenizer:
            await tokenizer.Decode(tokenizer_pb2.DecodeRequest(), timeout=5)
        renewed = mesh.identity("tokenizer")
        served = await _served_serial(address, caller)
    certificate = x509.load_pem_x509_certificate(renewed.certificate.read_bytes())
    assert served == certificate.serial_number


async def _served_serial(address, caller):
    import asyncio
    import ssl

    context = ssl.create_default_context(cafile=str(caller.trust_bundle))
    context.load_cert_chain(caller.certificate, caller.key)
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


async def test_two_servers_never_share_a_port(tmp_path):
    # Pitfall 16: so_reuseport is on by default, and two servers would share the port silently.
    mesh = TestMesh(tmp_path)
    async with serving(mesh, policy()) as address:
        second = grpc.aio.server(options=SERVER_OPTIONS)
        with pytest.raises(RuntimeError):
            second.add_insecure_port(address)


async def test_the_channel_sets_the_topologys_deadline_and_the_trace(tmp_path):
    mesh = TestMesh(tmp_path)
    policies = policy(deadline_ms=1500)
    async with serving(mesh, policies) as address:
        caller = mesh.identity("gateway")
        inner = grpc.aio.secure_channel(address, caller.channel_credentials())
        async with MeshChannel(inner, lambda: policies) as channel:
            tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            answer = await tokenizer.Decode(tokenizer_pb2.DecodeRequest())
    assert 1 < float(answer.text) <= 1.5
