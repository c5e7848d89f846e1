"""Limits against the real PostgreSQL: whoever pays, nothing passes what is allowed."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2
from ulid import ULID

from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.content.v1 import content_pb2 as content
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, check_balance, check_books, event, metered

PROMPT_COST, TOKEN_COST = 20, 60
LIFETIME = duration_pb2.Duration(seconds=120)


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


async def refused(call: object) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return MeshError.from_rpc(caught.value)


def asked(account: str, least: int = 1, most: int = 100, key: str = "") -> pb.HoldRequest:
    return pb.HoldRequest(
        turn_id=str(ULID()),
        account_id=account,
        key_id=key,
        model="small",
        prompt_token_count=10,
        output_token_count_max=most,
        output_token_count_min=least,
    )


def more(turn: str, most: int, least: int = 1) -> pb.ExtendRequest:
    return pb.ExtendRequest(
        turn_id=turn,
        lifetime=LIFETIME,
        prompt_token_count=10,
        output_token_count_max=most,
        output_token_count_min=least,
    )


async def limit(meter: Meter, payer: str, **limits: int) -> pb.Limits:
    return (await meter.admin.SetLimits(pb.SetLimitsRequest(id=payer, **limits))).limits


async def key_of(meter: Meter, account: str) -> str:
    return (await meter.admin.CreateKey(pb.CreateKeyRequest(account_id=account))).key.id


async def organisation(meter: Meter, *accounts: str, **fields: int) -> str:
    made = await meter.admin.CreateOrganisation(pb.CreateOrganisationRequest(name="o", **fields))
    for account in accounts:
        request = pb.SetMemberRequest(account_id=account, organisation_id=made.organisation.id)
        await meter.admin.SetMember(request)
    return made.organisation.id


async def test_what_does_not_fit_is_granted_in_part_to_the_last_whole_token(meter: Meter) -> None:
    account = await meter.account(10 * PROMPT_COST + 7 * TOKEN_COST + 59)
    answer = await meter.quota.Hold(asked(account))
    assert (answer.output_token_count, answer.held_nanousd) == (7, 620)
    assert answer.bound == pb.Bound(limit=content.LIMIT_BUDGET, payer=content.PAYER_ACCOUNT)
    assert answer.available_nanousd == 59
    # Whoever takes all or nothing, as gateways of the version before do, gets nothing.
    error = await refused(meter.quota.Hold(asked(account, least=0)))
    assert (error.reason, error.metadata["payer"]) == ("BUDGET_EXHAUSTED", "account")
    await check_books(meter, account)


async def test_a_part_grows_while_the_turn_runs_as_far_as_there_is_room(meter: Meter) -> None:
    account = await meter.account(2 * 10 * PROMPT_COST + 120 * TOKEN_COST)
    first = asked(account)
    await meter.quota.Hold(first)
    second = asked(account)
    assert (await meter.quota.Hold(second)).output_token_count == 20
    answer = await meter.quota.Extend(more(second.turn_id, 100))
    assert (answer.output_token_count, answer.bound.limit) == (20, content.LIMIT_BUDGET)
    await meter.settle(first.turn_id, 10, 30)
    for _ in range(2):  # repeatable
        answer = await meter.quota.Extend(more(second.turn_id, 100))
        assert (answer.output_token_count, answer.HasField("bound")) == (90, True)
    answer = await meter.quota.Extend(more(second.turn_id, 90))
    assert (answer.output_token_count, answer.HasField("bound")) == (90, False)
    await check_books(meter, account)


async def test_tokens_of_a_minute_bind_and_come_back_with_the_minute(meter: Meter) -> None:
    account = await meter.account()
    await limit(meter, account, tokens_per_minute=150)
    first, second = asked(account), asked(account)
    answer = await meter.quota.Hold(first)
    allowance = answer.token_allowance
    assert (allowance.limit, allowance.remaining, allowance.reset.seconds) == (150, 40, 60)
    answer = await meter.quota.Hold(second)
    bound = pb.Bound(limit=content.LIMIT_TOKENS_PER_MINUTE, payer=content.PAYER_ACCOUNT)
    assert (answer.output_token_count, answer.bound) == (30, bound)
    error = await refused(meter.quota.Hold(asked(account)))
    assert (error.reason, error.metadata) == (
        "TOKEN_RATE_EXCEEDED",
        {"payer": "account", "limit": "150"},
    )
    # What was not used of this minute is free again, within it.
    await meter.settle(first.turn_id, 10, 5)
    answer = await meter.quota.Extend(more(second.turn_id, 100))
    assert answer.output_token_count == 100
    meter.pass_time(seconds=60)
    assert (await meter.quota.Hold(asked(account))).token_allowance.remaining == 40
    # The last minute's are gone with it.
    await meter.settle(second.turn_id, 10, 5)
    limits = (await meter.total(account)).limits
    assert [(each.minute_token_count, each.running_count) for each in limits] == [(110, 1)]
    await check_books(meter, account)


async def test_no_more_turns_run_at_once_than_may(meter: Meter) -> None:
    account = await meter.account()
    await limit(meter, account, parallel_max=3)
    requests = [asked(account) for _ in range(20)]
    calls = (meter.quota.Hold(each) for each in requests)
    results = await asyncio.gather(*calls, return_exceptions=True)
    held = [r.turn_id for r, a in zip(requests, results, strict=True) if hasattr(a, "held_nanousd")]
    errors = [MeshError.from_rpc(e) for e in results if isinstance(e, grpc.aio.AioRpcError)]
    assert (len(held), {error.reason for error in errors}) == (3, {"PARALLEL_EXCEEDED"})
    await meter.quota.Release(pb.ReleaseRequest(turn_id=held[0]))
    await meter.quota.Hold(asked(account))
    assert (await refused(meter.quota.Hold(asked(account)))).metadata["limit"] == "3"
    meter.pass_time(seconds=121)  # nobody swept: those that expired make the room
    await meter.quota.Hold(asked(account))
    await check_books(meter, account)


async def test_account_key_and_organisation_must_each_have_room(meter: Meter) -> None:
    one, other = await meter.account(), await meter.account()
    key, free_key = await key_of(meter, one), await key_of(meter, one)
    org = await organisation(meter, one, other, monthly_budget_nanousd=20_000)
    await limit(meter, key, monthly_budget_nanousd=3_200)
    first = asked(one, key=key)
    answer = await meter.quota.Hold(first)
    assert (answer.output_token_count, answer.bound.payer) == (50, content.PAYER_KEY)
    assert (await refused(meter.quota.Hold(asked(one, key=key)))).metadata["payer"] == "key"
    second = asked(other, most=200)
    assert (await meter.quota.Hold(second)).output_token_count == 200
    answer = await meter.quota.Hold(asked(one, most=200, key=free_key))
    assert answer.output_token_count == (20_000 - 3_200 - 12_200 - 200) // 60
    assert answer.bound.payer == content.PAYER_ORGANISATION
    await meter.append(event(first.turn_id, 0, 10, "INPUT"), event(first.turn_id, 0, 5))
    await meter.settle(first.turn_id, 10, 5)
    # One that leaves its organisation is paid as it began.
    await meter.admin.SetMember(pb.SetMemberRequest(account_id=other))
    await meter.settle(second.turn_id, 10, 20)
    await meter.append(event(second.turn_id, 0, 10, "INPUT"), event(second.turn_id, 0, 20))
    for account in (one, other):
        await check_books(meter, account)
    await check_balance(meter, org)
    (spent,) = await meter.fetch("SELECT * FROM billing.balances WHERE payer_id = $1", org)
    assert spent["spent_nanousd"] == 500 + 1400


async def test_usage_is_told_by_key_with_the_limits_that_bind(meter: Meter) -> None:
    account = await meter.account(50_000)
    key = await key_of(meter, account)
    org = await organisation(meter, account)
    await limit(meter, key, parallel_max=2)
    for name in (key, ""):
        turn = asked(account, key=name)
        await meter.quota.Hold(turn)
        await meter.append(event(turn.turn_id, 0, 10, "INPUT"), event(turn.turn_id, 0, 4))
    total = await meter.total(account)
    assert [(k.key_id, k.output_token_count, k.turn_count) for k in total.keys] == [
        ("", 4, 1),
        (key, 4, 1),
    ]
    assert (total.output_token_count, total.turn_count, len(total.models)) == (8, 2, 1)
    assert [each.id for each in total.limits] == [account, key]
    member = pb.SetMemberRequest(account_id=account, organisation_id=org, role=pb.ROLE_OWNER)
    await meter.admin.SetMember(member)
    total = await meter.total(account)
    assert [each.id for each in total.limits] == [account, key, org]
    listed = await meter.admin.ListOrganisations(pb.ListOrganisationsRequest(page_size=100))
    (mine,) = (each for each in listed.organisations if each.id == org)
    assert [(m.account_id, m.role) for m in mine.members] == [(account, pb.ROLE_OWNER)]


async def test_limits_of_what_does_not_exist(meter: Meter) -> None:
    for payer, reason in (
        ("key_x", "KEY_NOT_FOUND"),
        ("acc_x", "ACCOUNT_NOT_FOUND"),
        ("org_x", "ORGANISATION_NOT_FOUND"),
        ("x", "BAD_REQUEST"),
    ):
        call = meter.admin.SetLimits(pb.SetLimitsRequest(id=payer, parallel_max=1))
        assert (await refused(call)).reason == reason
    account = await meter.account()
    request = pb.SetMemberRequest(account_id=account, organisation_id="org_x")
    assert (await refused(meter.admin.SetMember(request))).reason == "ORGANISATION_NOT_FOUND"
    call = meter.admin.SetLimits(pb.SetLimitsRequest(id=account, parallel_max=-2))
    assert (await refused(call)).reason == "BAD_REQUEST"


async def watch(meter: Meter, payers: list[str], overdrawn: list[object]) -> None:
    """Notes each balance that is past one of its limits, for ever."""
    while True:
        overdrawn += await meter.fetch(
            "SELECT * FROM billing.balances WHERE payer_id = ANY($1) AND ("
            " reserved_nanousd + spent_nanousd > monthly_budget_nanousd"
            " AND monthly_budget_nanousd >= 0 OR running > parallel_max AND parallel_max >= 0"
            " OR minute_token_count > tokens_per_minute AND tokens_per_minute >= 0)",
            payers,
        )
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_runs_beside_nothing_passes_a_limit(meter: Meter, seed: int) -> None:
    """Turns of three accounts and their keys, at once: held, extended, cut, settled, reported."""
    chance = random.Random(seed)
    accounts = [await meter.account(40_000) for _ in range(3)]
    keys = [await key_of(meter, account) for account in accounts]
    org = await organisation(meter, *accounts[:2], monthly_budget_nanousd=50_000)
    await limit(meter, keys[0], monthly_budget_nanousd=20_000, tokens_per_minute=700)
    await limit(meter, org, tokens_per_minute=900, parallel_max=5)
    payers = [*accounts, keys[0], org]
    overdrawn: list[object] = []
    refusals: set[grpc.StatusCode] = set()

    async def turn() -> None:
        index = chance.randrange(3)
        request = asked(accounts[index], most=chance.randint(1, 200), key=keys[index])
        request.output_token_count_max = most = request.output_token_count_max * 2
        try:
            granted = (await meter.quota.Hold(request)).output_token_count
        except grpc.aio.AioRpcError as error:
            refusals.add(MeshError.from_rpc(error).code)
            await asyncio.sleep(0.01)
            return
        if granted < most:
            granted = (await meter.quota.Extend(more(request.turn_id, most))).output_token_count
        # The node goes as far as it may; what the gateway saw of it may be less.
        made = chance.choice((granted, chance.randint(0, granted)))
        seen = chance.choice((made, chance.randint(0, made)))
        reports = [event(request.turn_id, 0, 10, "INPUT")]
        if made:
            reports.append(event(request.turn_id, 0, made))
        settle = pb.SettleRequest(
            turn_id=request.turn_id,
            prompt_token_count=10,
            output_token_count=seen,
            cut_short=seen < made,
        )
        works = [meter.append(*reports), _awaited(meter.quota.Settle(settle))]
        chance.shuffle(works)
        for work in works:
            await work
            await asyncio.sleep(chance.random() * 0.05)

    watching = asyncio.ensure_future(watch(meter, payers, overdrawn))

    async def client() -> None:
        for _ in range(8):
            await turn()

    await asyncio.gather(*(client() for _ in range(12)))
    watching.cancel()
    meter.pass_time(seconds=31)
    await meter.ledger_store.reconcile(meter.now, meter.now)
    assert not overdrawn
    assert refusals == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for account in accounts:
        await check_books(meter, account)
    for payer in payers:
        await check_balance(meter, payer)


async def _awaited(call: object) -> None:
    await call  # type: ignore[misc]
