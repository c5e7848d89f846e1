"""Organisations, their members, and limits: the operator's."""

from typing import Any, TypeAlias

import grpc

from billing_svc import checks
from billing_svc.account_messages import account_message
from billing_svc.account_store import AccountStore
from billing_svc.limit_store import LimitStore, Organisation
from billing_svc.limits import NO_LIMIT, PAYER_WORDS, LimitsChange, payer_of
from billing_svc.service import Clock
from billing_svc.usage_sums import limits_message
from chatmesh.billing.v1 import billing_pb2 as pb
from mesh.chassis import pages
from mesh.chassis.errors import MeshError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 20, 100


class OrganisationAdmin:
    """The methods of AccountAdminService about organisations and limits."""

    def __init__(self, store: AccountStore, limits: LimitStore, clock: Clock) -> None:
        self._store, self._limits, self._clock = store, limits, clock

    async def CreateOrganisation(  # noqa: N802
        self, request: pb.CreateOrganisationRequest, context: Context
    ) -> pb.CreateOrganisationResponse:
        """See the contract."""
        budget = NO_LIMIT
        if request.HasField("monthly_budget_nanousd"):
            budget = checks.limit("monthly_budget_nanousd", request.monthly_budget_nanousd)
        made = await self._limits.create_organisation(
            checks.text("request_id", request.request_id, checks.ID_LENGTH_MAX),
            checks.text("name", request.name, checks.NAME_LENGTH_MAX),
            budget,
            self._clock(),
        )
        return pb.CreateOrganisationResponse(organisation=_organisation(made))

    async def ListOrganisations(  # noqa: N802
        self, request: pb.ListOrganisationsRequest, context: Context
    ) -> pb.ListOrganisationsResponse:
        """See the contract."""
        size = pages.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
        name = ("organisations",)
        (last,) = pages.place_of(name, request.page_token, (str,)) or ("",)
        found = await self._limits.list_organisations(last, size + 1, self._clock())
        page, more = pages.cut(found, size)
        token = pages.page_token(name, (page[-1].organisation_id,)) if more else ""
        return pb.ListOrganisationsResponse(
            organisations=map(_organisation, page), next_page_token=token
        )

    async def SetMember(  # noqa: N802
        self, request: pb.SetMemberRequest, context: Context
    ) -> pb.SetMemberResponse:
        """See the contract."""
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        organisation_id = checks.text(
            "organisation_id", request.organisation_id, checks.ID_LENGTH_MAX
        )
        role = request.role or pb.ROLE_MEMBER
        if role not in pb.Role.values():
            raise checks.bad_request("role", "must be MEMBER or OWNER.")
        outcome = await self._limits.set_member(account_id, organisation_id, role)
        if outcome == "no_organisation":
            raise _not_found(organisation_id, "organisation")
        account = await self._store.account(account_id)
        if account is None:
            raise checks.account_not_found(account_id)
        return pb.SetMemberResponse(account=account_message(account))

    async def SetLimits(  # noqa: N802
        self, request: pb.SetLimitsRequest, context: Context
    ) -> pb.SetLimitsResponse:
        """See the contract."""
        payer_id = checks.text("id", request.id, checks.ID_LENGTH_MAX, required=True)
        if not payer_of(payer_id):
            raise checks.bad_request("id", "must be of a key, an account or an organisation.")
        change = LimitsChange(
            _wanted(request, "monthly_budget_nanousd", checks.INT64_MAX),
            _wanted(request, "tokens_per_minute", checks.INT64_MAX),
            _wanted(request, "parallel_max", checks.INT32_MAX),
        )
        limits = await self._limits.set_limits(payer_id, change, self._clock())
        if limits is None:
            raise _not_found(payer_id, PAYER_WORDS[payer_of(payer_id)])
        return pb.SetLimitsResponse(limits=limits_message(limits))


def _wanted(request: pb.SetLimitsRequest, field: str, maximum: int) -> int | None:
    if not request.HasField(field):  # type: ignore[arg-type]  # one of its optional fields
        return None
    return checks.limit(field, getattr(request, field), maximum)


def _not_found(payer_id: str, what: str) -> MeshError:
    return checks.not_found(f"{what.upper()}_NOT_FOUND", f"No {what} has the id {payer_id!r}.")


def _organisation(found: Organisation) -> pb.Organisation:
    return pb.Organisation(
        id=found.organisation_id,
        name=found.name,
        create_time=checks.stamp(found.create_time),
        limits=limits_message(found.limits),
        members=[
            pb.Member(
                account_id=member.account_id,
                name=member.name,
                role=pb.Role.ValueType(member.role),
            )
            for member in found.members
        ],
    )
