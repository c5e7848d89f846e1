"""KeyService and AccountAdminService: the contract over accounts and keys."""

import datetime as dt
from typing import Any, TypeAlias

import grpc

from billing_svc import accounts, checks
from billing_svc.account_messages import account_message, key_message
from billing_svc.account_store import AccountStore, NewKey
from billing_svc.limit_store import LimitStore
from billing_svc.organisation_service import OrganisationAdmin
from billing_svc.service import Clock, utc_now
from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from chatmesh.content.v1.content_pb2 import Tier
from mesh.chassis import pages
from mesh.chassis.enums import words_of
from mesh.chassis.errors import MeshError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 20, 100
DIGEST_BYTE_COUNT = 32
TIERS = words_of(Tier)

_REFUSALS = {
    "KEY_REVOKED": "This API key was revoked: create a new one.",
    "KEY_EXPIRED": "This API key has expired: create a new one.",
    "ACCOUNT_CLOSED": "This account is closed: ask the operator.",
}


class KeyService(billing_pb2_grpc.KeyServiceServicer):
    """Answers admission's question: whose key is this?"""

    def __init__(self, store: AccountStore, clock: Clock = utc_now) -> None:
        self._store, self._clock = store, clock

    async def ResolveKey(  # noqa: N802
        self, request: pb.ResolveKeyRequest, context: Context
    ) -> pb.ResolveKeyResponse:
        """See the contract."""
        found = None
        if len(request.key_digest) == DIGEST_BYTE_COUNT:
            found = await self._store.resolve_key(request.key_digest)
        if found is None:
            raise checks.not_found(
                "KEY_NOT_FOUND", "No such API key: check that it was copied whole."
            )
        account, key = found
        reason = accounts.refusal(key, account, self._clock())
        if reason is not None:
            raise _refused(reason)
        return pb.ResolveKeyResponse(account=account_message(account), key=key_message(key))

    async def ResolveSubject(  # noqa: N802
        self, request: pb.ResolveSubjectRequest, context: Context
    ) -> pb.ResolveSubjectResponse:
        """See the contract."""
        account = await self._store.resolve_subject(
            checks.text("issuer", request.issuer, 500, required=True),
            checks.text("subject", request.subject, 500, required=True),
            _checked_tier(request.tier),
            self._clock(),
        )
        if account.close_time is not None:
            raise _refused("ACCOUNT_CLOSED")
        return pb.ResolveSubjectResponse(account=account_message(account))


class AccountAdminService(OrganisationAdmin, billing_pb2_grpc.AccountAdminServiceServicer):
    """The operator's: accounts, keys, organisations, limits."""

    def __init__(self, store: AccountStore, limits: LimitStore, clock: Clock = utc_now) -> None:
        super().__init__(store, limits, clock)

    async def CreateAccount(  # noqa: N802
        self, request: pb.CreateAccountRequest, context: Context
    ) -> pb.CreateAccountResponse:
        """See the contract."""
        budget = None
        if request.HasField("monthly_budget_nanousd"):
            budget = checks.limit("monthly_budget_nanousd", request.monthly_budget_nanousd)
        account = await self._store.create_account(
            checks.text("request_id", request.request_id, checks.ID_LENGTH_MAX),
            checks.text("name", request.name, checks.NAME_LENGTH_MAX),
            _checked_tier(request.tier),
            budget,
            self._clock(),
            jurisdiction=_checked_jurisdiction(request.jurisdiction),
        )
        return pb.CreateAccountResponse(account=account_message(account))

    async def ListAccounts(  # noqa: N802
        self, request: pb.ListAccountsRequest, context: Context
    ) -> pb.ListAccountsResponse:
        """See the contract."""
        size = pages.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
        (last,) = pages.place_of(("accounts",), request.page_token, (str,)) or ("",)
        page, more = pages.cut(await self._store.list_accounts(last, size + 1), size)
        token = pages.page_token(("accounts",), (page[-1].account_id,)) if more else ""
        return pb.ListAccountsResponse(accounts=map(account_message, page), next_page_token=token)

    async def SetBudget(  # noqa: N802
        self, request: pb.SetBudgetRequest, context: Context
    ) -> pb.SetBudgetResponse:
        """See the contract."""
        budget = checks.limit("monthly_budget_nanousd", request.monthly_budget_nanousd)
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        account = await self._store.set_budget(account_id, budget)
        if account is None:
            raise checks.account_not_found(account_id)
        return pb.SetBudgetResponse(account=account_message(account))

    async def CreateKey(  # noqa: N802
        self, request: pb.CreateKeyRequest, context: Context
    ) -> pb.CreateKeyResponse:
        """See the contract."""
        lifetime: dt.timedelta | None = None
        if request.HasField("lifetime"):
            lifetime = checks.key_lifetime(request.lifetime)
        secret = accounts.mint_secret()
        new = NewKey(
            account_id=checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX),
            digest=accounts.digest_of(secret),
            prefix=secret[: accounts.PREFIX_LENGTH],
            scopes=_checked_scopes(request.scopes),
            name=checks.text("name", request.name, checks.NAME_LENGTH_MAX),
            lifetime=lifetime,
            request_id=checks.text("request_id", request.request_id, checks.ID_LENGTH_MAX),
        )
        made = await self._store.create_key(new, self._clock())
        if made is None:
            raise checks.account_not_found(new.account_id)
        key, is_new = made
        return pb.CreateKeyResponse(key=key_message(key), secret=secret if is_new else "")

    async def ListKeys(  # noqa: N802
        self, request: pb.ListKeysRequest, context: Context
    ) -> pb.ListKeysResponse:
        """See the contract."""
        size = pages.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)
        account_id = checks.text("account_id", request.account_id, checks.ID_LENGTH_MAX)
        name = ("keys", account_id)
        (last,) = pages.place_of(name, request.page_token, (str,)) or ("",)
        page, more = pages.cut(await self._store.list_keys(account_id, last, size + 1), size)
        token = pages.page_token(name, (page[-1].key_id,)) if more else ""
        return pb.ListKeysResponse(keys=map(key_message, page), next_page_token=token)

    async def RevokeKey(  # noqa: N802
        self, request: pb.RevokeKeyRequest, context: Context
    ) -> pb.RevokeKeyResponse:
        """See the contract."""
        key_id = checks.text("key_id", request.key_id, checks.ID_LENGTH_MAX)
        key = await self._store.revoke_key(key_id, self._clock())
        if key is None:
            raise checks.not_found(
                "KEY_NOT_FOUND", f"No key has the id {key_id!r}; ListKeys lists an account's."
            )
        return pb.RevokeKeyResponse(key=key_message(key))


def _refused(reason: str) -> MeshError:
    return MeshError(grpc.StatusCode.FAILED_PRECONDITION, reason, _REFUSALS[reason])


def _checked_tier(tier: int) -> int:
    if tier not in TIERS:
        raise checks.bad_request("tier", f"must be one of {', '.join(TIERS.values())}.")
    return tier


def _checked_jurisdiction(country: str) -> str:
    if country and not (len(country) == 2 and country.isascii() and country.isupper()):  # noqa: PLR2004 - alpha-2
        raise checks.bad_request("jurisdiction", "must be an ISO 3166-1 alpha-2 code such as DE.")
    return country


def _checked_scopes(scopes: "list[str] | Any") -> tuple[str, ...]:
    wanted = set(scopes) or set(accounts.SCOPES)
    unknown = sorted(wanted - set(accounts.SCOPES))
    if unknown:
        known = ", ".join(accounts.SCOPES)
        raise checks.bad_request("scopes", f"must be of {known}; {unknown[0][:50]!r} is not.")
    return tuple(scope for scope in accounts.SCOPES if scope in wanted)
