"""A real server on a loopback port, for tests of one service: no mesh, no TLS, real wire.

The interceptor is the chassis' own translation of errors, so that a test sees the same status,
reason and metadata as a caller in the mesh.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from mesh.chassis.server import ErrorInterceptor


@contextlib.asynccontextmanager
async def loopback(
    servicers: Sequence[tuple[Callable[[Any, grpc.aio.Server], None], Any]],
    interceptor: ErrorInterceptor | None = None,
) -> AsyncIterator[grpc.aio.Channel]:
    """Serves (add_..._to_server, servicer) pairs and yields a channel to them."""
    options = [("grpc.so_reuseport", 0)]
    server = grpc.aio.server(interceptors=[interceptor or ErrorInterceptor()], options=options)
    for add, servicer in servicers:
        add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)
