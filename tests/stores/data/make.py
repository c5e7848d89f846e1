"""Writes `previous.sql` and `previous.json`: a database of an older version, and what it said.

Run by hand, in a checkout of that version, with its own code and stubs:

    cd OLDER && PYTHONPATH=.:proto/gen/python python NEWER/tests/stores/data/make.py NEWER

`previous.sql`: the schema files as that version applied them, and the rows that its services wrote.
`previous.json`: calls (method, request, response; base64) that only read, or that repeat a write;
`tests/stores/test_upgrade.py` makes them again against the present services.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import grpc
from ulid import ULID

from chatmesh.billing.v1 import billing_pb2
from chatmesh.conversation.v1 import conversation_pb2, conversation_pb2_grpc
from conversation_svc.hot_tail import HotTail
from conversation_svc.service import ThreadReadService, ThreadWriteService
from conversation_svc.store import Store
from mesh import schema, stores
from tests.support.billing import event, metered
from tests.support.loopback import loopback

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVICES = ("billing", "conversation", "safety")
SETVAL = "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), {value});"


class Calls:
    """Calls methods by name and writes down what they answered."""

    def __init__(self) -> None:
        self.kept: list[dict[str, str]] = []

    async def keep(self, stub: Any, method: str, request: Any) -> Any:
        """Calls a method whose answer must stay the same."""
        response = await getattr(stub, method)(request)
        service = f"{type(stub).__module__.removesuffix('_pb2_grpc').rpartition('.')[0]}"
        self.kept.append(
            {
                "method": f"{service}.{type(stub).__name__.removesuffix('Stub')}/{method}",
                "request": base64.b64encode(request.SerializeToString()).decode(),
                "response": base64.b64encode(response.SerializeToString()).decode(),
            }
        )
        return response


async def fill_billing(calls: Calls, dsn: str, folder: Path) -> None:
    """Two accounts, keys, and turns in every state."""
    async with metered(dsn, folder) as meter:
        request = billing_pb2.CreateAccountRequest(
            request_id="first", name="Zoë 🙂", tier=3, jurisdiction="DE"
        )
        first = (await meter.admin.CreateAccount(request)).account.id
        await calls.keep(meter.admin, "CreateAccount", request)
        subject = billing_pb2.ResolveSubjectRequest(issuer="https://id", subject="mia", tier=2)
        second = (await meter.keys.ResolveSubject(subject)).account.id
        await calls.keep(meter.keys, "ResolveSubject", subject)
        made = await meter.admin.CreateKey(
            billing_pb2.CreateKeyRequest(request_id="key", account_id=first, name="a key")
        )
        digest = hashlib.sha256(made.secret.encode()).digest()
        settled = await meter.hold(first, prompt=10, output=50)
        await meter.settle(settled, prompt=10, output=20, cached=4)
        counted = await meter.hold(first, prompt=8, output=30)
        events = [
            event(counted, 0, 8, "INPUT"),
            event(counted, 0, 12),
            event(counted, 0, 3, choice=1),
        ]
        await meter.append(*events)
        await meter.settle(counted, prompt=8, output=15)
        released = await meter.hold(second)
        await meter.quota.Release(billing_pb2.ReleaseRequest(turn_id=released))
        await meter.hold(second, prompt=3, output=7)  # runs still
        append = billing_pb2.AppendUsageRequest(events=events)
        await calls.keep(meter.usage, "AppendUsage", append)
        await calls.keep(meter.keys, "ResolveKey", billing_pb2.ResolveKeyRequest(key_digest=digest))
        await calls.keep(meter.admin, "ListAccounts", billing_pb2.ListAccountsRequest())
        for account in (first, second):
            keys = billing_pb2.ListKeysRequest(account_id=account)
            await calls.keep(meter.admin, "ListKeys", keys)
            usage = billing_pb2.GetUsageRequest(account_id=account, period="2026-11")
            await calls.keep(meter.usage, "GetUsage", usage)
            ledger = billing_pb2.ListLedgerRequest(account_id=account)
            await calls.keep(meter.usage, "ListLedger", ledger)


def turn_of(thread_id: str, account: str, number: int) -> conversation_pb2.AppendMessagesRequest:
    """A question and an answer, which ended in one of the ways an answer can end."""
    ends = ("stop", "length", "content_filter", "cancelled")
    messages = [
        conversation_pb2.NewMessage(role=2, content=f"Question {number}? \x1a\0", token_count=4),
        conversation_pb2.NewMessage(
            role=3,
            content=f"Answer {number} 🙂",
            token_count=5,
            finish_reason=ends[number % len(ends)],
            model="small",
        ),
    ]
    if number == 0:
        messages.insert(0, conversation_pb2.NewMessage(role=1, content="Be kind.", token_count=2))
    if number == 1:
        messages.insert(1, conversation_pb2.NewMessage(role=4, content="42", token_count=1))
    return conversation_pb2.AppendMessagesRequest(
        account_id=account,
        thread_id=thread_id,
        request_id=str(ULID.from_datetime(NOW)),
        messages=messages,
        model="small",
        create_if_missing=True,
    )


@asynccontextmanager
async def conversations(dsn: str) -> AsyncIterator[tuple[Any, Any]]:
    """The stubs of a running conversation service, without a hot copy."""
    store, hot = await Store.connect(dsn), HotTail.connect("redis://127.0.0.1:9", 60)
    rpc = conversation_pb2_grpc
    servicers = [
        (rpc.add_ThreadReadServiceServicer_to_server, ThreadReadService(store, hot)),
        (
            rpc.add_ThreadWriteServiceServicer_to_server,
            ThreadWriteService(store, hot, lambda: NOW),
        ),
    ]
    async with loopback(servicers) as channel:
        yield rpc.ThreadReadServiceStub(channel), rpc.ThreadWriteServiceStub(channel)
    await hot.close()
    await store.close()


async def fill_conversation(calls: Calls, dsn: str) -> None:
    """Two accounts with threads, one of them renamed, one deleted."""
    pb = conversation_pb2
    async with conversations(dsn) as (read, write):
        for account in ("acc_one", "acc_two"):
            kept, gone = (f"thr_{ULID.from_datetime(NOW)}" for _ in range(2))
            turns = [turn_of(kept, account, number) for number in range(4)]
            for turn in (*turns, turn_of(gone, account, 0)):
                await write.AppendMessages(turn)
            rename = pb.RenameThreadRequest(
                account_id=account, thread_id=kept, title="Étude", request_id="rename"
            )
            await write.RenameThread(rename)
            await write.DeleteThread(
                pb.DeleteThreadRequest(account_id=account, thread_id=gone, request_id="delete")
            )
            create = pb.CreateThreadRequest(account_id=account, request_id="create", title="New")
            await write.CreateThread(create)
            for method, request in (
                ("RenameThread", rename),
                ("CreateThread", create),
                *(("AppendMessages", turn) for turn in turns),
            ):
                await calls.keep(write, method, request)
            named = {"account_id": account, "thread_id": kept}
            for method, request in (
                ("ListThreads", pb.ListThreadsRequest(account_id=account)),
                ("GetThread", pb.GetThreadRequest(**named)),
                ("ListMessages", pb.ListMessagesRequest(**named)),
                ("GetTail", pb.GetTailRequest(**named, token_count_max=15)),
            ):
                await calls.keep(read, method, request)


async def rows_of(connection: "asyncpg.Connection[Any]", table: str) -> list[str]:
    """INSERT statements for all rows of a table, and the states of its sequences."""
    columns = await connection.fetch(
        "SELECT column_name AS name, is_identity = 'YES' AS counts FROM information_schema.columns"
        " WHERE table_schema || '.' || table_name = $1 AND is_generated = 'NEVER'"
        " ORDER BY ordinal_position",
        table,
    )
    names = [row["name"] for row in columns]
    literals = ", ".join(f'quote_nullable("{name}"::text)' for name in names)
    rows = await connection.fetch(f"SELECT concat_ws(', ', {literals}) AS line FROM {table}")
    head = f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE"
    # Rows are as the account that they belong to, where row-level security asks for one.
    named = "account_id" in names and table.startswith("conversation.")
    lines: list[str] = []
    account = ""
    for row in rows:
        if named and (owner := row["line"].split(", ")[names.index("account_id")]) != account:
            account = owner
            lines.append(f"SELECT set_config('chatmesh.account_id', {account}, false);")
        lines.append(f"{head} VALUES ({row['line']});")
    for row in columns:
        if row["counts"] and rows:
            value = await connection.fetchval(f"SELECT max({row['name']}) FROM {table}")
            lines.append(SETVAL.format(table=table, column=row["name"], value=value))
    return lines


async def dump(dsn: str, folders: Iterable[Path]) -> str:
    """The database as SQL: what was applied, then the rows."""
    parts = ["-- Made by make.py, in a checkout of the version before; not written by hand."]
    for folder in folders:
        for one in schema.read_migrations(folder):
            parts.append(f"-- {one.service}/{one.name}\n{one.sql}")
    parts.append(schema._LEDGER_OF_MIGRATIONS.strip() + ";")
    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch(
        "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables"
        " WHERE table_schema = ANY($1) AND table_type = 'BASE TABLE' ORDER BY 1",
        [*SERVICES],
    )
    order = ["billing.accounts", "conversation.thread"]  # those that others refer to
    names = [row["name"] for row in tables]
    for table in (*order, *(name for name in names if name not in order)):
        parts += await rows_of(connection, table)
    parts += await rows_of(connection, "public.schema_migrations")
    await connection.close()
    return "\n".join(parts) + "\n"


async def run(owner_dsn: str, folder: Path, target: Path) -> None:
    """Deploys, fills, and writes both files."""
    folders = schema.schema_folders(Path.cwd())
    passwords = {service: secrets.token_urlsafe(12) for service in SERVICES}
    dsns = await schema.deploy(owner_dsn, passwords, folders)
    calls = Calls()
    await fill_billing(calls, dsns["billing"], folder)
    await fill_conversation(calls, dsns["conversation"])
    (target / "previous.sql").write_text(await dump(owner_dsn, folders))
    (target / "previous.json").write_text(json.dumps(calls.kept, indent=1) + "\n")


def main() -> None:
    """Runs with an embedded PostgreSQL of its own."""
    target = Path(sys.argv[1]) / "tests" / "stores" / "data"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        process = stores.prepare_postgres(folder / "postgres")
        with subprocess.Popen(
            process.command, env=dict(process.env), stderr=subprocess.DEVNULL
        ) as running:
            try:
                asyncio.run(process.ready())
                asyncio.run(run(process.url, folder, target))
            finally:
                running.send_signal(process.stop_signal)


if __name__ == "__main__":
    grpc.aio.init_grpc_aio()
    main()
