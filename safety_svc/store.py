"""The audit table in PostgreSQL."""

import json
from collections.abc import Sequence
from datetime import datetime

import asyncpg

from mesh.chassis.postgres import CONNECTION_LOST, StoreUnavailableError
from safety_svc.audit import Decision

COMMAND_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 2.0
# Nobody waits for it.
PURGE_TIMEOUT_S = 30.0

# A statement whose answer was lost with its connection is sent again: a row is added once.
_INSERT = """
INSERT INTO safety.decisions
SELECT * FROM jsonb_populate_recordset(NULL::safety.decisions, $1::jsonb)
ON CONFLICT (audit_id) DO NOTHING
"""
_PURGE = "SELECT safety.purge_decisions($1, $2)"


class PostgresAuditStore:
    """Adds rows to `safety.decisions`, over one connection: there is one writer, and it groups.

    Connects when the first row comes, and again when the connection is lost.

    Args:
        dsn: of the role chatmesh_safety.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def insert(self, rows: Sequence[Decision]) -> None:
        """See `AuditStore.insert`: one statement, one commit. One call at a time."""
        data = json.dumps([row.columns() for row in rows])
        try:
            known = self._connection is not None
            try:
                await self._execute(data)
            except CONNECTION_LOST:
                self._drop()
                if not known:
                    raise
                await self._execute(data)
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            if not isinstance(error, asyncpg.IntegrityConstraintViolationError):
                self._drop()
            raise StoreUnavailableError(f"{type(error).__name__}: {error}") from error

    async def purge(self, before: datetime, limit: int) -> int:
        """See `PurgeStore.purge`: over a connection of its own, for the other one writes."""
        try:
            connection = await asyncpg.connect(
                self._dsn, timeout=CONNECT_TIMEOUT_S, command_timeout=PURGE_TIMEOUT_S
            )
            try:
                count: int = await connection.fetchval(_PURGE, before, limit)
                return count
            finally:
                await connection.close()
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            raise StoreUnavailableError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Ends the connection; nothing is on its way any more."""
        self._drop()

    async def _execute(self, data: str) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(
                self._dsn, timeout=CONNECT_TIMEOUT_S, command_timeout=COMMAND_TIMEOUT_S
            )
        await self._connection.execute(_INSERT, data)

    def _drop(self) -> None:
        if self._connection:
            self._connection.terminate()
        self._connection = None
