"""The meter on a loopback port, over the real stores, under a clock that the test sets."""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import asyncpg
import grpc
from ulid import ULID

from billing_svc.account_service import AccountAdminService, KeyService
from billing_svc.account_store import AccountStore
from billing_svc.audit_service import AuditService
from billing_svc.audit_store import AuditStore
from billing_svc.ledger_store import LedgerStore
from billing_svc.limit_store import LimitStore
from billing_svc.price_file import PriceFile
from billing_svc.quota_store import QuotaStore
from billing_svc.repair_store import RepairStore
from billing_svc.service import QuotaService, UsageService
from billing_svc.settings import Settings
from billing_svc.store import Store
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc as rpc
from chatmesh.content.v1 import content_pb2
from tests.support.loopback import loopback

PRICES = """
version: "test-1"
models:
  small: {input_nanousd: 20, cached_input_nanousd: 5, output_nanousd: 60}
  free: {input_nanousd: 0, cached_input_nanousd: 0, output_nanousd: 0}
"""
BOUNDS = Settings(database_url="unused", redis_url="unused").audit_bounds
START = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


class Meter:
    """Stubs of the five services, the stores under them, and the clock."""

    def __init__(self, channel: grpc.aio.Channel, store: Store) -> None:
        self.now = START
        self.channel, self.store = channel, store
        self.quota_store, self.ledger_store = QuotaStore(store), LedgerStore(store)
        self.audit_store = AuditStore(store, BOUNDS)
        self.keys = rpc.KeyServiceStub(channel)
        self.admin = rpc.AccountAdminServiceStub(channel)
        self.quota = rpc.QuotaServiceStub(channel)
        self.usage = rpc.UsageServiceStub(channel)
        self.audits = rpc.AuditServiceStub(channel)

    def pass_time(self, **span: float) -> None:
        """Moves the clock."""
        self.now += dt.timedelta(**span)

    async def account(self, budget_nanousd: int = -1) -> str:
        """A new account's id."""
        request = pb.CreateAccountRequest(
            name="test", tier=content_pb2.TIER_PRO, monthly_budget_nanousd=budget_nanousd
        )
        return (await self.admin.CreateAccount(request)).account.id

    async def hold(
        self, account: str, prompt: int = 10, output: int = 100, turn: str = "", **rest: object
    ) -> str:
        """A held turn's id."""
        turn = turn or str(ULID())
        request = pb.HoldRequest(
            turn_id=turn,
            account_id=account,
            model="small",
            prompt_token_count=prompt,
            output_token_count_max=output,
        )
        for name, value in rest.items():
            setattr(request, name, value)
        await self.quota.Hold(request)
        return turn

    async def settle(
        self, turn: str, prompt: int, output: int, cached: int = 0, **rest: object
    ) -> int:
        """The cost of the settled turn."""
        request = pb.SettleRequest(
            turn_id=turn,
            prompt_token_count=prompt,
            cached_token_count=cached,
            output_token_count=output,
            **rest,
        )
        return (await self.quota.Settle(request)).cost_nanousd

    async def append(self, *events: pb.UsageEvent) -> int:
        """Tokens that were new."""
        return (await self.usage.AppendUsage(pb.AppendUsageRequest(events=events))).new_token_count

    async def total(self, account: str, period: str = "") -> pb.GetUsageResponse:
        """The account's sum over a month."""
        return await self.usage.GetUsage(pb.GetUsageRequest(account_id=account, period=period))

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Rows, with the service's own role."""
        async with self.store.connection() as connection:
            return await connection.fetch(query, *arguments)


def event(
    turn: str,
    first: int,
    end: int,
    kind: str = "OUTPUT",
    *,
    choice: int = 0,
    attempt: int = 1,
    step: int = 0,
    event_time: dt.datetime | None = None,
) -> pb.UsageEvent:
    """A node's event."""
    made = pb.UsageEvent(
        turn_id=turn,
        attempt=attempt,
        step=step,
        choice_index=choice,
        kind=pb.UsageKind.Value(f"USAGE_KIND_{kind}"),
        first_position=first,
        end_position=end,
        model="small",
        instance="inference-1",
    )
    if event_time is not None:
        made.event_time.FromDatetime(event_time)
    return made


@contextlib.asynccontextmanager
async def metered(dsn: str, folder: Path) -> AsyncIterator[Meter]:
    """Serves the meter; `folder` gets its price list."""
    prices = folder / "prices.yaml"
    prices.write_text(PRICES)
    price_file = PriceFile(prices)
    store = await Store.open(dsn)
    meters: list[Meter] = []

    def clock() -> dt.datetime:
        return meters[0].now

    tiers = Settings(database_url=dsn, redis_url="redis://unused").tiers
    accounts, limits = AccountStore(store, tiers), LimitStore(store)
    servicers = [
        (rpc.add_KeyServiceServicer_to_server, KeyService(accounts, clock)),
        (
            rpc.add_AccountAdminServiceServicer_to_server,
            AccountAdminService(accounts, limits, clock),
        ),
        (
            rpc.add_QuotaServiceServicer_to_server,
            QuotaService(QuotaStore(store), price_file, clock),
        ),
        (
            rpc.add_UsageServiceServicer_to_server,
            UsageService(LedgerStore(store), limits, price_file, clock),
        ),
        (
            rpc.add_AuditServiceServicer_to_server,
            AuditService(AuditStore(store, BOUNDS), RepairStore(store, BOUNDS), clock),
        ),
    ]
    try:
        async with loopback(servicers) as channel:
            meters.append(Meter(channel, store))
            yield meters[0]
    finally:
        await store.close()


class Reader(Protocol):
    """Reads the store's tables."""

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Rows."""
        ...


async def check_books(meter: Reader, account: str) -> None:
    """Running totals, balances and turns must be what the ledger and the turns say."""
    ledger = await meter.fetch(
        "SELECT billing.month_of(create_time) AS period, model,"
        " coalesce(sum(count) FILTER (WHERE kind <> 3), 0) AS input,"
        " coalesce(sum(count) FILTER (WHERE kind = 2), 0) AS cached,"
        " coalesce(sum(count) FILTER (WHERE kind = 3), 0) AS output,"
        " sum(cost_nanousd) AS cost, count(DISTINCT turn_id) AS turns"
        " FROM billing.ledger, LATERAL (SELECT (CASE WHEN is_credit THEN -1 ELSE 1 END)"
        " * (end_position - first_position) AS count) AS signed"
        " WHERE account_id = $1 GROUP BY 1, 2 ORDER BY 1, 2",
        account,
    )
    totals = await meter.fetch(
        "SELECT period, model, sum(input_token_count), sum(cached_input_token_count),"
        " sum(output_token_count), sum(cost_nanousd), sum(turn_count)"
        " FROM billing.usage_totals WHERE account_id = $1 GROUP BY 1, 2 ORDER BY 1, 2",
        account,
    )
    assert [tuple(row) for row in ledger] == [tuple(row) for row in totals]
    payers = await meter.fetch(
        "SELECT $1 AS payer UNION SELECT unnest(other_payers) FROM billing.turns"
        " WHERE account_id = $1",
        account,
    )
    for row in payers:
        await check_balance(meter, row["payer"])
    (drift,) = await meter.fetch(
        "SELECT count(*) AS count FROM billing.turns t WHERE account_id = $1 AND ledger_nanousd"
        " <> coalesce((SELECT sum(cost_nanousd) FROM billing.ledger l"
        " WHERE l.turn_id = t.turn_id), 0)",
        account,
    )
    assert drift["count"] == 0


async def check_balance(meter: Reader, payer: str) -> None:
    """A payer's balance must be what its turns and their ledger entries say."""
    (balance,) = await meter.fetch(
        "SELECT b.reserved_nanousd, b.spent_nanousd, b.running,"
        " coalesce(sum(t.reserved_nanousd), 0) AS turns,"
        " count(*) FILTER (WHERE t.state = 1) AS open,"
        " coalesce((SELECT sum(cost_nanousd) FROM billing.ledger l WHERE"
        "  billing.month_of(l.create_time) = b.period AND (l.account_id = b.payer_id"
        "  OR l.turn_id IN (SELECT o.turn_id FROM billing.turns o WHERE"
        "  b.payer_id = ANY (o.other_payers)))), 0) AS ledger"
        " FROM billing.balances b LEFT JOIN billing.turns t"
        "  ON t.account_id = b.payer_id OR b.payer_id = ANY (t.other_payers)"
        " WHERE b.payer_id = $1 GROUP BY b.payer_id",
        payer,
    )
    assert balance["reserved_nanousd"] == balance["turns"]
    assert balance["running"] == balance["open"]
    assert balance["spent_nanousd"] == balance["ledger"]
