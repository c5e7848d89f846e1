"""Threads in PostgreSQL, under row-level security.

Every transaction names its account first (`set_config('chatmesh.account_id', …, true)`, inside the
functions of the schema for reads), so that a query that forgot its WHERE still sees one account.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from conversation_svc import statements
from conversation_svc.appends import Added, Append, Outcome, append_all
from conversation_svc.statements import Request
from conversation_svc.thread import (
    ANSWER_BYTE_COUNT_MAX,
    Message,
    NewMessage,
    Tail,
    Thread,
    ThreadNotFoundError,
)
from mesh.chassis import postgres
from mesh.chassis.group_commit import GroupCommit
from mesh.chassis.postgres import Connection

# Connecting and one query are together shorter than the shortest deadline of a caller (2 s for
# reads, 3 s for writes), who then hears who was slow.
CONNECT_TIMEOUT_S = 0.7
READ_TIMEOUT_S = 1.2
WRITE_TIMEOUT_S = 2.2
# Of a group of appends, for a thread that is locked; then they are written one by one. Longer than
# a transaction of ours takes: what takes longer is stuck, and must not hold up all accounts.
GROUP_LOCK_TIMEOUT_MS = 250
# Nobody waits for the purge, and a batch with long threads takes its time.
PURGE_TIMEOUT_S = 60.0


class Store:
    """Threads and messages of all accounts, one account at a time.

    Every method raises StoreUnavailableError when PostgreSQL does not answer.
    """

    def __init__(self, pool: postgres.Pool) -> None:
        self._pool = pool
        self._appends = GroupCommit("append", self._append_all)

    @classmethod
    async def connect(cls, dsn: str, connection_count_max: int = 8) -> "Store":
        """A store that connects when it is first used: PostgreSQL may come up later."""
        pool = await postgres.open_pool(
            dsn,
            name="conversation",
            connection_count_max=connection_count_max,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            command_timeout_s=WRITE_TIMEOUT_S,
        )
        return cls(pool)

    async def close(self) -> None:
        """Finishes the appends that were asked for, and closes the connections."""
        await self._appends.drain()
        await postgres.close_pool(self._pool)

    async def get_thread(self, account_id: str, thread_id: str) -> Thread:
        """The thread.

        Raises:
            ThreadNotFoundError: the account has none of this id.
        """
        rows = await self._read(
            "SELECT * FROM conversation.get_thread($1, $2)", account_id, thread_id
        )
        if not rows:
            raise ThreadNotFoundError(thread_id)
        return statements.thread_of(rows[0])

    async def list_threads(
        self, account_id: str, behind: tuple[datetime, str] | None, limit: int
    ) -> list[Thread]:
        """Threads behind a place (update time and id), the most recently used first."""
        time, thread_id = behind or (None, None)
        rows = await self._read(
            "SELECT * FROM conversation.list_threads($1, $2, $3, $4)",
            *(account_id, time, thread_id, limit),
        )
        return [statements.thread_of(row) for row in rows]

    async def list_messages(
        self, account_id: str, thread_id: str, behind: int, limit: int
    ) -> list[tuple[int, Message]]:
        """Messages behind a position, oldest first, with their positions.

        At most `limit` messages and ANSWER_BYTE_COUNT_MAX bytes of content, but at least one
        message where there is any; empty also for a thread that is not there.
        """
        rows = await self._read(
            "SELECT * FROM conversation.list_messages($1, $2, $3, $4, $5)",
            *(account_id, thread_id, behind, limit, ANSWER_BYTE_COUNT_MAX),
        )
        return [(row["position"], statements.message_of(row)) for row in rows]

    async def read_tail(self, account_id: str, thread: Thread, message_count_max: int) -> Tail:
        """System messages and newest others of a thread as it stood when `thread` was read."""
        rows = await self._read(
            "SELECT * FROM conversation.read_tail($1, $2, $3, $4, $5)",
            *(account_id, thread.id, thread.message_count, message_count_max),
            ANSWER_BYTE_COUNT_MAX,
        )
        return Tail(thread, tuple(statements.message_of(row) for row in rows))

    async def create_thread(self, account_id: str, thread: Thread, request: Request) -> Thread:
        """Makes an empty thread; a repeated request gets the thread of the first.

        Raises:
            RequestReusedError: the request id was used for something else.
        """
        async with self._transaction(account_id) as connection:
            done = await statements.claim(connection, account_id, request, thread.create_time)
            if done:
                return done[0]
            await statements.insert_thread(connection, account_id, thread)
            await statements.settle(connection, account_id, request, thread)
            return thread

    async def append_messages(
        self,
        account_id: str,
        thread_id: str,
        new: Sequence[NewMessage],
        *,
        model: str,
        request: Request,
        now: datetime,
        create_if_missing: bool,
    ) -> Added:
        """Adds the messages of a turn, all or none; the request id becomes their turn id.

        Appends are written in groups. One whose caller has left stands: repeated with its request
        id, it gets its answer.

        Raises:
            ThreadNotFoundError: no such thread, and it is not to be made, or it was deleted.
            RequestReusedError: the request id was used for something else.
        """
        asked = Append(account_id, thread_id, new, model, request, now, create_if_missing)
        outcome = await self._appends.ask(asked)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def change_thread(
        self,
        account_id: str,
        thread_id: str,
        change: Callable[[Thread], Thread],
        request: Request,
        now: datetime,
        *,
        delete: bool = False,
    ) -> Thread:
        """Changes, or deletes, a thread; a repeated request gets the answer of the first.

        Raises:
            ThreadNotFoundError: the account has no such thread.
            RequestReusedError: the request id was used for something else.
        """
        async with self._transaction(account_id) as connection:
            done = await statements.claim(connection, account_id, request, now)
            if done:
                return done[0]
            thread = change(await statements.lock_thread(connection, account_id, thread_id))
            await statements.update_thread(connection, account_id, thread, now if delete else None)
            await statements.settle(connection, account_id, request, thread)
            return thread

    async def purge(self, before: datetime, limit: int) -> tuple[int, int]:
        """Removes what was deleted, and the requests that were made, before a time.

        Args:
            before: threads deleted earlier go with their messages; requests made earlier too.
            limit: most rows of each kind.

        Returns:
            Threads and requests that went.
        """
        rows = await self._read(
            "SELECT conversation.purge_threads($1, $2) AS threads,"
            " conversation.purge_requests($1, $2) AS requests",
            *(before, limit),
            timeout=PURGE_TIMEOUT_S,
        )
        return rows[0]["threads"], rows[0]["requests"]

    async def _read(
        self, query: str, *arguments: Any, timeout: float = READ_TIMEOUT_S
    ) -> list[asyncpg.Record]:
        async with postgres.connection_of(self._pool) as connection:
            return await connection.fetch(query, *arguments, timeout=timeout)

    @contextlib.asynccontextmanager
    async def _transaction(self, account_id: str) -> AsyncIterator[Connection]:
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            await statements.name_account(connection, account_id)
            yield connection

    async def _append_all(self, appends: Sequence[Append]) -> list[Outcome]:
        async with postgres.connection_of(self._pool) as connection, connection.transaction():
            if len(appends) > 1:
                await connection.execute(f"SET LOCAL lock_timeout = {GROUP_LOCK_TIMEOUT_MS}")
            return await append_all(connection, appends)
