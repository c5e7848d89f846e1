"""A database of the version before: it is brought up to date, and says what it said.

`data/make.py` made `previous.sql` and `previous.json` in a checkout of that version; it says how.
What a new file of a schema must keep is added there: a row, and the call that reads it.
"""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2 as pb
from chatmesh.conversation.v1 import conversation_pb2_grpc as rpc
from conversation_svc.hot_tail import HotTail
from conversation_svc.service import ThreadReadService, ThreadWriteService
from conversation_svc.store import Store
from mesh import schema
from tests.support.billing import Meter, check_books, metered
from tests.support.contracts import files_of, pool_of
from tests.support.loopback import loopback

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
CONTRACTS = ROOT / "tests" / "unit" / "contracts" / "data" / "previous.binpb"
CALLS = json.loads((DATA / "previous.json").read_text())
NOW = datetime(2026, 11, 21, 13, tzinfo=UTC)


@dataclass
class Upgraded:
    """The present services over the database of the version before."""

    owner_dsn: str
    applied: list[str]
    channels: dict[str, grpc.aio.Channel]
    meter: Meter

    async def call(self, method: str, request: bytes) -> bytes:
        """A call with the bytes of its request, by "package.Service/Method"."""
        call = self.channels[method.split(".")[1]].unary_unary(f"/{method}")
        return bytes(await call(request))


@pytest.fixture
async def upgraded(
    empty_database: str,
    postgres_dsn_for: Callable[[str], str],
    redis_url: str,
    tmp_path: Path,
) -> AsyncIterator[Upgraded]:
    connection = await asyncpg.connect(empty_database)
    await connection.execute((DATA / "previous.sql").read_text())
    await connection.close()
    applied = await schema.migrate(empty_database, schema.schema_folders(ROOT))

    database = empty_database.rpartition("/")[2]

    def dsn_of(service: str) -> str:
        return f"{postgres_dsn_for(service).rpartition('/')[0]}/{database}"

    async with AsyncExitStack() as stack:
        meter = await stack.enter_async_context(metered(dsn_of("billing"), tmp_path))
        store, hot = await Store.connect(dsn_of("conversation")), HotTail.connect(redis_url, 60)
        stack.push_async_callback(store.close)
        stack.push_async_callback(hot.close)
        servicers = [
            (rpc.add_ThreadReadServiceServicer_to_server, ThreadReadService(store, hot)),
            (
                rpc.add_ThreadWriteServiceServicer_to_server,
                ThreadWriteService(store, hot, lambda: NOW),
            ),
        ]
        conversation = await stack.enter_async_context(loopback(servicers))
        channels = {"billing": meter.channel, "conversation": conversation}
        yield Upgraded(empty_database, applied, channels, meter)


def response_of(pool: DescriptorPool, method: str, data: bytes) -> Message:
    """The response of a method as a version of the contracts reads it, without what is new."""
    service, _, name = method.partition("/")
    descriptor = pool.FindServiceByName(service).methods_by_name[name].output_type
    message = message_factory.GetMessageClass(descriptor).FromString(data)
    message.DiscardUnknownFields()
    return message


async def test_what_is_new_is_applied_to_what_is_there(upgraded: Upgraded) -> None:
    files = [one for path in schema.schema_folders(ROOT) for one in schema.read_migrations(path)]
    applied = {f"{one.service}/{one.name}" for one in files}
    connection = await asyncpg.connect(upgraded.owner_dsn)
    rows = await connection.fetch("SELECT service, name FROM public.schema_migrations")
    await connection.close()
    assert {f"{row['service']}/{row['name']}" for row in rows} == applied
    assert "conversation/002_background.sql" in upgraded.applied
    assert "conversation/001_conversation.sql" not in upgraded.applied


async def test_every_call_answers_as_before(upgraded: Upgraded) -> None:
    """Reads read the same values; repeated writes get the answer of the first."""
    previous = pool_of(files_of(CONTRACTS))
    told_something = [one for one in CALLS if one["response"]]
    assert len(told_something) >= 20  # an empty answer proves little
    for one in CALLS:
        request, before = (base64.b64decode(one[name]) for name in ("request", "response"))
        now = await upgraded.call(one["method"], request)
        told = response_of(previous, one["method"], before)
        assert response_of(previous, one["method"], now) == told, one["method"]


async def test_the_books_balance(upgraded: Upgraded) -> None:
    accounts = await upgraded.meter.fetch("SELECT account_id FROM billing.accounts")
    assert len(accounts) == 2
    for row in accounts:
        await check_books(upgraded.meter, row["account_id"])


async def test_what_is_new_has_a_value_for_old_rows(upgraded: Upgraded) -> None:
    reader = rpc.ThreadReadServiceStub(upgraded.channels["conversation"])
    writer = rpc.ThreadWriteServiceStub(upgraded.channels["conversation"])
    listed = await reader.ListThreads(pb.ListThreadsRequest(account_id="acc_one"))
    thread = next(each for each in listed.threads if each.title == "Étude")
    assert thread.background is False
    named = {"account_id": "acc_one", "thread_id": thread.id}
    messages = (await reader.ListMessages(pb.ListMessagesRequest(**named))).messages
    assert [each.finish for each in messages if each.role == content_pb2.ROLE_ASSISTANT] == [
        content_pb2.FINISH_REASON_STOP,
        content_pb2.FINISH_REASON_LENGTH,
        content_pb2.FINISH_REASON_CONTENT_FILTER,
        content_pb2.FINISH_REASON_CANCELLED,
    ]
    changed = await writer.UpdateThread(pb.UpdateThreadRequest(**named, background=True))
    assert (changed.thread.background, changed.thread.title) == (True, "Étude")


def test_the_present_contracts_read_the_calls() -> None:
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    previous = pool_of(files_of(CONTRACTS))
    for one in CALLS:
        before = base64.b64decode(one["response"])
        now = response_of(pool, one["method"], before).SerializeToString(deterministic=True)
        assert response_of(previous, one["method"], now) == response_of(
            previous, one["method"], before
        )
