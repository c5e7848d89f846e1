"""The ledger against the real PostgreSQL: union, once, append-only, reconciled, waited for."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ulid import ULID

from billing_svc import usage_events
from chatmesh.billing.v1 import billing_pb2 as pb
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, check_books, event, metered


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


async def refused(call: object) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return MeshError.from_rpc(caught.value)


parts = st.lists(
    st.tuples(
        st.integers(0, 1),  # turn
        st.sampled_from(["INPUT", "CACHED_INPUT", "OUTPUT"]),
        st.integers(0, 30),
        st.integers(1, 10),
        st.integers(0, 2),  # choice
        st.integers(0, 2),  # step
    ),
    min_size=1,
    max_size=10,
)


@given(batches=st.lists(parts, min_size=1, max_size=4), repeat=st.integers(0, 3))
def test_the_ledger_is_the_union_of_all_reports(
    batches: list[list[tuple[int, str, int, int, int, int]]],
    repeat: int,
    postgres_dsn_for: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def run() -> None:
        async with metered(postgres_dsn_for("billing"), tmp_path_factory.mktemp("m")) as meter:
            account = await meter.account()
            turns = [await meter.hold(account) for _ in range(2)]
            made = [
                [event(turns[t], f, f + n, k, choice=c, step=s) for t, k, f, n, c, s in batch]
                for batch in batches
            ]
            # Some batches come twice, all of them at once.
            new = await asyncio.gather(*(meter.append(*b) for b in [*made, *made[:repeat]]))
            wanted = {
                (t, s, c if k == "OUTPUT" else 0, k == "OUTPUT", position)
                for batch in batches
                for t, k, f, n, c, s in batch
                for position in range(f, f + n)
            }
            rows = await meter.fetch("SELECT * FROM billing.ledger WHERE account_id = $1", account)
            charged = [
                (turns.index(row["turn_id"]), row["step"], choice, row["kind"] == 3, position)
                for row in rows
                for choice in [row["choice_index"]]
                for position in range(row["first_position"], row["end_position"])
            ]
            assert len(charged) == len(set(charged)) == sum(new)
            assert set(charged) == wanted
            await check_books(meter, account)

    asyncio.run(run())


test_the_ledger_is_the_union_of_all_reports = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)(test_the_ledger_is_the_union_of_all_reports)


async def test_attempts_that_overlap_are_billed_once(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    assert await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 7)) == 17
    # Another node took over: it has the prompt in its cache and begins a few tokens back.
    again = (event(turn, 0, 10, "CACHED_INPUT", attempt=2), event(turn, 5, 12, attempt=2))
    assert await meter.append(*again) == 5
    assert await meter.append(*again) == 0
    total = await meter.total(account)
    assert (total.input_token_count, total.cached_input_token_count) == (10, 0)
    assert (total.output_token_count, total.cost_nanousd) == (12, 10 * 20 + 12 * 60)
    assert total.turn_count == 1
    await check_books(meter, account)


async def test_answers_share_the_prompt_and_have_their_own_output(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    for choice in range(3):
        await meter.append(
            event(turn, 0, 10, "INPUT", choice=choice), event(turn, 0, 4, choice=choice)
        )
    total = await meter.total(account)
    assert (total.input_token_count, total.output_token_count) == (10, 12)
    (model,) = total.models
    assert (model.model, model.cost_nanousd) == ("small", total.cost_nanousd)


async def test_a_turn_no_node_reported_is_charged_by_the_gateways_count(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 3))
    await meter.settle(turn, prompt=10, cached=4, output=8)
    assert (await meter.total(account)).held_nanousd == 6 * 20 + 4 * 5 + 8 * 60 - 3 * 60
    meter.pass_time(seconds=30)
    while await meter.ledger_store.reconcile(meter.now - dt.timedelta(seconds=30), meter.now):
        pass
    total = await meter.total(account)
    assert total.cost_nanousd == 6 * 20 + 4 * 5 + 8 * 60
    assert total.held_nanousd == 0
    # The nodes' reports come at last: nothing more; and one token the gateway did not count: it.
    late = (event(turn, 0, 4, "CACHED_INPUT"), event(turn, 4, 10, "INPUT"), event(turn, 0, 9))
    assert await meter.append(*late) == 1
    listed = await meter.usage.ListLedger(pb.ListLedgerRequest(account_id=account))
    sources = [(e.source, pb.UsageKind.Name(e.kind)[11:], e.end_position) for e in listed.entries]
    assert sources == [
        ("node", "OUTPUT", 3),
        ("gateway", "CACHED_INPUT", 4),
        ("gateway", "INPUT", 10),
        ("gateway", "OUTPUT", 8),
        ("node", "OUTPUT", 9),
    ]
    await check_books(meter, account)


async def test_parallel_reconcilers_charge_once(meter: Meter) -> None:
    account = await meter.account()
    for _ in range(5):
        await meter.settle(await meter.hold(account), prompt=10, output=8)
    meter.pass_time(seconds=31)
    before = meter.now - dt.timedelta(seconds=30)
    await asyncio.gather(*(meter.ledger_store.reconcile(before, meter.now) for _ in range(4)))
    await meter.ledger_store.reconcile(before, meter.now)
    assert (await meter.total(account)).output_token_count == 40
    await check_books(meter, account)


async def test_events_before_their_hold_wait_for_it(meter: Meter) -> None:
    account, turn = await meter.account(), str(ULID())
    assert await meter.append(event(turn, 0, 5), event(turn, 0, 10, "INPUT")) == 0
    waiting = dict(await meter.ledger_store.pending())
    assert not any(usage_events.parse(data)[0].usage.turn_id == turn for data in waiting.values())
    await meter.hold(account, turn=turn)
    for _ in range(2):
        found = await meter.ledger_store.pending()
        reports = {number: usage_events.parse(data)[0] for number, data in found}
        await meter.ledger_store.append_pending(reports, meter.now)
    assert (await meter.total(account)).cost_nanousd == 500
    assert await meter.ledger_store.pending() == []
    await check_books(meter, account)


async def test_the_ledger_is_append_only(meter: Meter, postgres_owner_dsn: str) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 5))
    for statement in (
        "UPDATE billing.ledger SET cost_nanousd = 0",
        "DELETE FROM billing.ledger",
        "TRUNCATE billing.ledger",
        "ALTER TABLE billing.ledger DISABLE TRIGGER ALL",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await meter.fetch(statement)
    owner = await asyncpg.connect(postgres_owner_dsn)  # and even the owner is stopped
    try:
        for statement in (
            "UPDATE billing.ledger SET cost_nanousd = 0",
            "DELETE FROM billing.ledger",
            "TRUNCATE billing.ledger",
        ):
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await owner.execute(statement)
    finally:
        await owner.close()
    assert (await meter.total(account)).cost_nanousd == 300


async def test_the_database_itself_refuses_a_second_charge(meter: Meter) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 5))
    with pytest.raises(asyncpg.UniqueViolationError):
        await meter.fetch(
            "INSERT INTO billing.ledger (account_id, turn_id, choice_index, kind, first_position,"
            " end_position, model, cost_nanousd, price_version, create_time, source, step)"
            " SELECT account_id, turn_id, choice_index, kind, first_position, end_position, model,"
            " cost_nanousd, price_version, create_time, source, step FROM billing.ledger"
            " WHERE turn_id = $1",
            turn,
        )


async def test_the_role_sees_only_its_own_schema(meter: Meter, postgres_owner_dsn: str) -> None:
    owner = await asyncpg.connect(postgres_owner_dsn)
    try:
        tables = await owner.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
            " WHERE schemaname NOT IN ('billing', 'pg_catalog', 'information_schema')"
        )
    finally:
        await owner.close()
    assert tables  # at least the deployer's
    for table in tables:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await meter.fetch(f"SELECT * FROM {table['name']}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await meter.fetch("CREATE TABLE billing.mine (x int)")


async def test_prices_are_promised_by_the_hold(meter: Meter, tmp_path: Path) -> None:
    account = await meter.account()
    turn = await meter.hold(account)
    listed = await meter.usage.GetPrices(pb.GetPricesRequest())
    assert [price.model for price in listed.prices] == ["free", "small"]
    assert listed.price_version == "test-1"
    changed = event(turn, 0, 1)
    changed.model = "free"  # whatever the node calls it
    await meter.append(changed)
    (entry,) = (await meter.usage.ListLedger(pb.ListLedgerRequest(account_id=account))).entries
    assert (entry.model, entry.cost_nanousd, entry.price_version) == ("small", 60, "test-1")


async def test_the_ledger_comes_in_pages(meter: Meter) -> None:
    account = await meter.account()
    turns = [await meter.hold(account) for _ in range(5)]
    for turn in turns:
        await meter.append(event(turn, 0, 5))
    found, token = [], ""
    while True:
        answer = await meter.usage.ListLedger(
            pb.ListLedgerRequest(account_id=account, page_size=2, page_token=token)
        )
        found += [entry.turn_id for entry in answer.entries]
        token = answer.next_page_token
        if not token:
            break
    assert found == turns
    one = await meter.usage.ListLedger(pb.ListLedgerRequest(account_id=account, turn_id=turns[2]))
    assert [entry.turn_id for entry in one.entries] == [turns[2]]
    assert one.next_page_token == ""


async def test_each_refusal_has_its_reason(meter: Meter) -> None:
    account, usage = await meter.account(), meter.usage
    turn = await meter.hold(account)
    many = [event(turn, 0, 1)] * 1001
    cases = [
        (usage.AppendUsage(pb.AppendUsageRequest()), "BAD_REQUEST"),
        (usage.AppendUsage(pb.AppendUsageRequest(events=many)), "BAD_REQUEST"),
        (usage.AppendUsage(pb.AppendUsageRequest(events=[event(turn, 5, 5)])), "BAD_REQUEST"),
        (usage.GetUsage(pb.GetUsageRequest(account_id="acc_none")), "ACCOUNT_NOT_FOUND"),
        (usage.GetUsage(pb.GetUsageRequest(account_id=account, period="x")), "BAD_REQUEST"),
        (usage.ListLedger(pb.ListLedgerRequest(page_size=1001)), "BAD_REQUEST"),
        (usage.ListLedger(pb.ListLedgerRequest(turn_id="x")), "BAD_REQUEST"),
        (usage.ListLedger(pb.ListLedgerRequest(page_token="x")), "BAD_PAGE_TOKEN"),
    ]
    assert [(await refused(call)).reason for call, _ in cases] == [want for _, want in cases]
    error = await refused(usage.AppendUsage(pb.AppendUsageRequest(events=[event("x", 0, 1)])))
    assert error.metadata == {"field": "events[0].turn_id"}
