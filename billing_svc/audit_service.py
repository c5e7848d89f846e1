"""AuditService: the contract over the audit and its repairs."""

import datetime as dt

from google.protobuf import duration_pb2
from ulid import ULID

from billing_svc import checks
from billing_svc.audit import StepAudit
from billing_svc.audit_store import AuditStore, Filter
from billing_svc.repair_store import Repaired, RepairStore
from billing_svc.service import Clock, Context, ledger_entry, utc_now
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from mesh.chassis import pages

PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 100, 500
REPAIR_TURN_COUNT_MAX = 100
_TIME_LENGTH = 10  # characters of a ULID that are its time


class AuditService(billing_pb2_grpc.AuditServiceServicer):
    """Checks the law of conservation, and mends what breaks it."""

    def __init__(self, audits: AuditStore, repairs: RepairStore, clock: Clock = utc_now) -> None:
        self._audits, self._repairs, self._clock = audits, repairs, clock

    async def AuditTurns(  # noqa: N802
        self, request: pb.AuditTurnsRequest, context: Context
    ) -> pb.AuditTurnsResponse:
        """See the contract."""
        size = pages.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
        wanted = _filter(request)
        kind = "findings" if wanted.only_findings else ""
        name = ("audit", wanted.account_id, wanted.turn_id, wanted.since_turn_id, kind)
        (after,) = pages.place_of(name, request.page_token, (str,)) or ("",)
        now = self._clock()
        if after:
            checks.turn_id(after)
        audited = await self._audits.audited(wanted, after, size + 1, now)
        page, more = pages.cut(audited, size)
        lag = duration_pb2.Duration()
        lag.FromTimedelta(dt.timedelta(seconds=await self._audits.lag_s(now)))
        return pb.AuditTurnsResponse(
            steps=[_step(audit) for _, steps in page for audit in steps],
            next_page_token=pages.page_token(name, (page[-1][0],)) if more else "",
            lag=lag,
            finding_turn_count=await self._audits.finding_turn_count(),
        )

    async def RepairTurns(  # noqa: N802
        self, request: pb.RepairTurnsRequest, context: Context
    ) -> pb.RepairTurnsResponse:
        """See the contract."""
        if not 0 < len(request.turn_ids) <= REPAIR_TURN_COUNT_MAX:
            raise checks.bad_request("turn_ids", f"must be 1 to {REPAIR_TURN_COUNT_MAX}.")
        turn_ids = [checks.turn_id(turn_id) for turn_id in request.turn_ids]
        done = [await self._repairs.repair(turn_id, self._clock()) for turn_id in turn_ids]
        return pb.RepairTurnsResponse(turns=[_repaired(one) for one in done if one is not None])


def _filter(request: pb.AuditTurnsRequest) -> Filter:
    since = ""
    if request.HasField("since"):
        try:
            since = str(ULID.from_datetime(request.since.ToDatetime(dt.UTC)))[:_TIME_LENGTH]
        except (ValueError, OverflowError):
            raise checks.bad_request("since", "must be a time after 1970.") from None
    return Filter(
        account_id=checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX),
        turn_id=checks.turn_id(request.turn_id) if request.turn_id else "",
        since_turn_id=since,
        only_findings=request.only_findings,
    )


def _step(audit: StepAudit) -> pb.AuditedStep:
    return pb.AuditedStep(
        turn_id=audit.turn_id,
        account_id=audit.account_id,
        step=audit.step,
        ended=audit.ended,
        prompt_token_count=audit.prompt,
        ledger_prompt_token_count=audit.ledger_prompt,
        generated_token_count=audit.generated,
        released_token_count=audit.released,
        withheld_token_count=audit.withheld,
        unsent_token_count=audit.unsent,
        ledger_token_count=audit.ledger,
        difference_token_count=audit.difference,
        findings=[
            pb.FoundTokens(
                finding=pb.AuditFinding.ValueType(one.finding),
                kind=pb.UsageKind.ValueType(one.kind),
                token_count=one.token_count,
            )
            for one in audit.found
        ],
    )


def _repaired(one: Repaired) -> pb.RepairedTurn:
    entries = [ledger_entry(row) for row in one.rows]
    return pb.RepairedTurn(turn_id=one.turn_id, entries=entries, settled=one.settled)
