"""Holds against the real PostgreSQL: budgets never overshoot, everything is repeatable."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2
from ulid import ULID

from chatmesh.billing.v1 import billing_pb2 as pb
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, check_books, event, metered

# 10 prompt tokens at 20 and 100 output tokens at 60.
WORST_CASE = 10 * 20 + 100 * 60


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


async def refused(call: object) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return MeshError.from_rpc(caught.value)


def request(account: str, turn: str, **changes: object) -> pb.HoldRequest:
    made = pb.HoldRequest(
        turn_id=turn,
        account_id=account,
        model="small",
        prompt_token_count=10,
        output_token_count_max=100,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


async def test_parallel_holds_never_pass_the_budget(meter: Meter) -> None:
    account = await meter.account(7 * WORST_CASE + WORST_CASE - 1)
    calls = [meter.quota.Hold(request(account, str(ULID()))) for _ in range(40)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    held = [result for result in results if isinstance(result, pb.HoldResponse)]
    failed = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
    assert (len(held), len(failed)) == (7, 33)
    assert {MeshError.from_rpc(error).reason for error in failed} == {"BUDGET_EXHAUSTED"}
    assert sorted(answer.available_nanousd for answer in held) == [
        n * WORST_CASE + WORST_CASE - 1 for n in range(7)
    ]
    assert (await meter.total(account)).held_nanousd == 7 * WORST_CASE
    await check_books(meter, account)


async def test_the_refusal_says_what_is_there_and_what_is_needed(meter: Meter) -> None:
    account = await meter.account(WORST_CASE - 1)
    error = await refused(meter.quota.Hold(request(account, str(ULID()))))
    assert (error.code, error.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "BUDGET_EXHAUSTED",
    )
    assert error.metadata == {
        "available_nanousd": str(WORST_CASE - 1),
        "required_nanousd": str(WORST_CASE),
        "payer": "account",
    }
    assert "fewer tokens" in error.message


async def test_one_turn_held_many_times_at_once_is_held_once(meter: Meter) -> None:
    account, turn = await meter.account(2 * WORST_CASE), str(ULID())
    calls = [meter.quota.Hold(request(account, turn)) for _ in range(12)]
    answers = await asyncio.gather(*calls)
    assert {answer.held_nanousd for answer in answers} == {WORST_CASE}
    assert len({answer.expire_time.ToDatetime() for answer in answers}) == 1
    assert (await meter.total(account)).held_nanousd == WORST_CASE
    await check_books(meter, account)


async def test_settle_and_release_are_repeatable_even_at_once(meter: Meter) -> None:
    account = await meter.account(2 * WORST_CASE)
    settled, released = await meter.hold(account), await meter.hold(account)
    costs = await asyncio.gather(*(meter.settle(settled, 10, 5) for _ in range(6)))
    assert set(costs) == {10 * 20 + 5 * 60}
    assert await meter.settle(settled, 10, 99) == 500  # the first one counts
    again = [meter.quota.Release(pb.ReleaseRequest(turn_id=released)) for _ in range(6)]
    await asyncio.gather(*again)
    await meter.quota.Release(pb.ReleaseRequest(turn_id=settled))  # too late: changes nothing
    assert (await meter.total(account)).held_nanousd == 500
    await check_books(meter, account)


async def test_what_was_settled_stays_reserved_until_the_ledger_has_it(meter: Meter) -> None:
    account = await meter.account(WORST_CASE)
    turn = await meter.hold(account)
    assert await meter.append(event(turn, 0, 10, "INPUT")) == 10
    total = await meter.total(account)
    assert (total.held_nanousd, total.cost_nanousd) == (WORST_CASE - 200, 200)
    assert await meter.settle(turn, 10, 5) == 500
    total = await meter.total(account)
    assert (total.held_nanousd, total.cost_nanousd) == (300, 200)
    await meter.append(event(turn, 0, 5))
    total = await meter.total(account)
    assert (total.held_nanousd, total.cost_nanousd) == (0, 500)
    # What is left is exactly the budget less the cost.
    error = await refused(meter.quota.Hold(request(account, str(ULID()))))
    assert error.metadata["available_nanousd"] == str(WORST_CASE - 500)
    await check_books(meter, account)


async def test_an_expired_hold_frees_the_budget_without_the_sweeper(meter: Meter) -> None:
    account = await meter.account(WORST_CASE)
    await meter.hold(account)
    meter.pass_time(seconds=119)
    await refused(meter.quota.Hold(request(account, str(ULID()))))
    meter.pass_time(seconds=1)
    await meter.hold(account)
    assert (await meter.total(account)).held_nanousd == WORST_CASE
    await check_books(meter, account)


async def test_the_sweeper_expires_holds(meter: Meter) -> None:
    account = await meter.account()
    for _ in range(3):
        await meter.hold(account)
    await asyncio.gather(*(meter.quota_store.expire(meter.now) for _ in range(3)))
    assert (await meter.total(account)).held_nanousd == 3 * WORST_CASE
    meter.pass_time(seconds=120)
    # Other tests' turns may expire with them, and other sweepers may be at work.
    while await meter.quota_store.expire(meter.now):
        pass
    assert (await meter.total(account)).held_nanousd == 0
    await check_books(meter, account)


async def test_settle_after_expiry_is_charged(meter: Meter) -> None:
    account = await meter.account(WORST_CASE)
    turn = await meter.hold(account)
    meter.pass_time(seconds=300)
    other = await meter.hold(account)  # takes the room of the expired one
    assert await meter.settle(turn, 10, 5) == 500
    assert (await meter.total(account)).held_nanousd == WORST_CASE + 500
    await meter.quota.Release(pb.ReleaseRequest(turn_id=other))
    await check_books(meter, account)


async def test_a_hold_repeated_after_expiry_is_reserved_again_if_there_is_room(
    meter: Meter,
) -> None:
    account, turn = await meter.account(WORST_CASE), str(ULID())
    await meter.quota.Hold(request(account, turn))
    meter.pass_time(seconds=120)
    other = await meter.hold(account)
    assert (await refused(meter.quota.Hold(request(account, turn)))).reason == "BUDGET_EXHAUSTED"
    await meter.quota.Release(pb.ReleaseRequest(turn_id=other))
    answer = await meter.quota.Hold(request(account, turn))
    assert answer.held_nanousd == WORST_CASE
    assert answer.expire_time.ToDatetime(dt.UTC) == meter.now + dt.timedelta(seconds=120)
    await check_books(meter, account)


async def test_extend_renews_and_raises(meter: Meter) -> None:
    account = await meter.account(WORST_CASE + 600)
    turn = await meter.hold(account)
    lifetime = duration_pb2.Duration(seconds=300)
    raised = {"prompt_token_count": 10, "output_token_count_max": 110}
    for _ in range(2):  # repeatable: the second changes nothing
        answer = await meter.quota.Extend(
            pb.ExtendRequest(turn_id=turn, lifetime=lifetime, **raised)
        )
        assert answer.held_nanousd == WORST_CASE + 600
    assert answer.expire_time.ToDatetime(dt.UTC) == meter.now + dt.timedelta(seconds=300)
    error = await refused(
        meter.quota.Extend(
            pb.ExtendRequest(
                turn_id=turn, lifetime=lifetime, prompt_token_count=10, output_token_count_max=111
            )
        )
    )
    assert error.reason == "BUDGET_EXHAUSTED"
    found = {"available_nanousd": "0", "required_nanousd": "60", "payer": "account"}
    assert error.metadata == found
    # It had expired, nobody swept it yet, and the budget is full: its own money makes the room.
    meter.pass_time(seconds=301)
    answer = await meter.quota.Extend(pb.ExtendRequest(turn_id=turn, lifetime=lifetime))
    assert answer.held_nanousd == WORST_CASE + 600
    await check_books(meter, account)


async def test_extend_makes_room_by_expiring_others(meter: Meter) -> None:
    account = await meter.account(2 * WORST_CASE)
    await meter.hold(account)
    turn = await meter.hold(account)
    meter.pass_time(seconds=121)
    answer = await meter.quota.Extend(
        pb.ExtendRequest(
            turn_id=turn,
            lifetime=duration_pb2.Duration(seconds=10),
            prompt_token_count=10,
            output_token_count_max=200,
        )
    )
    assert answer.held_nanousd == WORST_CASE + 6000
    await check_books(meter, account)


async def test_no_limit_and_no_price(meter: Meter) -> None:
    account = await meter.account(-1)
    answer = await meter.quota.Hold(request(account, str(ULID())))
    assert (answer.held_nanousd, answer.available_nanousd) == (WORST_CASE, -1)
    broke = await meter.account(0)
    answer = await meter.quota.Hold(request(broke, str(ULID()), model="free"))
    assert (answer.held_nanousd, answer.available_nanousd) == (0, 0)


async def test_a_new_month_brings_the_budget_back(meter: Meter) -> None:
    account = await meter.account(WORST_CASE)
    turn = await meter.hold(account)
    await meter.append(event(turn, 0, 10, "INPUT"), event(turn, 0, 100))
    await meter.settle(turn, 10, 100)
    assert (await refused(meter.quota.Hold(request(account, str(ULID()))))).metadata[
        "available_nanousd"
    ] == "0"
    meter.pass_time(days=15)
    late = await meter.hold(account)
    await meter.append(event(late, 0, 5))
    total = await meter.total(account)
    assert (total.period, total.cost_nanousd) == ("2026-12", 300)
    assert (await meter.total(account, "2026-11")).cost_nanousd == WORST_CASE
    await check_books(meter, account)


async def test_a_changed_budget_counts_at_once(meter: Meter) -> None:
    account = await meter.account(0)
    await refused(meter.quota.Hold(request(account, str(ULID()))))
    await meter.admin.SetBudget(
        pb.SetBudgetRequest(account_id=account, monthly_budget_nanousd=WORST_CASE)
    )
    await meter.hold(account)


async def test_each_refusal_has_its_reason(meter: Meter) -> None:
    account, turn = await meter.account(), str(ULID())
    lifetime = duration_pb2.Duration(seconds=10)
    held = await meter.hold(account)
    other = await meter.account()
    quota = meter.quota
    cases = [
        (quota.Hold(request(account, "x")), "BAD_REQUEST"),
        (quota.Hold(request(account, turn, model="")), "BAD_REQUEST"),
        (quota.Hold(request(other, held)), "BAD_REQUEST"),
        (quota.Hold(request(account, turn, model="huge")), "PRICE_NOT_FOUND"),
        (quota.Hold(request("acc_none", turn)), "ACCOUNT_NOT_FOUND"),
        (quota.Extend(pb.ExtendRequest(turn_id=turn, lifetime=lifetime)), "HOLD_NOT_FOUND"),
        (quota.Extend(pb.ExtendRequest(turn_id=held)), "BAD_REQUEST"),
        (quota.Settle(pb.SettleRequest(turn_id=turn)), "HOLD_NOT_FOUND"),
        (quota.Settle(pb.SettleRequest(turn_id=held, cached_token_count=1)), "BAD_REQUEST"),
        (quota.Settle(pb.SettleRequest(turn_id=held, withheld_token_count=1)), "BAD_REQUEST"),
        (quota.Release(pb.ReleaseRequest(turn_id=turn)), "HOLD_NOT_FOUND"),
    ]
    assert [(await refused(call)).reason for call, _ in cases] == [want for _, want in cases]


async def test_ended_turns_are_forgotten_and_the_ledger_is_not(meter: Meter) -> None:
    account = await meter.account()
    old = await meter.hold(account, turn="00000000000000000000000001")
    await meter.append(event(old, 0, 5))
    assert await meter.quota_store.purge("00000000010") == 0  # still open
    await meter.settle(old, 0, 5)
    assert await meter.quota_store.purge("00000000010") == 1
    listed = await meter.usage.ListLedger(pb.ListLedgerRequest(account_id=account, turn_id=old))
    assert [entry.end_position for entry in listed.entries] == [5]


async def test_a_storm_of_everything_keeps_the_books(meter: Meter) -> None:
    account = await meter.account(20 * WORST_CASE)

    async def turn(number: int) -> None:
        held = await meter.hold(account)
        await asyncio.gather(
            meter.append(event(held, 0, 10, "INPUT"), event(held, 0, number)),
            meter.append(event(held, 0, number + 3, attempt=2)),
            meter.quota.Extend(
                pb.ExtendRequest(turn_id=held, lifetime=duration_pb2.Duration(seconds=60))
            ),
            meter.settle(held, 10, number + 3),
            meter.quota_store.expire(meter.now),
            meter.ledger_store.reconcile(meter.now - dt.timedelta(seconds=30), meter.now),
        )

    await asyncio.gather(*(turn(number) for number in range(1, 13)))
    total = await meter.total(account)
    assert total.held_nanousd == 0
    assert total.output_token_count == sum(number + 3 for number in range(1, 13))
    await check_books(meter, account)
