"""An instance of "tokenizer" or "inference" under the chassis, which tells who answered."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from chatmesh.inference.v1 import inference_pb2, inference_pb2_grpc
from chatmesh.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from mesh.chassis import Node, run

TICK_S = 0.02


class Tokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    def __init__(self, instance: str) -> None:
        self._instance = instance

    async def ListTokenizers(self, request: Any, context: Any) -> Any:  # noqa: N802
        own = tokenizer_pb2.Tokenizer(model=self._instance)
        return tokenizer_pb2.ListTokenizersResponse(tokenizers=[own])

    async def CountTokens(self, request: Any, context: Any) -> Any:  # noqa: N802
        await asyncio.Event().wait()  # for ever: the caller's deadline ends it


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, instance: str) -> None:
        self._instance = instance

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        started = inference_pb2.Started(instance=self._instance)
        yield inference_pb2.GenerateResponse(started=started)
        while True:
            yield inference_pb2.GenerateResponse(tokens=inference_pb2.Tokens())
            await asyncio.sleep(TICK_S)


async def start(node: Node) -> None:
    tokenizer = (
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server,
        Tokenizer(node.instance),
    )
    inference = (
        inference_pb2_grpc.add_InferenceServiceServicer_to_server,
        Inference(node.instance),
    )
    await node.serve([inference if node.service == "inference" else tokenizer])


if __name__ == "__main__":
    run(start)
