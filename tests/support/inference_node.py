"""An inference node on a loopback port: any engine behind the real service, its meter, the wire."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from chatmesh.inference.v1 import inference_pb2
from chatmesh.inference.v1.inference_pb2_grpc import (
    InferenceServiceStub,
    add_InferenceServiceServicer_to_server,
)
from inference_svc.engine.protocol import Engine
from inference_svc.generations import Generations
from inference_svc.model_folder import ModelFolder
from inference_svc.service import InferenceService
from inference_svc.spool import Spool
from inference_svc.usage import UsageReporter
from mesh.chassis import deadlines
from mesh.chassis.redis_client import connect
from mesh.chassis.server import ErrorInterceptor
from tests.support.loopback import loopback

TURN = "01J00000000000000000000000"
DEADLINE_S = 10
NO_REDIS = "redis://127.0.0.1:1/0"  # nobody listens: usage is spooled


class AdmitsWithDeadline(ErrorInterceptor):
    """As the chassis does in the mesh."""

    async def admit(self, method: str, context) -> None:
        deadlines.enter(context.time_remaining())


@dataclass
class NodeUnderTest:
    stub: InferenceServiceStub
    model: ModelFolder
    engine: Engine
    usage: UsageReporter
    generations: Generations
    stopping: asyncio.Event

    def request(self, **fields: object) -> inference_pb2.GenerateRequest:
        base: dict = {"turn_id": TURN, "model": self.model.id, "prompt_token_ids": range(2, 42)}
        base |= {"max_tokens": 20, "cache_salt": "tenant"}
        return inference_pb2.GenerateRequest(**(base | fields))

    async def generate(self, **fields: object) -> list[inference_pb2.GenerateResponse]:
        return [m async for m in self.stub.Generate(self.request(**fields), timeout=DEADLINE_S)]


@contextlib.asynccontextmanager
async def serving(
    model: ModelFolder,
    engine: Engine,
    state_dir: Path,
    redis_url: str = NO_REDIS,
    flush_window_s: float = 0.025,
) -> AsyncIterator[NodeUnderTest]:
    """Starts the engine and serves it; everything is stopped at the end."""
    await engine.start()
    usage = UsageReporter(
        connect(redis_url, name="inference-1"),
        Spool(state_dir / "usage.spool", 1 << 20),
        redis_timeout_s=1.0,
        flush_interval_s=0.05,
        pending_event_count_max=1000,
    )
    usage.start()
    generations, stopping = Generations(engine, usage), asyncio.Event()
    service = InferenceService(
        "inference-1",
        model,
        engine,
        generations,
        flush_window_s=flush_window_s,
        stopping=stopping,
    )
    registration = (add_InferenceServiceServicer_to_server, service)
    async with loopback([registration], AdmitsWithDeadline()) as channel:
        stub = InferenceServiceStub(channel)
        yield NodeUnderTest(stub, model, engine, usage, generations, stopping)
        stopping.set()
    await engine.stop()
    await generations.idle()
    await usage.stop()


def output_ids(messages: list[inference_pb2.GenerateResponse]) -> list[int]:
    """The tokens of a stream."""
    return [i for m in messages if m.HasField("tokens") for i in m.tokens.token_ids]


def text_of(messages: list[inference_pb2.GenerateResponse]) -> str:
    """The text of a stream, what was held back to its end included."""
    return "".join(m.tokens.text + m.finished.text for m in messages)
