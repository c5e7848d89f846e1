"""A burst that arrives while the event loop is busy is served late, not cancelled."""

import asyncio
import threading
from collections import Counter

import grpc
import pytest

from mesh.chassis.server import SERVER_OPTIONS

# More than gRPC keeps by itself: from 1,000 on it ends some, from 3,000 on all.
BURST = 3_400
METHOD = "/test.Service/Call"
TIMEOUT_S = 120


class Server:
    """A server whose event loop stands still until it is let go."""

    def __init__(self, options) -> None:
        self._options, self.port = options, 0
        self._ready, self._busy, self._go = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    def __enter__(self) -> "Server":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def stand_still(self) -> None:
        self._loop.call_soon_threadsafe(self._stand)
        self._busy.wait()

    def _stand(self) -> None:
        self._busy.set()
        self._go.wait()

    def go_on(self) -> None:
        self._go.set()

    async def _serve(self) -> None:
        async def answer(request: bytes, context: object) -> bytes:
            return request

        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server = grpc.aio.server(options=self._options)
        service = grpc.method_handlers_generic_handler("test.Service", {"Call": handler})
        server.add_generic_rpc_handlers((service,))
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._ready.set()
        await self._over.wait()
        await server.stop(None)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_burst_waits_for_a_busy_loop_and_gRPC_by_itself_cancels_some() -> None:  # noqa: N802
    with (
        Server(SERVER_OPTIONS) as ours,
        Server([("grpc.so_reuseport", 0)]) as plain,
        grpc.insecure_channel(f"127.0.0.1:{ours.port}") as to_ours,
        grpc.insecure_channel(f"127.0.0.1:{plain.port}") as to_plain,
    ):
        calls, cancelled = {}, threading.Event()
        for name, server, channel in (("ours", ours, to_ours), ("plain", plain, to_plain)):
            call = channel.unary_unary(METHOD)
            assert call(b"x", timeout=TIMEOUT_S) == b"x"
            server.stand_still()
            calls[name] = [call.future(b"x", timeout=TIMEOUT_S) for _ in range(BURST)]
        for each in calls["plain"]:
            each.add_done_callback(lambda _: cancelled.set())
        # So much has arrived at either.
        assert cancelled.wait(TIMEOUT_S)
        for server in (ours, plain):
            server.go_on()
        codes = {name: Counter(each.code() for each in found) for name, found in calls.items()}
    assert codes["plain"][grpc.StatusCode.CANCELLED]
    assert codes["ours"] == {grpc.StatusCode.OK: BURST}
