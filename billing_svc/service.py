"""QuotaService and UsageService: the contract over holds and ledger."""

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf import duration_pb2
from prometheus_client import Counter

from billing_svc import checks, refusals, settlements, usage_events
from billing_svc.hold_rows import Held, HoldRow
from billing_svc.ledger_store import LedgerRow, LedgerStore
from billing_svc.limit_store import LimitStore
from billing_svc.price_file import PriceFile
from billing_svc.quota import Counts
from billing_svc.quota_store import QuotaStore, RefusedError
from billing_svc.usage_events import BadEventError
from billing_svc.usage_sums import usage_response
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from mesh.chassis import pages
from mesh.chassis.errors import MeshError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Clock = Callable[[], dt.datetime]

EVENT_COUNT_MAX = 1000
LEDGER_PAGE_SIZE_DEFAULT, LEDGER_PAGE_SIZE_MAX = 100, 1000

_holds = Counter("chatmesh_billing_holds_total", "Holds asked for", ["outcome"])


def utc_now() -> dt.datetime:
    """The clock of the running service."""
    return dt.datetime.now(dt.UTC)


def _entry_id(text: str) -> int:
    number = int(text)
    if not 0 < number <= checks.INT64_MAX:
        raise ValueError("no ledger entry")
    return number


class QuotaService(billing_pb2_grpc.QuotaServiceServicer):
    """Reserves money before a turn and settles after it."""

    def __init__(self, store: QuotaStore, prices: PriceFile, clock: Clock = utc_now) -> None:
        self._store, self._prices, self._clock = store, prices, clock

    async def Hold(self, request: pb.HoldRequest, context: Context) -> pb.HoldResponse:  # noqa: N802
        """See the contract."""
        turn_id = checks.turn_id(request.turn_id)
        model = checks.text("model", request.model, checks.ID_LENGTH_MAX, required=True)
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        lifetime = checks.LIFETIME_DEFAULT
        if request.HasField("lifetime"):
            lifetime = checks.lifetime(request.lifetime)
        price = self._prices.current.price_of(model)
        if price is None:
            raise checks.not_found(
                "PRICE_NOT_FOUND",
                f"The price list does not name the model {model!r}; add it to the list.",
                model=model,
            )
        most = request.output_token_count_max
        now = self._clock()
        row = HoldRow(
            turn_id,
            account_id,
            checks.text("key_id", request.key_id, checks.ID_LENGTH_MAX),
            model,
            price.version,
            *(price.input_nanousd, price.cached_input_nanousd, price.output_nanousd),
            request.prompt_token_count,
            min(request.output_token_count_min or most, most),
            most,
            now,
            now + lifetime,
        )
        held = await self._store.hold(row)
        _holds.labels(_outcome(held)).inc()
        _check_held(held, account_id, now)
        return pb.HoldResponse(
            held_nanousd=held.held_nanousd,
            available_nanousd=held.available_nanousd,
            expire_time=checks.stamp(held.expire_time),
            output_token_count=held.granted_count,
            bound=refusals.bound(held.bound),
            token_allowance=_allowance(held, now),
        )

    async def Extend(self, request: pb.ExtendRequest, context: Context) -> pb.ExtendResponse:  # noqa: N802
        """See the contract."""
        turn_id, lifetime = checks.turn_id(request.turn_id), checks.lifetime(request.lifetime)
        now, most = self._clock(), request.output_token_count_max
        least = min(request.output_token_count_min or most, most)
        counts = Counts(request.prompt_token_count, least, most)
        try:
            extended = await self._store.extend(turn_id, counts, now, lifetime)
        except RefusedError as error:
            raise refusals.refused(error.refused, now) from None
        if extended is None:
            raise _hold_not_found(turn_id)
        turn = extended.turn
        return pb.ExtendResponse(
            held_nanousd=turn.reserved_nanousd,
            expire_time=checks.stamp(turn.expire_time),
            output_token_count=turn.held_output_count,
            bound=refusals.bound(extended.bound),
        )

    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SettleResponse:  # noqa: N802
        """See the contract."""
        turn_id = checks.turn_id(request.turn_id)
        counts = settlements.counts_of(request)
        turn = await self._store.settle(turn_id, counts, self._clock(), cut_short=request.cut_short)
        if turn is None:
            raise _hold_not_found(turn_id)
        return pb.SettleResponse(cost_nanousd=turn.amount_nanousd)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """See the contract."""
        turn_id = checks.turn_id(request.turn_id)
        if await self._store.release(turn_id, self._clock()) is None:
            raise _hold_not_found(turn_id)
        return pb.ReleaseResponse()


class UsageService(billing_pb2_grpc.UsageServiceServicer):
    """Records and reports usage."""

    def __init__(
        self, store: LedgerStore, limits: LimitStore, prices: PriceFile, clock: Clock = utc_now
    ) -> None:
        self._store, self._limits, self._prices, self._clock = store, limits, prices, clock

    async def AppendUsage(  # noqa: N802
        self, request: pb.AppendUsageRequest, context: Context
    ) -> pb.AppendUsageResponse:
        """See the contract."""
        if not 0 < len(request.events) <= EVENT_COUNT_MAX:
            raise checks.bad_request("events", f"must be 1 to {EVENT_COUNT_MAX}.")
        reports = []
        for index, event in enumerate(request.events):
            try:
                reports.append(usage_events.report_of(event))
            except BadEventError as error:
                raise checks.bad_request(f"events[{index}].{error.field}", error.message) from None
        appended = await self._store.append(reports, self._clock())
        return pb.AppendUsageResponse(new_token_count=appended.new_token_count)

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:  # noqa: N802
        """See the contract."""
        month = checks.period(request.period, self._clock())
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        now = self._clock()
        limits = await self._limits.limits_of(account_id, now)
        if not limits:
            raise checks.account_not_found(account_id)
        names = await self._limits.key_names(account_id)
        return usage_response(month, await self._store.totals(account_id, month), limits, names)

    async def ListLedger(  # noqa: N802
        self, request: pb.ListLedgerRequest, context: Context
    ) -> pb.ListLedgerResponse:
        """See the contract."""
        size = pages.page_size(request.page_size, LEDGER_PAGE_SIZE_DEFAULT, LEDGER_PAGE_SIZE_MAX)
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        turn_id = checks.turn_id(request.turn_id) if request.turn_id else ""
        name = ("ledger", account_id, turn_id)
        (last,) = pages.place_of(name, request.page_token, (_entry_id,)) or (0,)
        rows = await self._store.entries(account_id, turn_id, last, size + 1)
        page, more = pages.cut(rows, size)
        token = pages.page_token(name, (str(page[-1].entry_id),)) if more else ""
        return pb.ListLedgerResponse(entries=map(ledger_entry, page), next_page_token=token)

    async def GetPrices(  # noqa: N802
        self, request: pb.GetPricesRequest, context: Context
    ) -> pb.GetPricesResponse:
        """See the contract."""
        current = self._prices.current
        return pb.GetPricesResponse(
            price_version=current.version,
            prices=[
                pb.Price(
                    model=model,
                    input_nanousd=price.input_nanousd,
                    cached_input_nanousd=price.cached_input_nanousd,
                    output_nanousd=price.output_nanousd,
                )
                for model, price in sorted(current.models.items())
            ],
        )


def _outcome(held: Held) -> str:
    """For the metric."""
    if held.outcome == "refused" and held.bound is not None:
        return refusals.LIMIT_WORDS[held.bound.limit]
    return "held_in_part" if held.bound is not None else held.outcome


def _check_held(held: Held, account_id: str, now: dt.datetime) -> None:
    if held.outcome == "no_account":
        raise checks.account_not_found(account_id)
    if held.outcome == "other_account":
        raise checks.bad_request("turn_id", "is another account's turn: use a new one.")
    if held.outcome == "refused":
        raise refusals.refused(held, now)


def _allowance(held: Held, now: dt.datetime) -> pb.TokenAllowance | None:
    if held.token_limit is None or held.token_left is None:
        return None
    reset = duration_pb2.Duration()
    reset.FromMilliseconds(int(refusals.seconds_left(now) * 1000))
    return pb.TokenAllowance(limit=held.token_limit, remaining=held.token_left, reset=reset)


def _hold_not_found(turn_id: str) -> MeshError:
    return checks.not_found(
        "HOLD_NOT_FOUND", f"No hold has the turn id {turn_id}: call Hold first, then repeat this."
    )


def ledger_entry(row: LedgerRow) -> pb.LedgerEntry:
    """An entry on the wire."""
    entry = row.entry
    return pb.LedgerEntry(
        id=row.entry_id,
        turn_id=entry.turn_id,
        choice_index=entry.choice_index,
        kind=pb.UsageKind.ValueType(entry.kind),
        first_position=entry.first,
        end_position=entry.end,
        model=entry.model,
        cost_nanousd=entry.cost_nanousd,
        price_version=entry.price_version,
        create_time=checks.stamp(row.create_time),
        source=entry.source,
        step=entry.step,
        credit=entry.is_credit,
        key_id=entry.key_id,
    )
