"""The audit against a real PostgreSQL: rows arrive in one commit, and the role can only add."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from ulid import ULID

from mesh.chassis.postgres import StoreUnavailableError
from safety_svc.audit import Audit, Decision, Ended, Grounds, Judge, decision
from safety_svc.detectors.base import Category, Finding
from safety_svc.policy import Action, Direction, Failure, Judgement
from safety_svc.purge import BATCH_ROW_COUNT, keep_purging, purge_once
from safety_svc.store import PostgresAuditStore
from tests.unit.safety.scanning import default_policy

POLICY = default_policy()


@pytest.fixture
def dsn(deployed_dsns: dict[str, str]) -> str:
    return deployed_dsns["safety"]


def row(turn_id: str, offset: int | None = 7) -> Decision:
    finding = Finding(9, 7, 9, Category.SECRET, 'a "quoted" name', 0.75)
    judgement = Judgement(Action.BLOCK, Category.SECRET)
    return decision(
        str(ULID()),
        datetime.now(UTC),
        turn_id=turn_id,
        account_id="acct-1",
        tier="pro",
        jurisdiction="",
        grounds=Grounds(
            Direction.REPLY,
            judgement,
            [finding],
            42,
            1,
            offset,
            ended=Ended.HALTED,
            shadow=Judgement(Action.ALLOW, None),
            judge=Judge("classifier", "d1", failed=True),
            mask_count=3,
            quotation="a NUL \0 stands here",
        ),
        policy=POLICY,
    )


async def test_concurrent_decisions_become_rows(dsn: str) -> None:
    turn = str(ULID())
    store = PostgresAuditStore(dsn)
    rows = [row(turn, index or None) for index in range(300)]
    async with Audit(store, timeout_s=10) as audit:
        await asyncio.gather(*(audit.record(one, Failure.CLOSED) for one in rows))
    await store.close()
    connection = await asyncpg.connect(dsn)
    try:
        stored = await connection.fetch(
            "SELECT * FROM safety.decisions WHERE turn_id = $1 ORDER BY audit_id", turn
        )
        commits = {
            one["xmin"]
            for one in await connection.fetch(
                "SELECT xmin::text FROM safety.decisions WHERE turn_id = $1", turn
            )
        }
    finally:
        await connection.close()
    expected = sorted(rows, key=lambda one: one.audit_id)
    assert [one["audit_id"] for one in stored] == [one.audit_id for one in expected]
    assert len(commits) < len(rows) / 10
    first, wanted = dict(stored[0]), expected[0]
    assert first["decided_at"] == wanted.decided_at
    assert (first["categories"], first["scores"]) == (["secret"], [0.75])
    assert first["detectors"] == ['a "quoted" name']
    assert first["halt_offset"] == wanted.halt_offset
    assert (first["direction"], first["action"]) == ("reply", "block")
    assert first["policy_digest"] == POLICY.digest
    assert (first["ended"], first["shadow_action"], first["mask_count"]) == ("halted", "allow", 3)
    assert (first["backend"], first["backend_failed"]) == ("classifier", True)
    assert first["quotation"] == "a NUL  stands here"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE safety.decisions SET action = 'allow'",
        "DELETE FROM safety.decisions",
        "TRUNCATE safety.decisions",
        "SELECT safety.purge_decisions(now() - interval '29 days', 1)",
        "DROP TABLE safety.decisions",
        "SELECT * FROM billing.accounts",
        "CREATE TABLE safety.mine (x int)",
    ],
)
async def test_the_role_can_only_add_and_read(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError)):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_decisions_go_when_their_time_is_over(dsn: str) -> None:
    store, turn = PostgresAuditStore(dsn), str(ULID())
    now, keep = datetime(2020, 6, 1, tzinfo=UTC), timedelta(days=90)
    count = BATCH_ROW_COUNT + 5
    old = [
        replace(row(turn), decided_at=now - keep - timedelta(seconds=n + 1)) for n in range(count)
    ]
    kept = [replace(row(turn), decided_at=now - keep), replace(row(turn), decided_at=now)]
    await store.insert([*old, *kept])
    assert await purge_once(store, now, keep) >= count
    assert await purge_once(store, now, keep) == 0
    connection = await asyncpg.connect(dsn)
    try:
        left = await connection.fetch(
            "SELECT audit_id FROM safety.decisions WHERE turn_id = $1 ORDER BY decided_at", turn
        )
    finally:
        await connection.close()
    assert [one["audit_id"] for one in left] == [one.audit_id for one in kept]
    # The clock of a process may be wrong: the database keeps what is fresh.
    with pytest.raises(StoreUnavailableError, match="last 30 days are kept"):
        await purge_once(store, datetime.now(UTC) + timedelta(days=900), keep)
    await store.close()


async def test_a_purge_that_fails_is_tried_again() -> None:
    class Away:
        def __init__(self) -> None:
            self.asked: list[datetime] = []

        async def purge(self, before: datetime, limit: int) -> int:
            self.asked.append(before)
            if len(self.asked) < 3:
                raise StoreUnavailableError("away")
            raise asyncio.CancelledError

    store, clock = Away(), iter(datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3))
    with pytest.raises(asyncio.CancelledError):
        await keep_purging(store, lambda: next(clock), timedelta(days=1), 0)
    assert [one.day for one in store.asked] == [31, 1, 2]


async def test_what_gathers_while_a_statement_is_on_its_way_shares_the_next(dsn: str) -> None:
    class Gate(PostgresAuditStore):
        def __init__(self) -> None:
            super().__init__(dsn)
            self.open, self.groups = asyncio.Event(), list[int]()

        async def insert(self, rows: Sequence[Decision]) -> None:
            await self.open.wait()
            self.groups.append(len(rows))
            await super().insert(rows)

    store = Gate()
    async with Audit(store, timeout_s=10) as audit:
        writing = [asyncio.create_task(audit.record(row("t"), Failure.CLOSED)) for _ in "0123"]
        await asyncio.sleep(0)  # the first four are on their way
        writing += [asyncio.create_task(audit.record(row("t"), Failure.CLOSED)) for _ in "456"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        store.open.set()
        await asyncio.gather(*writing)
    await store.close()
    assert store.groups == [4, 3]


async def test_a_store_that_is_away_is_unavailable() -> None:
    store = PostgresAuditStore("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailableError, match=r"Connect|OSError"):
        await store.insert([row("t")])
    await store.close()


async def test_a_row_that_the_table_refuses_is_unavailable(dsn: str) -> None:
    store = PostgresAuditStore(dsn)
    with pytest.raises(StoreUnavailableError, match="CheckViolation"):
        await store.insert([replace(row("t"), action="shrug")])
    await store.insert([row("t")])
    await store.close()


async def test_a_lost_connection_loses_no_row_and_doubles_none(dsn: str) -> None:
    turn = str(ULID())
    store = PostgresAuditStore(dsn)
    first, second = row(turn), row(turn)
    await store.insert([first])
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = current_user AND pid <> pg_backend_pid()"
        )
        await store.insert([first, second])
        count = await connection.fetchval(
            "SELECT count(*) FROM safety.decisions WHERE turn_id = $1", turn
        )
    finally:
        await connection.close()
        await store.close()
    assert count == 2
