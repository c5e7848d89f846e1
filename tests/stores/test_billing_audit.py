"""The audit against the real PostgreSQL: each finding is made, found by the job, and repaired."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import grpc
import pytest
from google.protobuf import timestamp_pb2
from prometheus_client import REGISTRY
from ulid import ULID

from billing_svc.audit_job import AuditJob
from billing_svc.settings import Settings
from chatmesh.billing.v1 import billing_pb2 as pb
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, check_books, event, metered

OLDEST = "0" * 26


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


@pytest.fixture
async def owner(postgres_owner_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_owner_dsn)
    yield connection
    await connection.close()


async def audited(meter: Meter, turn: str) -> list[pb.AuditedStep]:
    answer = await meter.audits.AuditTurns(pb.AuditTurnsRequest(turn_id=turn))
    return list(answer.steps)


async def found(meter: Meter, turn: str) -> list[tuple[str, str, int]]:
    return [
        (pb.AuditFinding.Name(f.finding)[14:], pb.UsageKind.Name(f.kind)[11:], f.token_count)
        for step in await audited(meter, turn)
        for f in step.findings
    ]


async def run_job(meter: Meter) -> None:
    while await meter.audit_store.audit_due(meter.now):
        pass


async def search(meter: Meter) -> None:
    end = await meter.audit_store.last_entry_id()
    while await meter.audit_store.search_ledger(end, OLDEST, meter.now):
        pass


async def stored(meter: Meter, turn: str) -> list[tuple[int, int]]:
    """(finding, tokens) that the job stored."""
    rows = await meter.fetch(
        "SELECT finding, token_count FROM billing.audit_findings WHERE turn_id = $1 ORDER BY 1, 2",
        turn,
    )
    return [tuple(row) for row in rows]


async def is_marked(meter: Meter, turn: str) -> bool:
    (row,) = await meter.fetch("SELECT audit_time FROM billing.turns WHERE turn_id = $1", turn)
    return row["audit_time"] is not None


async def repaired(meter: Meter, *turns: str) -> list[pb.RepairedTurn]:
    answer = await meter.audits.RepairTurns(pb.RepairTurnsRequest(turn_ids=turns))
    return list(answer.turns)


async def closed_turn(meter: Meter, account: str) -> str:
    """Ten tokens of prompt, five of answer, all in the ledger."""
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 5))
    await meter.settle(turn, 10, 5, withheld_token_count=1, unsent_token_count=1)
    return turn


async def insert_again(owner: asyncpg.Connection, turn: str, as_turn: str = "") -> None:
    """A raw row that nobody counted: the output entry once more, as somebody else's if asked."""
    await owner.execute(
        "INSERT INTO billing.ledger (account_id, turn_id, choice_index, kind, first_position,"
        " end_position, model, cost_nanousd, price_version, create_time, source)"
        " SELECT account_id, coalesce(nullif($2, ''), turn_id), choice_index, kind, first_position,"
        " end_position, model, cost_nanousd, price_version, create_time, 'gateway'"
        " FROM billing.ledger WHERE turn_id = $1 AND kind = 3",
        *(turn, as_turn),
    )


async def test_a_turn_that_balances_is_marked_and_shown(meter: Meter) -> None:
    account = await meter.account()
    turn = await closed_turn(meter, account)
    await meter.append(event(turn, 5, 7))  # in flight
    await run_job(meter)
    assert await is_marked(meter, turn)
    assert await stored(meter, turn) == []
    (step,) = await audited(meter, turn)
    counts = (step.released_token_count, step.withheld_token_count, step.unsent_token_count)
    assert counts == (3, 1, 3)
    assert (step.generated_token_count, step.ledger_token_count) == (7, 7)
    assert (step.prompt_token_count, step.ledger_prompt_token_count) == (10, 10)
    assert (step.ended, step.difference_token_count) == (True, 0)
    # What comes later asks for another look.
    await meter.append(event(turn, 7, 8))
    assert not await is_marked(meter, turn)
    assert await meter.audit_store.lag_s(meter.now + dt.timedelta(seconds=9)) >= 9
    await run_job(meter)
    assert await is_marked(meter, turn)


async def test_what_stands_twice_is_found_after_the_mark_and_credited(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account = await meter.account()
    turn = await closed_turn(meter, account)
    await run_job(meter)
    await search(meter)
    await insert_again(owner, turn)
    await run_job(meter)
    assert await stored(meter, turn) == []  # the turn itself did not change
    await search(meter)
    await run_job(meter)
    assert await stored(meter, turn) == [(1, 5)]
    assert await found(meter, turn) == [("OVERCHARGED", "OUTPUT", 5)]
    (step,) = await audited(meter, turn)
    assert step.difference_token_count == 5
    (done,) = await repaired(meter, turn)
    (entry,) = done.entries
    assert (entry.source, entry.credit, entry.cost_nanousd) == ("repair", True, -300)
    assert (entry.first_position, entry.end_position) == (0, 5)
    assert not done.settled
    assert await stored(meter, turn) == []
    assert (await found(meter, turn), await repaired(meter, turn)) == ([], [])
    total = await meter.total(account)
    assert (total.output_token_count, total.cost_nanousd, total.held_nanousd) == (5, 500, 0)
    await check_books(meter, account)


async def test_what_is_missing_is_charged(meter: Meter, owner: asyncpg.Connection) -> None:
    account = await meter.account()
    turn = await closed_turn(meter, account)
    async with owner.transaction():
        await owner.execute("ALTER TABLE billing.ledger DISABLE TRIGGER USER")
        await owner.execute("DELETE FROM billing.ledger WHERE turn_id = $1 AND kind = 1", turn)
        await owner.execute("ALTER TABLE billing.ledger ENABLE TRIGGER USER")
    await run_job(meter)
    assert await stored(meter, turn) == [(2, 10)]
    (step,) = await audited(meter, turn)
    assert step.difference_token_count == -10
    (done,) = await repaired(meter, turn)
    (entry,) = done.entries
    assert (entry.source, entry.credit, entry.cost_nanousd) == ("repair", False, 200)
    assert await found(meter, turn) == []
    assert (await meter.total(account)).cost_nanousd == 500
    await check_books(meter, account)


async def test_an_expired_turn_with_entries_is_found_and_settled(meter: Meter) -> None:
    account = await meter.account()
    turn, unused = await meter.hold(account), await meter.hold(account)
    await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 5), event(turn, 0, 3, step=1))
    meter.pass_time(seconds=121)
    while await meter.quota_store.expire(meter.now):
        pass
    await run_job(meter)
    assert (await is_marked(meter, turn), await is_marked(meter, unused)) == (False, True)
    assert [step.ended for step in await audited(meter, turn)] == [False, False]
    meter.pass_time(seconds=600)
    await run_job(meter)
    assert await stored(meter, turn) == [(3, 3), (3, 5), (3, 10)]
    (done,) = await repaired(meter, turn)
    assert (list(done.entries), done.settled) == ([], True)
    first, second = await audited(meter, turn)
    assert (first.unsent_token_count, second.unsent_token_count) == (5, 3)
    assert await found(meter, turn) == []
    await check_books(meter, account)


async def test_a_settlement_that_comes_late_ends_the_finding(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 5))
    meter.pass_time(seconds=721)
    while await meter.quota_store.expire(meter.now):
        pass
    await run_job(meter)
    assert await stored(meter, turn) == [(3, 5), (3, 10)]
    await meter.settle(turn, 10, 4, unsent_token_count=1)
    assert not await is_marked(meter, turn)
    await run_job(meter)
    assert await stored(meter, turn) == []
    (step,) = await audited(meter, turn)
    assert (step.released_token_count, step.unsent_token_count) == (3, 2)


async def test_a_deleted_settlement_is_found(meter: Meter, owner: asyncpg.Connection) -> None:
    account = await meter.account()
    turn = await closed_turn(meter, account)
    await run_job(meter)
    await owner.execute(
        "UPDATE billing.turns SET state = 5, settle_time = NULL WHERE turn_id = $1", turn
    )
    assert not await is_marked(meter, turn)
    meter.pass_time(seconds=721)
    await run_job(meter)
    assert await found(meter, turn) == [("UNSETTLED", "INPUT", 10), ("UNSETTLED", "OUTPUT", 5)]
    assert (await repaired(meter, turn))[0].settled
    assert await found(meter, turn) == []


async def test_a_turn_open_for_ever_is_found_and_its_money_comes_free(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 5))
    meter.pass_time(days=1)
    await run_job(meter)
    assert await stored(meter, turn) == [(3, 5)]
    assert (await meter.total(account)).held_nanousd == 6200 - 300
    await repaired(meter, turn)
    assert (await meter.total(account)).held_nanousd == 0
    await check_books(meter, account)


async def test_a_settlement_nobody_reconciled_is_found_and_charged(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 3))
    await meter.settle(turn, 10, 8, cached=4)
    await run_job(meter)
    assert not await is_marked(meter, turn)
    assert await found(meter, turn) == []
    meter.pass_time(seconds=600)
    await run_job(meter)
    assert await stored(meter, turn) == [(4, 5), (4, 10)]
    (done,) = await repaired(meter, turn)
    assert {entry.source for entry in done.entries} == {"repair"}
    total = await meter.total(account)
    assert (total.cost_nanousd, total.held_nanousd) == (6 * 20 + 4 * 5 + 8 * 60, 0)
    assert await found(meter, turn) == [("DRIFT", "OUTPUT", 5)]
    await check_books(meter, account)


async def test_drift_is_stored_measured_and_left_alone(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 3))
    await meter.settle(turn, 10, 8)
    meter.pass_time(seconds=31)
    while await meter.ledger_store.reconcile(meter.now - dt.timedelta(seconds=30), meter.now):
        pass
    bad = await closed_turn(meter, account)
    await insert_again(owner, bad)
    job = AuditJob(meter.audit_store, Settings(database_url="unused", redis_url="unused"))
    await job.audit(meter.now)
    assert await stored(meter, turn) == [(6, 5)]
    assert await repaired(meter, turn) == []
    assert await job.measure(meter.now) >= 1
    drift = REGISTRY.get_sample_value("chatmesh_billing_audit_drift_tokens", {"kind": "output"})
    assert drift is not None
    assert drift >= 5
    labels = {"finding": "overcharged"}
    assert (REGISTRY.get_sample_value("chatmesh_billing_audit_findings", labels) or 0) >= 1
    assert (REGISTRY.get_sample_value("chatmesh_billing_audit_turns_total") or 0) >= 2
    assert REGISTRY.get_sample_value("chatmesh_billing_audit_lag_seconds") is not None
    await repaired(meter, bad)


async def test_entries_without_a_turn_are_found_and_taken_back_once(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account, ghost = await meter.account(), str(ULID())
    await insert_again(owner, await closed_turn(meter, account), as_turn=ghost)
    await search(meter)
    assert await stored(meter, ghost) == [(5, 5)]
    assert await found(meter, ghost) == [("TURN_MISSING", "OUTPUT", 5)]
    listed = await meter.audits.AuditTurns(
        pb.AuditTurnsRequest(account_id=account, only_findings=True)
    )
    assert [step.turn_id for step in listed.steps] == [ghost]
    assert listed.finding_turn_count >= 1
    done = await asyncio.gather(*(repaired(meter, ghost) for _ in range(4)))
    assert sum(len(one) for one in done) == 1
    assert await stored(meter, ghost) == []
    total = await meter.total(account)
    assert (total.output_token_count, total.cost_nanousd) == (5, 500)
    await check_books(meter, account)


async def test_a_credit_in_a_later_month_is_that_months(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account = await meter.account(10_000)
    turn = await closed_turn(meter, account)
    await insert_again(owner, turn)
    meter.pass_time(days=15)
    await repaired(meter, turn)
    november = await meter.total(account, "2026-11")
    assert (november.output_token_count, november.cost_nanousd) == (10, 800)
    december = await meter.total(account)
    assert (december.output_token_count, december.cost_nanousd) == (0, -300)
    await check_books(meter, account)


async def test_repairs_and_charges_at_once_keep_the_books(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account = await meter.account()
    turns = [await closed_turn(meter, account) for _ in range(4)]
    for turn in turns:
        await insert_again(owner, turn)
    charges = [meter.append(event(turn, 5, 9)) for turn in turns for _ in range(3)]
    fixes = [repaired(meter, *turns) for _ in range(3)]
    jobs = [meter.audit_store.audit_due(meter.now) for _ in range(3)]
    await asyncio.gather(*charges, *fixes, *jobs)
    for turn in turns:
        assert await found(meter, turn) == []
    assert (await meter.total(account)).output_token_count == 4 * 9
    await check_books(meter, account)


async def test_several_instances_share_the_work_and_a_restart_goes_on(meter: Meter) -> None:
    account = await meter.account()
    turns = [await closed_turn(meter, account) for _ in range(8)]
    await asyncio.gather(*(meter.audit_store.audit_due(meter.now) for _ in range(4)))
    await run_job(meter)
    assert all([await is_marked(meter, turn) for turn in turns])
    assert await meter.audit_store.audit_due(meter.now) == 0
    await search(meter)
    end = await meter.audit_store.last_entry_id()
    assert await meter.audit_store.search_ledger(end, OLDEST, meter.now) == 0


async def test_the_job_searches_what_was_there_at_its_last_search(
    meter: Meter, owner: asyncpg.Connection
) -> None:
    account = await meter.account()
    turn = await closed_turn(meter, account)
    job = AuditJob(meter.audit_store, Settings(database_url="unused", redis_url="unused"))
    while await job.search(meter.now):
        pass
    await job.audit(meter.now)
    await insert_again(owner, turn)
    # An entry with a lower number may be on its way yet: a new one is left to the next search.
    await job.search(meter.now)
    assert await is_marked(meter, turn)
    assert await job.search(meter.now) >= 1
    assert not await is_marked(meter, turn)
    await repaired(meter, turn)


async def test_the_audit_comes_in_pages(meter: Meter) -> None:
    account = await meter.account()
    turns = [await closed_turn(meter, account) for _ in range(5)]
    seen, token = [], ""
    while True:
        answer = await meter.audits.AuditTurns(
            pb.AuditTurnsRequest(account_id=account, page_size=2, page_token=token)
        )
        assert len(answer.steps) <= 2
        seen += [step.turn_id for step in answer.steps]
        token = answer.next_page_token
        if not token:
            break
    assert seen == turns
    now = timestamp_pb2.Timestamp()
    now.FromDatetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1))
    later = await meter.audits.AuditTurns(pb.AuditTurnsRequest(account_id=account, since=now))
    assert list(later.steps) == []
    now.FromDatetime(dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))
    all_of_them = await meter.audits.AuditTurns(pb.AuditTurnsRequest(account_id=account, since=now))
    assert len(all_of_them.steps) == 5


async def test_each_refusal_has_its_reason(meter: Meter) -> None:
    audits, long_ago = meter.audits, timestamp_pb2.Timestamp(seconds=-1)
    many = [str(ULID())] * 101
    cases = [
        (audits.AuditTurns(pb.AuditTurnsRequest(turn_id="x")), "BAD_REQUEST"),
        (audits.AuditTurns(pb.AuditTurnsRequest(page_size=501)), "BAD_REQUEST"),
        (audits.AuditTurns(pb.AuditTurnsRequest(since=long_ago)), "BAD_REQUEST"),
        (audits.AuditTurns(pb.AuditTurnsRequest(page_token="x")), "BAD_PAGE_TOKEN"),
        (audits.RepairTurns(pb.RepairTurnsRequest()), "BAD_REQUEST"),
        (audits.RepairTurns(pb.RepairTurnsRequest(turn_ids=many)), "BAD_REQUEST"),
        (audits.RepairTurns(pb.RepairTurnsRequest(turn_ids=["x"])), "BAD_REQUEST"),
    ]
    for call, reason in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert MeshError.from_rpc(caught.value).reason == reason
    assert await repaired(meter, str(ULID())) == []  # nothing is known of it
