"""Connections that are silent: dead ones are noticed, living ones are left alone.

Times of the chassis are scaled down by ten; what is tested is which options are set.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time

import grpc
import pytest

from chatmesh.mesh.v1 import mesh_pb2
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis.channel import CHANNEL_OPTIONS, MeshChannel
from mesh.chassis.link.links import Links
from mesh.chassis.server import SERVER_OPTIONS
from tests.support.control_plane import until
from tests.support.running import PROJECT

pytestmark = pytest.mark.mesh
both_ways = pytest.mark.parametrize("way", ["plain", "link"])
SCALE = 10
SERVER = """
import asyncio, grpc
from chatmesh.mesh.v1 import link_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis.link.server import LinkService
from mesh.chassis.server import ErrorInterceptor
class Tokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    async def Decode(self, request, context):
        return tokenizer_pb2.DecodeResponse(text="here")
    async def CountTokens(self, request, context):
        await asyncio.Event().wait()
async def main():
    server = grpc.aio.server(options=OPTIONS)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(Tokenizer(), server)
    handlers = {}
    links = LinkService("tokenizer-1", handlers, 3600)
    link_pb2_grpc.add_LinkServiceServicer_to_server(links, server)
    for name in ("Decode", "CountTokens"):
        handlers["chatmesh.tokenizer.v1.TokenizerService/" + name] = ErrorInterceptor().wrap(
            name,
            grpc.unary_unary_rpc_method_handler(
                getattr(Tokenizer(), name),
                getattr(tokenizer_pb2, name + "Request").FromString,
                getattr(tokenizer_pb2, name + "Response").SerializeToString,
            ),
        )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()
asyncio.run(main())
"""


def scaled(options):
    return [(n, v // SCALE if n.endswith("_ms") else v) for n, v in options]


@pytest.fixture
async def server():
    code = SERVER.replace("OPTIONS", repr(scaled(SERVER_OPTIONS)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=PROJECT, stdout=asyncio.subprocess.PIPE
    )
    port = int(await process.stdout.readline())
    try:
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def calling(way, address):
    inner = grpc.aio.insecure_channel(address, options=scaled(CHANNEL_OPTIONS))

    async def watch():
        serving = mesh_pb2.INSTANCE_STATE_SERVING
        yield (mesh_pb2.Instance(name="tokenizer-1", address=address, state=serving),)
        await asyncio.Event().wait()

    links = Links("tokenizer", inner, watch) if way == "link" else None
    async with MeshChannel(inner, dict, links) as channel:
        if links is not None:
            await until(lambda: links.pick(()), "the link is open")
        yield channel


@both_ways
async def test_a_hung_server_is_noticed(server, way):
    process, address = server
    async with calling(way, address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        await stub.Decode(tokenizer_pb2.DecodeRequest(), timeout=10)
        os.kill(process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CountTokens(tokenizer_pb2.CountTokensRequest(), timeout=50)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    # Without ping_timeout_ms the deadline would have ended it: a minute is the default.
    assert time.monotonic() - begin < 45


@both_ways
async def test_a_quiet_connection_is_not_ended_for_its_pings(server, way):
    _, address = server
    async with calling(way, address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        waiting = asyncio.ensure_future(
            stub.CountTokens(tokenizer_pb2.CountTokensRequest(), timeout=5)
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
    # Four pings went by; a server that does not permit them ends it with "too_many_pings".
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
