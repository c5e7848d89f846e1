"""Steps against the real PostgreSQL: each model call of a turn is held, charged and settled."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import grpc
import pytest
from google.protobuf import duration_pb2
from ulid import ULID

from chatmesh.billing.v1 import billing_pb2 as pb
from mesh import schema
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, check_books, event, metered

SCHEMA = Path(__file__).resolve().parents[2] / "billing_svc" / "schema"
OLD_FILES = ("001_billing.sql", "002_jurisdiction.sql")


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


async def test_a_turn_with_two_steps_is_held_charged_and_settled(meter: Meter) -> None:
    account = await meter.account(60_000)
    turn = await meter.hold(account, prompt=10, output=100)
    raised = pb.ExtendRequest(
        turn_id=turn,
        lifetime=duration_pb2.Duration(seconds=60),
        prompt_token_count=10 + 30,
        output_token_count_max=200,
    )
    for _ in range(2):
        assert (await meter.quota.Extend(raised)).held_nanousd == 40 * 20 + 200 * 60
    reports = [
        event(turn, 0, 10, "INPUT"),
        event(turn, 0, 5),
        event(turn, 0, 12, "CACHED_INPUT", step=1),
        event(turn, 12, 30, "INPUT", step=1),
        event(turn, 0, 7, step=1),
    ]
    assert await meter.append(*reports) == 10 + 5 + 30 + 7
    assert await meter.append(*reversed(reports)) == 0
    further = pb.StepUsage(
        step=1,
        prompt_token_count=30,
        cached_token_count=12,
        output_token_count=8,
        withheld_token_count=2,
        unsent_token_count=1,
    )
    cost = 10 * 20 + 5 * 60 + 18 * 20 + 12 * 5 + 8 * 60
    assert await meter.settle(turn, 10, 5, steps=[further]) == cost
    assert (await meter.total(account)).held_nanousd == 60  # the last token of step 1 is to come
    await meter.append(event(turn, 0, 8, step=1))
    total = await meter.total(account)
    assert (total.held_nanousd, total.cost_nanousd) == (0, cost)
    listed = await meter.usage.ListLedger(pb.ListLedgerRequest(account_id=account, turn_id=turn))
    assert {(e.step, e.choice_index) for e in listed.entries} == {(0, 0), (1, 0)}
    await check_books(meter, account)


async def test_the_reconciler_completes_each_step(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 3), event(turn, 0, 9, "INPUT", step=2))
    further = pb.StepUsage(step=2, prompt_token_count=9, output_token_count=4)
    await meter.settle(turn, 10, 5, steps=[further])
    meter.pass_time(seconds=31)
    while await meter.ledger_store.reconcile(meter.now, meter.now):
        pass
    rows = await meter.fetch(
        "SELECT step, kind = 3 AS output, sum(end_position - first_position) AS count"
        " FROM billing.ledger WHERE turn_id = $1 GROUP BY 1, 2 ORDER BY 1, 2",
        turn,
    )
    assert [tuple(row) for row in rows] == [
        (0, False, 10),
        (0, True, 5),
        (2, False, 9),
        (2, True, 4),
    ]
    # Late reports of the right step use its credit up; of another one they are charged.
    assert await meter.append(event(turn, 0, 4, step=2)) == 0
    assert await meter.append(event(turn, 0, 4, step=1)) == 4
    await check_books(meter, account)


async def test_a_settlement_that_cannot_be_is_refused(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    step = pb.StepUsage

    async def field_of(**counts: object) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await meter.quota.Settle(pb.SettleRequest(turn_id=turn, **counts))
        error = MeshError.from_rpc(caught.value)
        assert error.reason == "BAD_REQUEST"
        return error.metadata["field"]

    too_much = {"output_token_count": 5, "withheld_token_count": 3, "unsent_token_count": 3}
    assert await field_of(**too_much) == "unsent_token_count"
    assert await field_of(steps=[step(step=0)]) == "steps[0].step"
    assert await field_of(steps=[step(step=128)]) == "steps[0].step"
    assert await field_of(steps=[step(step=3), step(step=3)]) == "steps[1].step"
    assert await field_of(steps=[step(step=1, **too_much)]) == "steps[0].unsent_token_count"
    wrong = step(step=1, cached_token_count=1)
    assert await field_of(steps=[wrong]) == "steps[0].cached_token_count"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await meter.append(event(turn, 0, 1, step=128))
    assert MeshError.from_rpc(caught.value).metadata == {"field": "events[0].step"}
    # All of it withheld or unsent is fine.
    assert await meter.settle(turn, 0, 6, withheld_token_count=3, unsent_token_count=3) == 360


async def test_a_database_of_the_version_before_goes_on(
    postgres_owner_dsn: str, empty_database: str, tmp_path: Path
) -> None:
    assert postgres_owner_dsn  # the roles, which the grants name, are there
    folder = tmp_path / "billing_svc" / "schema"
    folder.mkdir(parents=True)
    for name in OLD_FILES:
        shutil.copy(SCHEMA / name, folder)
    await schema.migrate(empty_database, [folder])
    turns = [str(ULID()) for _ in range(3)]
    owner = await asyncpg.connect(empty_database)
    try:
        await written_by_the_version_before(owner, *turns)
        await schema.migrate(empty_database, [SCHEMA])
        async with metered(empty_database, tmp_path) as meter:
            await check_old_turns(meter, *turns)
    finally:
        await owner.close()


async def written_by_the_version_before(
    owner: asyncpg.Connection, running: str, settled: str, closed: str
) -> None:
    """Three turns as its code left them: open with entries, settled, and closed."""
    await owner.execute(
        "INSERT INTO billing.accounts VALUES ('acc_old', 'old', 2, NULL, NULL, NULL, now());"
        "INSERT INTO billing.balances VALUES ('acc_old', -1, false, 6560, '2026-11-01', 1000)"
    )
    insert = (
        "INSERT INTO billing.turns (turn_id, account_id, model, price_version, input_nanousd,"
        " cached_input_nanousd, output_nanousd, state, amount_nanousd, reserved_nanousd,"
        " ledger_nanousd, create_time, expire_time, settle_time, settled_prompt_count,"
        " settled_cached_count, settled_output_count, settled_withheld_count, covered_input,"
        " covered_output, ledger_period) VALUES ($1, 'acc_old', 'small', '0', 20, 5, 60, $2, $3,"
        " $4, $5, '2026-11-21 11:59Z', '2026-11-21 12:30Z', $6::text::timestamptz, $7, 0, $8, 0,"
        " $9::text::int4multirange, $10::text::int8multirange, '2026-11-01')"
    )
    at, both = "2026-11-21 11:59:30Z", ("{[0,10)}", "{[0,5),[4294967296,4294967298)}")
    await owner.execute(insert, running, 1, 6200, 6200, 0, None, None, None, "{}", "{}")
    await owner.execute(insert, settled, 2, 560, 360, 200, at, 10, 6, "{[0,10)}", "{}")
    await owner.execute(insert, closed, 3, 620, 0, 620, at, 10, 7, *both)
    entry = (
        "INSERT INTO billing.ledger (account_id, turn_id, choice_index, kind, first_position,"
        " end_position, model, cost_nanousd, price_version, create_time, source) VALUES"
        " ('acc_old', $1, $2, $3, 0, $4, 'small', $5, '0', '2026-11-21 12:00Z', 'node')"
    )
    await owner.execute(entry, settled, 0, 1, 10, 200)
    for choice, kind, end, cost in ((0, 1, 10, 200), (0, 3, 5, 300), (1, 3, 2, 120)):
        await owner.execute(entry, closed, choice, kind, end, cost)


async def check_old_turns(meter: Meter, running: str, settled: str, closed: str) -> None:
    assert await meter.append(event(closed, 0, 10, "INPUT"), event(closed, 0, 2, choice=1)) == 0
    assert await meter.append(event(settled, 0, 6), event(settled, 0, 10, "INPUT")) == 6
    assert await meter.append(event(running, 0, 5), event(running, 0, 5, step=1)) == 10
    await meter.settle(running, 0, 5, steps=[pb.StepUsage(step=1, output_token_count=5)])
    states = await meter.fetch("SELECT state FROM billing.turns ORDER BY turn_id")
    assert [row["state"] for row in states] == [3, 3, 3]
    listed = await meter.usage.ListLedger(pb.ListLedgerRequest(account_id="acc_old"))
    assert {e.step for e in listed.entries if e.turn_id != running} == {0}
    assert (await meter.total("acc_old")).held_nanousd == 0
