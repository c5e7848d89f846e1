"""Appends of a group: two statements for all of them, the decision in between.

Each append is as if it had been written alone: it sees what those before it added to its thread,
and one that is refused changes nothing and refuses no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg
from ulid import ULID

from conversation_svc import statements
from conversation_svc.statements import Request
from conversation_svc.thread import (
    Message,
    NewMessage,
    RequestReusedError,
    Thread,
    ThreadNotFoundError,
    appended,
)
from conversation_svc.wire import thread_to_proto
from mesh.chassis.postgres import Connection

# The thread after the append, the messages that were added, and the id of the message before them
# (empty: none, or the append was done before); or why there are none.
Added: TypeAlias = tuple[Thread, list[Message], str]
Outcome: TypeAlias = "Added | ThreadNotFoundError | RequestReusedError"

_BEGIN = "SELECT * FROM conversation.begin_append($1, $2, $3, $4, $5, $6, $7)"
_FINISH = (
    "SELECT conversation.finish_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,"
    " $15, $16, $17, $18, $19)"
)


@dataclass(frozen=True, slots=True)
class Append:
    """What is asked: messages for a thread, which is made if it is missing and that is wished."""

    account_id: str
    thread_id: str
    new: Sequence[NewMessage]
    model: str
    request: Request
    now: datetime
    create_if_missing: bool


async def append_all(connection: Connection, appends: Sequence[Append]) -> list[Outcome]:
    """The outcomes in the order of the appends, which is that of each thread's messages too.

    Runs in a transaction of the caller's.
    """
    # By thread, so that two groups that meet at their threads cannot wait for each other.
    order = sorted(range(len(appends)), key=lambda n: (appends[n].account_id, appends[n].thread_id))
    rows = await connection.fetchmany(_BEGIN, [_begun(appends[index]) for index in order])
    threads: dict[tuple[str, str], Thread] = {}
    outcomes: dict[int, Outcome] = {}
    finished: list[tuple[Any, ...]] = []
    for index, row in zip(order, rows, strict=True):
        asked = appends[index]
        if row["outcome"] == "new":
            place = (asked.account_id, asked.thread_id)
            before = threads.get(place) or statements.thread_of(row["thread"])
            ids = (f"msg_{ULID.from_datetime(asked.now)}" for _ in asked.new)
            threads[place], messages = appended(
                before, asked.new, ids, turn_id=asked.request.id, model=asked.model, now=asked.now
            )
            outcomes[index] = threads[place], messages, before.last_message_id
            finished.append(_finished(asked, before, threads[place], messages))
    await connection.executemany(_FINISH, finished)
    for index, row in zip(order, rows, strict=True):
        if index not in outcomes:
            outcomes[index] = await _refused_or_done(connection, appends[index], row)
    return [outcomes[index] for index in range(len(appends))]


def _begun(asked: Append) -> tuple[Any, ...]:
    request = asked.request
    return (
        *(asked.account_id, request.id, request.digest, asked.now),
        *(asked.thread_id, asked.model, asked.create_if_missing),
    )


def _finished(
    asked: Append, before: Thread, after: Thread, messages: Sequence[Message]
) -> tuple[Any, ...]:
    answer = thread_to_proto(after).SerializeToString()
    return (
        *(asked.account_id, asked.request.id, answer),
        *(after.id, after.title, after.model, after.update_time, after.total_token_count),
        *(after.message_count, before.message_count + 1),
        *statements.columns_of(messages),
    )


async def _refused_or_done(connection: Connection, asked: Append, row: asyncpg.Record) -> Outcome:
    if row["outcome"] == "missing":
        return ThreadNotFoundError(asked.thread_id)
    if row["outcome"] == "reused":
        return RequestReusedError()
    await statements.name_account(connection, asked.account_id)
    thread, first = await statements.answer_of(connection, asked.account_id, asked.request)
    messages = await statements.messages_from(
        connection, asked.account_id, thread, first, len(asked.new)
    )
    return thread, messages, ""
