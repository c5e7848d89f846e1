"""A gateway over fakes, all on loopback, for contract tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.api import httpbody_pb2

from chatmesh.chat.v1 import chat_pb2_grpc
from chatmesh.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from gateway.admission.admit import Admission
from gateway.context.source import OperatorPromptsFile
from gateway.settings import QueueLimits, TurnLimits
from gateway.turn.background import Background
from gateway.turn.turns import Turns
from gateway.upstreams.pool import Pool
from gateway.wiring import Place, wire
from mesh.chassis.server import ErrorInterceptor
from tests.support.fakes import MODEL, Fakes
from tests.support.loopback import loopback
from tests.support.memory_journal import Link, MemoryJournal

ACCOUNT = "acc_1"
TURN = "01JD0000000000000000000000"


def identity(
    account: str = ACCOUNT, tier: str = "pro", turn: str = TURN
) -> tuple[tuple[str, str], ...]:
    return (
        ("x-chatmesh-account", account),
        ("x-chatmesh-tier", tier),
        ("x-chatmesh-scopes", "chat,conversations,usage"),
        ("x-chatmesh-key", "key_1"),
        ("x-chatmesh-turn", turn),
    )


@dataclass
class Answer:
    """An HTTP answer as the edge would make it of what the gateway sent."""

    status: int
    headers: dict[str, str]
    messages: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.messages)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def frames(self) -> list[tuple[str, Any]]:
        """(id, data) of each server-sent event; data "[DONE]" stays text."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line[1:])
            if "data" in fields:
                data = fields["data"]
                found.append((fields.get("id", ""), data if data == "[DONE]" else json.loads(data)))
        return found

    @property
    def text(self) -> str:
        """All text of choice 0."""
        return "".join(
            choice["delta"].get("content", "")
            for _, data in self.frames
            if data != "[DONE]"
            for choice in data.get("choices", ())
            if choice["index"] == 0
        )


@dataclass
class Gateway:
    """A running gateway."""

    fakes: Fakes
    pool: Pool
    background: Background
    openai: gateway_pb2_grpc.OpenAIServiceStub
    chat: chat_pb2_grpc.ChatServiceStub
    conversations: chat_pb2_grpc.ConversationServiceStub
    usage: chat_pb2_grpc.UsageServiceStub
    turns: Turns
    journal: MemoryJournal
    link: Link
    upstream: grpc.aio.Channel
    keeping: asyncio.Task[None]
    turn_count: int = 0

    async def die(self) -> None:
        """As kill -9: what it still does reaches nobody."""
        self.link.is_cut = True
        self.keeping.cancel()
        await self.upstream.close()

    def is_taken(self, turn_id: str = TURN) -> bool:
        """Whether the gateway has heard that a node took the turn."""
        run = self.turns.run_of(turn_id)
        return run is not None and run.has_started

    def call(self, body: Any, metadata=None, **overrides: Any):
        data = body if isinstance(body, bytes) else json.dumps(question(**(body or {}))).encode()
        request = gateway_pb2.CreateChatCompletionRequest(body=httpbody_pb2.HttpBody(data=data))
        return self.openai.CreateChatCompletion(request, metadata=metadata or self.identity())

    def identity(self) -> tuple[tuple[str, str], ...]:
        """Of the next request: each has a turn of its own, as at admission."""
        self.turn_count += 1
        return identity(turn=TURN[:-2] + f"{self.turn_count - 1:02d}")

    async def post(self, body: Any = None, metadata=None) -> Answer:
        return await self._whole(self.call(body, metadata))

    async def _whole(self, call: Any) -> Answer:
        messages = [each async for each in call]
        headers = dict(await call.initial_metadata())
        headers["content-type"] = messages[0].content_type
        status = int(headers.get("x-http-status", "200"))
        return Answer(status, headers, [each.data for each in messages])

    async def follow(self, turn_id: str = TURN, after: str = "", metadata=None) -> Answer:
        """What a reader gets, to the end."""
        return await self._whole(self.following(turn_id, after, metadata))

    def following(self, turn_id: str = TURN, after: str = "", metadata=None):
        request = gateway_pb2.FollowTurnRequest(turn_id=turn_id, after=after)
        return self.openai.FollowTurn(request, metadata=metadata or identity())

    async def state(self, turn_id: str = TURN, metadata=None) -> Answer:
        request = gateway_pb2.GetTurnRequest(turn_id=turn_id)
        return await self.get("GetTurn", request, metadata)

    async def stop(self, turn_id: str = TURN, metadata=None) -> Answer:
        request = gateway_pb2.CancelTurnRequest(turn_id=turn_id)
        return await self.get("CancelTurn", request, metadata)

    async def get(self, method: str, request: Any, metadata=None) -> Answer:
        call = getattr(self.openai, method)(request, metadata=metadata or identity())
        body = await call
        headers = dict(await call.initial_metadata())
        return Answer(int(headers.get("x-http-status", "200")), headers, [body.data])


def question(**fields: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "How are you?"}]}
    return asked | fields


@contextlib.asynccontextmanager
async def serving(registrations) -> AsyncIterator[grpc.aio.Channel]:
    """As `loopback`, with a client whose flow-control window does not grow: a slow reader shows."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=[("grpc.so_reuseport", 0)])
    for add, servicer in registrations:
        add(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        fixed_window = [("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(address, options=fixed_window) as channel:
            yield channel
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def running_gateway(
    fakes: Fakes | None = None,
    prompts: OperatorPromptsFile | None = None,
    *,
    journal: MemoryJournal | None = None,
    name: str = "gateway-1",
    admission: Admission | None = None,
    queue: QueueLimits | None = None,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway whose turns end at once when nobody reads them, unless `limits` say otherwise."""
    fakes, journal = fakes or Fakes(), journal or MemoryJournal()
    quick = {"node_backoff_s": 0.001, "safety_backoff_s": 0.001, "reader_grace_s": 0.0}
    settings = TurnLimits(**(quick | {"owner_lease_ms": 100} | limits))
    prompts = prompts or OperatorPromptsFile(None)
    link = Link(journal)
    place = Place(
        name,
        settings,
        Pool(),
        Background(limit_s=5),
        link,
        prompts,
        queue=queue or QueueLimits(),
        admission=admission,
    )
    async with loopback(fakes.registrations()) as upstream:
        services = wire(place, lambda service: upstream)
        keeping = asyncio.create_task(services.turns.keep())
        registrations = [
            (gateway_pb2_grpc.add_OpenAIServiceServicer_to_server, services.openai),
            (chat_pb2_grpc.add_ChatServiceServicer_to_server, services.chat),
            (chat_pb2_grpc.add_ConversationServiceServicer_to_server, services.conversations),
            (chat_pb2_grpc.add_UsageServiceServicer_to_server, services.usage),
        ]
        async with serving(registrations) as channel:
            yield Gateway(
                fakes,
                place.pool,
                place.background,
                gateway_pb2_grpc.OpenAIServiceStub(channel),
                chat_pb2_grpc.ChatServiceStub(channel),
                chat_pb2_grpc.ConversationServiceStub(channel),
                chat_pb2_grpc.UsageServiceStub(channel),
                services.turns,
                journal,
                link,
                upstream,
                keeping,
            )
            if not link.is_cut:
                await services.turns.close()
                await place.background.finish()
        keeping.cancel()
        await asyncio.wait([keeping])


async def failed(call: Any) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call did not fail")
