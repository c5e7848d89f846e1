"""Whose key is this? API keys and verified JWT subjects to accounts, through billing."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import grpc

from chatmesh.billing.v1 import billing_pb2 as pb
from chatmesh.billing.v1 import billing_pb2_grpc
from gateway import errors
from gateway.admission.cache import Ages, FreshCache
from gateway.admission.tokens import Claims
from gateway.admission.unknown import UnknownKeys
from gateway.content import TIER_WORDS, TIERS
from gateway.errors import public
from gateway.settings import AdmissionSettings
from gateway.upstreams.failures import translated
from mesh.chassis import key_form
from mesh.chassis.errors import MeshError

# "key" of those who came with a token.
TOKEN_KEY_ID = "jwt"  # noqa: S105  # a mark, no secret


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who is asking."""

    account_id: str
    tier: str
    scopes: frozenset[str]
    key_id: str
    jurisdiction: str = ""


class Keys:
    """Finds accounts; remembers them for less than the second in which a revocation must show."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        settings: AdmissionSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stub = billing_pb2_grpc.KeyServiceStub(channel)
        ages = Ages(
            fresh_s=settings.key_fresh_s,
            refresh_s=settings.key_refresh_s,
            refused_s=settings.key_unknown_s,
            stale_s=settings.key_stale_s,
        )
        size = settings.key_count_max
        # By digest and form: a flood of one form leaves the other alone.
        self._keys = FreshCache(self._resolve_key, _is_refusal, ages, size, clock)
        self._unknown = {form: UnknownKeys(clock) for form in (False, True)}
        self._subjects = FreshCache(self._resolve_subject, _is_refusal, ages, size, clock)

    async def of_key(self, secret: str) -> Admitted:
        """The account of an API key. Neither the key nor its digest is logged.

        Raises:
            MeshError: INVALID_API_KEY; SERVICE_UNAVAILABLE, TIMEOUT while billing is away, or
                while too many unknown keys are tried and this one was not seen lately.
        """
        if not key_form.is_possible(secret):
            raise public(
                errors.INVALID_API_KEY,
                "This is no API key: it must begin with 'cm-'; check that it was copied whole.",
            )
        key = sha256(secret.encode()).digest(), key_form.has_checksum(secret)
        if not self._keys.needs_question(key):
            return await self._keys.get(key)
        async with self._unknown[key[1]].place():
            return await self._keys.get(key)

    async def of_subject(self, claims: Claims) -> Admitted:
        """The account of a verified token's subject; made at the first visit.

        Raises:
            MeshError: as `of_key`.
        """
        found = await self._subjects.get((claims.issuer, claims.subject, claims.tier))
        # The tier is the token's: billing takes it over, perhaps not for this answer yet.
        return replace(found, tier=claims.tier, scopes=claims.scopes)

    async def _resolve_key(self, key: tuple[bytes, bool]) -> Admitted:
        digest, form = key
        try:
            with translated("billing"):
                found = await self._stub.ResolveKey(pb.ResolveKeyRequest(key_digest=digest))
        except MeshError as error:
            if _is_refusal(error):
                self._unknown[form].note_miss()
            raise
        scopes = frozenset(found.key.scopes)
        account = found.account
        return Admitted(account.id, _tier(account), scopes, found.key.id, account.jurisdiction)

    async def _resolve_subject(self, subject: tuple[str, str, str]) -> Admitted:
        issuer, name, tier = subject
        request = pb.ResolveSubjectRequest(issuer=issuer, subject=name, tier=TIERS[tier])
        with translated("billing"):
            account = (await self._stub.ResolveSubject(request)).account
        tier, country = _tier(account), account.jurisdiction
        return Admitted(account.id, tier, frozenset(), TOKEN_KEY_ID, country)


def _tier(account: pb.Account) -> str:
    # A tier that this gateway does not know yet gets the least.
    return TIER_WORDS.get(account.tier, "free")


def _is_refusal(error: MeshError) -> bool:
    return error.reason == errors.INVALID_API_KEY
