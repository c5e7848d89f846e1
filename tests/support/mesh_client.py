"""An xDS client in a process of its own (gRPC reads its bootstrap once a process).

Reads one JSON operation a line from standard input, writes one JSON result a line:

unary   {target, timeout?, wait_for_ready?}        ListTokenizers → {instance} or {code, details}
generate {target, instance?, timeout?}             opens a stream; its first message → {instance}
read    {count}                                    next messages of the open stream → {read}
cancel  {}                                         cancels the open stream
linked  {target, names}                            waits for links to exactly these instances

With MESH_CLIENT_LINKS, a JSON object of an identity's folder and the control plane's address, the
channels are those of the chassis and calls go by links; else they are gRPC's own.
"""

import asyncio
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import structlog

from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh import topology
from mesh.chassis.channel import open_xds_channel
from mesh.chassis.identity import Identity
from mesh.chassis.lease import watch_instances
from mesh.control.policy import derive
from tests.support.control_plane import until


class Client:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stream: Any = None

    def channel(self, target: str) -> grpc.aio.Channel:
        if target not in self._channels:
            self._channels[target] = self._open(target)
        return self._channels[target]

    def _open(self, target: str) -> Any:
        links = json.loads(os.environ.get("MESH_CLIENT_LINKS", "{}"))
        if not links:
            options = [("grpc.max_reconnect_backoff_ms", 500)]
            return grpc.aio.secure_channel(target, grpc.xds_channel_credentials(), options=options)
        service, own = target.removeprefix("xds:///"), Identity(Path(links["identity"]))
        policies = {each.method: each for each in derive(topology.load(), "gateway").called_methods}
        watch = partial(watch_instances, lambda: links["control"], own, service)
        return open_xds_channel(service, lambda: policies, watch)

    async def linked(self, target: str, names: list[str]) -> dict[str, Any]:
        links: Any = self.channel(target)
        links.links.pick(())

        def names_now() -> list[str]:
            peers = links.links._serving.values()
            return sorted(peer.name for peer in peers if peer.link and peer.link.is_open)

        await until(lambda: names_now() == names, f"links to {names}")
        return {}

    async def unary(
        self, target: str, timeout: float | None = 5, wait_for_ready: bool | None = None
    ) -> dict[str, Any]:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel(target))
        answer = await stub.ListTokenizers(
            tokenizer_pb2.ListTokenizersRequest(), timeout=timeout, wait_for_ready=wait_for_ready
        )
        return {"instance": answer.tokenizers[0].model}

    async def slow(self, target: str, timeout: float | None = None) -> dict[str, Any]:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel(target))
        await stub.CountTokens(tokenizer_pb2.CountTokensRequest(), timeout=timeout)
        return {}

    async def generate(
        self, target: str, instance: str = "", timeout: float | None = None
    ) -> dict[str, Any]:
        stub = inference_pb2_grpc.InferenceServiceStub(self.channel(target))
        metadata = (("x-chatmesh-instance", instance),) if instance else ()
        self._stream = stub.Generate(
            inference_pb2.GenerateRequest(), timeout=timeout, metadata=metadata
        )
        first = await self._stream.read()
        return {"instance": first.started.instance}

    async def read(self, count: int) -> dict[str, Any]:
        read = 0
        while read < count and await self._stream.read() is not grpc.aio.EOF:
            read += 1
        return {"read": read}

    async def cancel(self) -> dict[str, Any]:
        self._stream.cancel()
        return {}


async def main() -> None:
    # Standard output is for results.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    client = Client()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        fields = json.loads(line)
        begin = time.monotonic()
        try:
            result = await getattr(client, fields.pop("op"))(**fields)
        except grpc.aio.AioRpcError as error:
            result = {"code": error.code().name, "details": error.details()}
        print(json.dumps({**result, "seconds": time.monotonic() - begin}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
