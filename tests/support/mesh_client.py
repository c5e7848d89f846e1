"""An xDS client in a process of its own (gRPC reads its bootstrap once a process).

Reads one JSON operation a line from standard input, writes one JSON result a line:

unary   {target, timeout?, wait_for_ready?}        ListTokenizers → {instance} or {code, details}
generate {target, instance?, timeout?}             opens a stream; its first message → {instance}
read    {count}                                    next messages of the open stream → {read}
cancel  {}                                         cancels the open stream
"""

import asyncio
import json
import sys
import time
from typing import Any

import grpc

from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc


class Client:
    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stream: Any = None

    def channel(self, target: str) -> grpc.aio.Channel:
        if target not in self._channels:
            self._channels[target] = grpc.aio.secure_channel(
                target,
                grpc.xds_channel_credentials(),
                options=[("grpc.max_reconnect_backoff_ms", 500)],
            )
        return self._channels[target]

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
