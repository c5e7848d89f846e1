"""The meter, as a gateway sees it: what it was asked, and what there is room for."""

# ruff: noqa: N802  the names are the contracts'

import asyncio

import grpc

from chatmesh.billing.v1 import billing_pb2, billing_pb2_grpc
from chatmesh.content.v1 import content_pb2
from tests.support.fake_faults import Faults, failure

MODEL = "chatmesh-tiny"
BOUND = billing_pb2.Bound(limit=content_pb2.LIMIT_BUDGET, payer=content_pb2.PAYER_KEY)


class FakeBilling(
    billing_pb2_grpc.QuotaServiceServicer,
    billing_pb2_grpc.UsageServiceServicer,
    billing_pb2_grpc.KeyServiceServicer,
):
    """Notes holds; resolves the keys it was given."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.calls: list[str] = []
        self.holds: dict[str, billing_pb2.HoldRequest] = {}
        self.settled: dict[str, billing_pb2.SettleRequest] = {}
        self.released: list[str] = []
        self.extended: list[billing_pb2.ExtendRequest] = []
        self.concluded = asyncio.Event()
        self.keys: dict[bytes, billing_pb2.ResolveKeyResponse] = {}
        self.subjects: list[billing_pb2.ResolveSubjectRequest] = []
        self.hold_gate: asyncio.Event | None = None
        # Output tokens that there is room for: at the hold, and at each raise after that.
        self.grants = [1 << 31]
        self.token_allowance: billing_pb2.TokenAllowance | None = None
        self.called = {name: asyncio.Event() for name in ("Hold", "Extend")}

    def _note(self, method: str) -> None:
        self.calls.append(method)
        if method in self.called:
            self.called[method].set()
        self.faults.check(method)

    async def Hold(self, request, context):
        self._note("Hold")
        if self.hold_gate:
            await self.hold_gate.wait()
        self.holds[request.turn_id] = request
        granted = min(request.output_token_count_max, self.grants[0])
        return billing_pb2.HoldResponse(
            held_nanousd=1,
            available_nanousd=-1,
            output_token_count=granted,
            bound=BOUND if granted < request.output_token_count_max else None,
            token_allowance=self.token_allowance,
        )

    async def Extend(self, request, context):
        self._note("Extend")
        self.extended.append(request)
        if not request.output_token_count_max:
            return billing_pb2.ExtendResponse()
        if len(self.grants) > 1:
            self.grants.pop(0)
        granted = min(request.output_token_count_max, self.grants[0])
        return billing_pb2.ExtendResponse(
            output_token_count=granted,
            bound=BOUND if granted < request.output_token_count_max else None,
        )

    async def Settle(self, request, context):
        self._note("Settle")
        self.settled[request.turn_id] = request
        self.concluded.set()
        return billing_pb2.SettleResponse()

    async def Release(self, request, context):
        self._note("Release")
        self.released.append(request.turn_id)
        self.concluded.set()
        return billing_pb2.ReleaseResponse()

    async def GetUsage(self, request, context):
        self._note("GetUsage")
        return billing_pb2.GetUsageResponse(
            period=request.period or "2026-11",
            input_token_count=100,
            cached_input_token_count=40,
            output_token_count=25,
            cost_nanousd=1_500_000,
            budget_nanousd=-1,
            turn_count=3,
            models=[billing_pb2.ModelUsage(model=MODEL, input_token_count=100, cost_nanousd=1)],
        )

    async def ResolveKey(self, request, context):
        self._note("ResolveKey")
        if found := self.keys.get(request.key_digest):
            return found
        raise failure(grpc.StatusCode.NOT_FOUND, "KEY_NOT_FOUND")

    async def ResolveSubject(self, request, context):
        self._note("ResolveSubject")
        self.subjects.append(request)
        return billing_pb2.ResolveSubjectResponse(
            account=billing_pb2.Account(id=f"acc_{request.subject}", tier=request.tier)
        )
