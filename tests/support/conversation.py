"""A running conversation service over real stores, and one account's view of it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from ulid import ULID

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2 as pb
from chatmesh.conversation.v1 import conversation_pb2_grpc as rpc
from conversation_svc.hot_tail import HotTail
from conversation_svc.service import ThreadReadService, ThreadWriteService
from conversation_svc.store import Store
from mesh.chassis.errors import MeshError
from tests.support.loopback import loopback

START = datetime(2026, 3, 1, tzinfo=UTC)


class Clock:
    """A clock that tests move; every look is a millisecond later."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


@dataclass
class World:
    """One account's view of a running conversation service."""

    read: Any
    write: Any
    store: Store
    hot: HotTail
    clock: Clock
    account: str

    async def append(
        self, thread_id: str, *messages: pb.NewMessage, request_id: str = "", **rest: Any
    ) -> pb.AppendMessagesResponse:
        request = pb.AppendMessagesRequest(
            account_id=rest.pop("account_id", self.account),
            thread_id=thread_id,
            request_id=request_id or str(ULID()),
            messages=messages or [user("Hello"), answer("Hi")],
            **{"model": "m", **rest},
        )
        return await self.write.AppendMessages(request)

    async def thread(self, *messages: pb.NewMessage) -> str:
        thread_id = f"thr_{ULID()}"
        await self.append(thread_id, *messages, create_if_missing=True)
        return thread_id

    async def tail(self, thread_id: str, **limits: int) -> pb.GetTailResponse:
        return await self.read.GetTail(
            pb.GetTailRequest(account_id=self.account, thread_id=thread_id, **limits)
        )

    async def all_messages(self, thread_id: str, page_size: int = 0) -> list[pb.Message]:
        request = pb.ListMessagesRequest(
            account_id=self.account, thread_id=thread_id, page_size=page_size
        )
        messages: list[pb.Message] = []
        while True:
            page = await self.read.ListMessages(request)
            messages += page.messages
            if not page.next_page_token:
                return messages
            assert page.messages
            request.page_token = page.next_page_token

    async def delete(self, thread_id: str, request_id: str = "") -> None:
        await self.write.DeleteThread(
            pb.DeleteThreadRequest(
                account_id=self.account, thread_id=thread_id, request_id=request_id
            )
        )


def message(role: int, content: str, tokens: int = 1) -> pb.NewMessage:
    return pb.NewMessage(role=content_pb2.Role.ValueType(role), content=content, token_count=tokens)


def user(content: str, tokens: int = 1) -> pb.NewMessage:
    return message(content_pb2.ROLE_USER, content, tokens)


def system(content: str, tokens: int = 1) -> pb.NewMessage:
    return message(content_pb2.ROLE_SYSTEM, content, tokens)


def answer(content: str, tokens: int = 1) -> pb.NewMessage:
    result = message(content_pb2.ROLE_ASSISTANT, content, tokens)
    result.finish_reason, result.model = "stop", "m"
    return result


@pytest.fixture
async def world(
    postgres_dsn_for: Callable[[str], str], redis_url: str, fresh_id: Callable[[str], str]
) -> AsyncIterator[World]:
    store = await Store.connect(postgres_dsn_for("conversation"), 6)
    hot = HotTail.connect(redis_url, 60)
    clock = Clock()
    servicers = [
        (rpc.add_ThreadReadServiceServicer_to_server, ThreadReadService(store, hot)),
        (rpc.add_ThreadWriteServiceServicer_to_server, ThreadWriteService(store, hot, clock)),
    ]
    async with loopback(servicers) as channel:
        read, write = rpc.ThreadReadServiceStub(channel), rpc.ThreadWriteServiceStub(channel)
        yield World(read, write, store, hot, clock, fresh_id("acc_"))
    await hot.close()
    await store.close()


async def refused(call: Any, reason: str, code: str) -> dict[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = MeshError.from_rpc(caught.value)
    assert (error.reason, error.code.name) == (reason, code)
    assert error.message
    return error.metadata


def as_bytes(message: Any) -> bytes:
    return message.SerializeToString(deterministic=True)
