"""The statements of a transaction, each on a connection whose account is already named."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import asyncpg

from chatmesh.conversation.v1 import conversation_pb2 as pb
from conversation_svc.thread import Message, RequestReusedError, Thread, ThreadNotFoundError
from conversation_svc.wire import thread_from_proto, thread_to_proto
from mesh.chassis.postgres import Connection

_THREAD_FIELDS = tuple(field.name for field in fields(Thread))
_MESSAGE_FIELDS = tuple(field.name for field in fields(Message) if field.name != "content")


@dataclass(frozen=True, slots=True)
class Request:
    """What makes a write repeatable.

    Attributes:
        method: name of the RPC.
        id: the caller's request_id; empty: the write is not repeatable.
        digest: SHA-256 of what is asked.
    """

    method: str
    id: str
    digest: bytes


async def name_account(connection: Connection, account_id: str) -> None:
    """From here on the transaction sees the rows of this account, and no other's."""
    await connection.execute("SELECT set_config('chatmesh.account_id', $1, true)", account_id)


async def claim(
    connection: Connection, account_id: str, request: Request, now: datetime
) -> tuple[Thread, int] | None:
    """Takes the request id, or gives the answer (thread, first position) it had before.

    A second transaction with the same id waits here for the first one's end.
    """
    if not request.id:
        return None
    taken = await connection.fetchval(
        "INSERT INTO conversation.request"
        " (account_id, method, request_id, content_digest, create_time)"
        " VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING true",
        *(account_id, request.method, request.id, request.digest, now),
    )
    return None if taken else await answer_of(connection, account_id, request)


async def answer_of(
    connection: Connection, account_id: str, request: Request
) -> tuple[Thread, int]:
    """The answer (thread, first position) that a request id was given.

    Raises:
        RequestReusedError: it was given to something else.
    """
    row = await connection.fetchrow(
        "SELECT content_digest, answer, first_position FROM conversation.request"
        " WHERE account_id = $1 AND method = $2 AND request_id = $3",
        *(account_id, request.method, request.id),
    )
    if row is None or row["content_digest"] != request.digest:
        raise RequestReusedError
    return thread_from_proto(pb.Thread.FromString(row["answer"])), row["first_position"] or 0


async def settle(
    connection: Connection,
    account_id: str,
    request: Request,
    thread: Thread,
    first_position: int | None = None,
) -> None:
    """Writes down the answer of a request."""
    if request.id:
        await connection.execute(
            "UPDATE conversation.request SET answer = $4, first_position = $5"
            " WHERE account_id = $1 AND method = $2 AND request_id = $3",
            *(account_id, request.method, request.id),
            *(thread_to_proto(thread).SerializeToString(), first_position),
        )


async def insert_thread(connection: Connection, account_id: str, thread: Thread) -> None:
    """Makes an empty thread, unless the account has one of this id, be it deleted."""
    await connection.execute(
        "INSERT INTO conversation.thread (account_id, id, title, model, create_time, update_time,"
        " total_token_count, message_count) VALUES ($1, $2, $3, $4, $5, $6, 0, 0)"
        " ON CONFLICT DO NOTHING",
        *(account_id, thread.id, thread.title, thread.model),
        *(thread.create_time, thread.update_time),
    )


async def lock_thread(connection: Connection, account_id: str, thread_id: str) -> Thread:
    """The thread, whose other writers wait for the end of this transaction."""
    row = await connection.fetchrow(
        "SELECT * FROM conversation.thread"
        " WHERE account_id = $1 AND id = $2 AND delete_time IS NULL FOR UPDATE",
        *(account_id, thread_id),
    )
    if row is None:
        raise ThreadNotFoundError(thread_id)
    return thread_of(row)


async def update_thread(
    connection: Connection, account_id: str, thread: Thread, delete_time: datetime | None = None
) -> None:
    """Writes what can change of a thread that `lock_thread` gave."""
    await connection.execute(
        "UPDATE conversation.thread SET title = $3, model = $4, update_time = $5,"
        " total_token_count = $6, message_count = $7, background = $8, delete_time = $9"
        " WHERE account_id = $1 AND id = $2",
        *(account_id, thread.id, thread.title, thread.model, thread.update_time),
        *(thread.total_token_count, thread.message_count, thread.background, delete_time),
    )


def columns_of(messages: Sequence[Message]) -> list[list[Any]]:
    """Messages as the columns that conversation.finish_append takes."""
    columns = [[getattr(message, name) for message in messages] for name in _MESSAGE_FIELDS]
    return [[_escaped(message.content) for message in messages], *columns]


async def messages_from(
    connection: Connection, account_id: str, thread: Thread, first: int, count: int
) -> list[Message]:
    """`count` messages from the position `first` on, be the thread deleted."""
    rows = await connection.fetch(
        "SELECT * FROM conversation.message WHERE account_id = $1 AND thread_id = $2"
        " AND position BETWEEN $3 AND $4 ORDER BY position",
        *(account_id, thread.id, first, first + count - 1),
    )
    return [message_of(row) for row in rows]


def thread_of(row: asyncpg.Record) -> Thread:
    """A thread from its row."""
    return Thread(**{name: row[name] for name in _THREAD_FIELDS})


def message_of(row: asyncpg.Record) -> Message:
    """A message from its row."""
    values = {name: row[name] for name in _MESSAGE_FIELDS}
    return Message(content=_unescaped(row["content"]), **values)


def _escaped(text: str) -> str:
    """`text` without U+0000, which PostgreSQL's text cannot hold; U+001A marks its places."""
    if "\0" not in text and "\x1a" not in text:
        return text
    return text.replace("\x1a", "\x1a1").replace("\0", "\x1a0")


def _unescaped(text: str) -> str:
    if "\x1a" not in text:
        return text
    return text.replace("\x1a0", "\0").replace("\x1a1", "\x1a")
