"""Accounts and keys against the real PostgreSQL."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import grpc
import pytest
from google.protobuf import duration_pb2

from billing_svc.account_store import LOOKUP_CONNECTION_COUNT_MAX
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.content.v1 import content_pb2
from mesh.chassis.errors import MeshError
from tests.support.billing import Meter, metered
from tests.support.control_plane import until


@pytest.fixture
async def meter(postgres_dsn_for: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Meter]:
    async with metered(postgres_dsn_for("billing"), tmp_path) as made:
        yield made


async def refused(call: object) -> MeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return MeshError.from_rpc(caught.value)


async def test_a_flood_of_unknown_keys_leaves_the_holds_their_connections(
    meter: Meter, postgres_owner_dsn: str
) -> None:
    account = await meter.account()
    owner = await asyncpg.connect(postgres_owner_dsn)
    async with owner.transaction():  # lookups take as long as this
        await owner.execute("LOCK TABLE billing.keys IN ACCESS EXCLUSIVE MODE")
        flood = [
            asyncio.ensure_future(meter.keys.ResolveKey(digest(f"cm-unknown{number}")))
            for number in range(100)
        ]
        beside = await asyncpg.connect(postgres_owner_dsn)
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'billing.keys'::regclass"
        waiting += " AND NOT granted"
        await until(lambda: beside.fetchval(waiting), "lookups wait")
        for _ in range(20):
            await meter.hold(account)
        assert 0 < await beside.fetchval(waiting) <= LOOKUP_CONNECTION_COUNT_MAX
        await beside.close()
    await owner.close()
    reasons = {(await refused(one)).reason for one in flood}
    assert reasons <= {"KEY_NOT_FOUND", "STORE_UNAVAILABLE"}
    assert (await refused(meter.keys.ResolveKey(digest("cm-x")))).reason == "KEY_NOT_FOUND"


def digest(secret: str) -> pb.ResolveKeyRequest:
    return pb.ResolveKeyRequest(key_digest=hashlib.sha256(secret.encode()).digest())


async def test_the_life_of_a_key(meter: Meter) -> None:
    account = await meter.account(500)
    made = await meter.admin.CreateKey(
        pb.CreateKeyRequest(
            account_id=account,
            scopes=["usage", "chat"],
            lifetime=duration_pb2.Duration(seconds=60),
            name="laptop",
        )
    )
    assert made.secret.startswith("cm-")
    assert len(made.secret) == 52
    assert made.key.prefix == made.secret[:7]
    found = await meter.keys.ResolveKey(digest(made.secret))
    assert found.key == made.key
    assert list(found.key.scopes) == ["chat", "usage"]
    assert (found.account.id, found.account.tier) == (account, content_pb2.TIER_PRO)
    assert found.account.monthly_budget_nanousd == 500
    rows = await meter.fetch("SELECT * FROM billing.keys WHERE key_id = $1", made.key.id)
    assert made.secret not in str(tuple(rows[0]))
    meter.pass_time(seconds=60)
    error = await refused(meter.keys.ResolveKey(digest(made.secret)))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "KEY_EXPIRED")
    revoked = await meter.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.id))
    meter.pass_time(seconds=60)
    again = await meter.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.id))
    assert revoked.key.revoke_time == again.key.revoke_time
    assert (await refused(meter.keys.ResolveKey(digest(made.secret)))).reason == "KEY_REVOKED"


async def test_a_key_without_wishes_may_everything_for_ever(meter: Meter) -> None:
    account = await meter.account()
    made = await meter.admin.CreateKey(pb.CreateKeyRequest(account_id=account))
    assert list(made.key.scopes) == ["chat", "conversations", "usage"]
    assert not made.key.HasField("expire_time")
    meter.pass_time(days=10_000)
    await meter.keys.ResolveKey(digest(made.secret))


async def test_a_closed_accounts_keys_are_refused(meter: Meter) -> None:
    account = await meter.account()
    made = await meter.admin.CreateKey(pb.CreateKeyRequest(account_id=account))
    await meter.fetch(
        "UPDATE billing.accounts SET close_time = now() WHERE account_id = $1", account
    )
    assert (await refused(meter.keys.ResolveKey(digest(made.secret)))).reason == "ACCOUNT_CLOSED"


async def test_create_key_is_repeatable_but_shows_the_secret_once(
    meter: Meter, fresh_id: Callable[..., str]
) -> None:
    account = await meter.account()
    request = pb.CreateKeyRequest(request_id=fresh_id("req_"), account_id=account)
    answers = await asyncio.gather(*(meter.admin.CreateKey(request) for _ in range(5)))
    assert len({answer.key.id for answer in answers}) == 1
    (secret,) = {answer.secret for answer in answers} - {""}
    assert (await meter.keys.ResolveKey(digest(secret))).key.id == answers[0].key.id


async def test_create_account_is_repeatable_and_has_the_tiers_budget(
    meter: Meter, fresh_id: Callable[..., str]
) -> None:
    request = pb.CreateAccountRequest(
        request_id=fresh_id("req_"), name="Zoë 🙂", tier=content_pb2.TIER_FREE, jurisdiction="DE"
    )
    answers = await asyncio.gather(*(meter.admin.CreateAccount(request) for _ in range(5)))
    (account,) = {answer.account.id for answer in answers}
    assert answers[0].account.name == "Zoë 🙂"
    assert answers[0].account.monthly_budget_nanousd == 1_000_000_000
    key = await meter.admin.CreateKey(pb.CreateKeyRequest(account_id=account))
    assert (await meter.keys.ResolveKey(digest(key.secret))).account.jurisdiction == "DE"
    assert (await meter.total(account)).budget_nanousd == 1_000_000_000


async def test_a_subject_has_one_account_which_follows_its_tier(
    meter: Meter, fresh_id: Callable[..., str]
) -> None:
    subject = fresh_id("user_")

    async def resolve(tier: "content_pb2.Tier.ValueType") -> pb.Account:
        request = pb.ResolveSubjectRequest(issuer="https://id.example", subject=subject, tier=tier)
        return (await meter.keys.ResolveSubject(request)).account

    found = await asyncio.gather(*(resolve(content_pb2.TIER_FREE) for _ in range(6)))
    (account,) = {one.id for one in found}
    raised = await resolve(content_pb2.TIER_PRO)
    assert (raised.id, raised.tier) == (account, content_pb2.TIER_PRO)
    assert raised.monthly_budget_nanousd == 20_000_000_000
    # A budget that the operator set no longer follows the tier.
    await meter.admin.SetBudget(pb.SetBudgetRequest(account_id=account, monthly_budget_nanousd=7))
    lowered = await resolve(content_pb2.TIER_FREE)
    assert (lowered.tier, lowered.monthly_budget_nanousd) == (content_pb2.TIER_FREE, 7)
    other = await meter.keys.ResolveSubject(
        pb.ResolveSubjectRequest(issuer="https://other.example", subject=subject, tier=1)
    )
    assert other.account.id != account
    await meter.fetch(
        "UPDATE billing.accounts SET close_time = now() WHERE account_id = $1", account
    )
    request = pb.ResolveSubjectRequest(issuer="https://id.example", subject=subject, tier=2)
    assert (await refused(meter.keys.ResolveSubject(request))).reason == "ACCOUNT_CLOSED"


async def test_lists_come_in_pages(meter: Meter) -> None:
    account = await meter.account()
    made = [
        (await meter.admin.CreateKey(pb.CreateKeyRequest(account_id=account, name=str(n)))).key.id
        for n in range(5)
    ]
    keys, token, pages = [], "", 0
    while pages == 0 or token:
        answer = await meter.admin.ListKeys(
            pb.ListKeysRequest(account_id=account, page_size=2, page_token=token)
        )
        keys += [key.id for key in answer.keys]
        token, pages = answer.next_page_token, pages + 1
    assert (sorted(made), pages) == (keys, 3)
    accounts, token = [], ""
    while True:
        answer = await meter.admin.ListAccounts(
            pb.ListAccountsRequest(page_size=100, page_token=token)
        )
        accounts += [one.id for one in answer.accounts]
        token = answer.next_page_token
        if not token:
            break
    assert account in accounts
    assert accounts == sorted(set(accounts))


async def test_each_refusal_has_its_reason(meter: Meter) -> None:
    account, admin, keys = await meter.account(), meter.admin, meter.keys
    tier = content_pb2.TIER_FREE
    cases = [
        (keys.ResolveKey(digest("cm-unknown")), "KEY_NOT_FOUND"),
        (keys.ResolveKey(pb.ResolveKeyRequest(key_digest=b"short")), "KEY_NOT_FOUND"),
        (keys.ResolveSubject(pb.ResolveSubjectRequest(subject="s", tier=tier)), "BAD_REQUEST"),
        (keys.ResolveSubject(pb.ResolveSubjectRequest(issuer="i", tier=tier)), "BAD_REQUEST"),
        (
            keys.ResolveSubject(pb.ResolveSubjectRequest(issuer="i", subject="s")),
            "BAD_REQUEST",
        ),
        (admin.CreateAccount(pb.CreateAccountRequest(name="n")), "BAD_REQUEST"),
        (
            admin.CreateAccount(pb.CreateAccountRequest(tier=tier, jurisdiction="Germany")),
            "BAD_REQUEST",
        ),
        (admin.CreateAccount(pb.CreateAccountRequest(name="n" * 201, tier=tier)), "BAD_REQUEST"),
        (
            admin.CreateAccount(pb.CreateAccountRequest(tier=tier, monthly_budget_nanousd=-2)),
            "BAD_REQUEST",
        ),
        (admin.SetBudget(pb.SetBudgetRequest(account_id="acc_none")), "ACCOUNT_NOT_FOUND"),
        (
            admin.SetBudget(pb.SetBudgetRequest(account_id=account, monthly_budget_nanousd=-2)),
            "BAD_REQUEST",
        ),
        (admin.CreateKey(pb.CreateKeyRequest(account_id="acc_none")), "ACCOUNT_NOT_FOUND"),
        (
            admin.CreateKey(pb.CreateKeyRequest(account_id=account, scopes=["root"])),
            "BAD_REQUEST",
        ),
        (
            admin.CreateKey(
                pb.CreateKeyRequest(account_id=account, lifetime=duration_pb2.Duration())
            ),
            "BAD_REQUEST",
        ),
        (admin.RevokeKey(pb.RevokeKeyRequest(key_id="key_none")), "KEY_NOT_FOUND"),
        (admin.ListAccounts(pb.ListAccountsRequest(page_size=101)), "BAD_REQUEST"),
        (admin.ListAccounts(pb.ListAccountsRequest(page_token="x")), "BAD_PAGE_TOKEN"),
        (admin.ListKeys(pb.ListKeysRequest(page_token="x")), "BAD_PAGE_TOKEN"),
    ]
    assert [(await refused(call)).reason for call, _ in cases] == [want for _, want in cases]
