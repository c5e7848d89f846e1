"""Admission as Envoy sees it: keys, tokens, scopes, rates, and stores that are away."""

import asyncio
import contextlib
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import grpc
import jwt
import pytest
import redis.asyncio
from envoy.service.auth.v3 import external_auth_pb2 as pb
from envoy.service.auth.v3 import external_auth_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from chatmesh.billing.v1 import billing_pb2
from chatmesh.content.v1 import content_pb2
from gateway.admission.admit import Admission
from gateway.admission.keys import Keys
from gateway.admission.rate import RateLimiter
from gateway.admission.service import Authorization
from gateway.admission.tokens import Tokens
from gateway.settings import AdmissionSettings, JwtSettings
from tests.support.fakes import FakeBilling, Fakes, failure
from tests.support.loopback import loopback

NOBODY_LISTENS = "redis://127.0.0.1:1/0"
CHAT_PATH = "/v1/chat/completions"
GRPC_CHAT_PATH = "/chatmesh.chat.v1.ChatService/Chat"
SECRET = "0123456789abcdef0123456789abcdef"
ISSUER, AUDIENCE = "https://issuer.test", "chatmesh"
NAMES = {1: "free", 2: "pro", 3: "enterprise", 4: "admin"}


@dataclass
class Decision:
    """A CheckResponse in few words."""

    response: pb.CheckResponse

    @property
    def status(self) -> int:
        return self.response.denied_response.status.code or 200

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.response.denied_response.body)["error"]

    @property
    def code(self) -> str:
        return self.body["code"] if self.status != 200 else "admitted"

    @property
    def told(self) -> dict[str, str]:
        """Headers for the gateway's handlers."""
        return {each.header.key: each.header.value for each in self.response.ok_response.headers}

    @property
    def shown(self) -> dict[str, str]:
        """Headers for the client."""
        both = (
            *self.response.ok_response.response_headers_to_add,
            *self.response.denied_response.headers,
        )
        return {each.header.key: each.header.value for each in both}


@dataclass
class Door:
    """Admission on loopback."""

    stub: Any
    billing: FakeBilling
    clock: list[float]

    def add_key(self, secret: str = "", tier: int = 2, scopes=("chat", "conversations", "usage")):
        secret = secret or f"cm-{tier}{'k' * 42}"
        self.billing.keys[sha256(secret.encode()).digest()] = billing_pb2.ResolveKeyResponse(
            account=billing_pb2.Account(id=f"acc_{NAMES[tier]}", tier=tier, jurisdiction="DE"),
            key=billing_pb2.Key(id="key_1", scopes=scopes),
        )
        return secret

    async def check(self, bearer: str = "", path: str = CHAT_PATH, **headers: str) -> Decision:
        request = pb.CheckRequest()
        http = request.attributes.request.http
        http.method, http.path = "POST", path
        http.headers.update(headers)
        if bearer:
            http.headers["authorization"] = f"Bearer {bearer}"
        return Decision(await self.stub.Check(request))


@contextlib.asynccontextmanager
async def a_door(redis_url: str = NOBODY_LISTENS, **jwt_settings: Any) -> AsyncIterator[Door]:
    fakes, clock = Fakes(), [1000.0]
    settings = AdmissionSettings()
    client = redis.asyncio.Redis.from_url(redis_url)
    async with loopback(fakes.registrations()) as upstream:
        admission = Admission(
            Keys(upstream, settings, clock=lambda: clock[0]),
            Tokens(JwtSettings(**jwt_settings)),
            RateLimiter(client, settings),
        )
        add = external_auth_pb2_grpc.add_AuthorizationServicer_to_server
        async with loopback([(add, Authorization(admission))]) as channel:
            yield Door(external_auth_pb2_grpc.AuthorizationStub(channel), fakes.billing, clock)
    await client.aclose()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with a_door() as opened:
        yield opened


async def test_a_key_opens_and_says_who_it_is(door):
    key = door.add_key()
    spoofed = {"x-chatmesh-account": "acc_admin", "x-chatmesh-tier": "admin"}
    decision = await door.check(key, **spoofed)
    told = decision.told
    turn = told.pop("x-chatmesh-turn")
    assert told == {
        "x-chatmesh-account": "acc_pro",
        "x-chatmesh-tier": "pro",
        "x-chatmesh-scopes": "chat,conversations,usage",
        "x-chatmesh-key": "key_1",
        "x-chatmesh-jurisdiction": "DE",
    }
    assert len(turn) == 26
    options = decision.response.ok_response.headers
    assert {each.append_action for each in options} == {options[0].OVERWRITE_IF_EXISTS_OR_ADD}
    assert list(decision.response.ok_response.headers_to_remove) == ["authorization"]
    assert (await door.check(key)).told["x-chatmesh-turn"] != turn
    assert key not in str(decision.response)


@pytest.mark.parametrize(
    "header",
    ["", "Basic eDp5", "Bearer", "Bearer ", "Bearer nonsense", "Bearer cm-short",
     "Bearer cm-" + "x" * 43, "Bearer cm-" + "x" * 5000, "cm-" + "x" * 43],
)  # fmt: skip
async def test_invalid_api_key(door, header):
    decision = await door.check(authorization=header)
    assert (decision.status, decision.code) == (401, "invalid_api_key")
    assert decision.shown["www-authenticate"] == "Bearer"
    assert decision.shown["content-type"] == "application/json"
    assert decision.response.denied_response.body.startswith('{"error": {"message": "')
    assert decision.response.status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]


async def test_a_grpc_client_is_told_the_reason(door):
    grpc_type = {"content-type": "application/grpc+proto"}
    decision = await door.check("cm-bad", GRPC_CHAT_PATH, **grpc_type)
    status = status_pb2.Status.FromString(b64decode(decision.shown["grpc-status-details-bin"]))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("INVALID_API_KEY", "chatmesh")
    assert (status.code, status.message) == (16, decision.body["message"])
    assert "grpc-status-details-bin" not in (await door.check("cm-bad")).shown


@pytest.mark.parametrize("reason", ["KEY_REVOKED", "KEY_EXPIRED", "ACCOUNT_CLOSED"])
async def test_keys_that_ended(door, reason):
    key = door.add_key()
    error = failure(grpc.StatusCode.FAILED_PRECONDITION, reason)
    door.billing.faults.add("ResolveKey", error)
    assert (await door.check(key)).code == "invalid_api_key"


async def test_one_question_a_key_and_a_revocation_within_a_second(door):
    key = door.add_key()
    decisions = await asyncio.gather(*(door.check(key) for _ in range(8)))
    assert {decision.status for decision in decisions} == {200}
    assert door.billing.calls == ["ResolveKey"]
    door.billing.keys.clear()
    door.clock[0] += 0.3
    assert (await door.check(key)).status == 200
    door.clock[0] += 0.69
    assert (await door.check(key)).code == "invalid_api_key"


async def test_a_new_key_works_soon_after_it_was_refused(door):
    assert (await door.check("cm-" + "n" * 43)).status == 401
    key = door.add_key("cm-" + "n" * 43)
    assert (await door.check(key)).status == 401
    assert len(door.billing.calls) == 1
    door.clock[0] += 0.6
    assert (await door.check(key)).status == 200


async def test_billing_away_known_keys_go_on_for_half_a_minute(door):
    key = door.add_key()
    assert (await door.check(key)).status == 200
    away = failure(grpc.StatusCode.UNAVAILABLE)
    door.billing.faults.add("ResolveKey", *[away] * 20)
    door.clock[0] += 20
    assert (await door.check(key)).status == 200
    door.clock[0] += 11
    decision = await door.check(key)
    assert (decision.status, decision.code) == (503, "service_unavailable")
    assert decision.shown["retry-after"] == "1"
    assert decision.response.status.code == grpc.StatusCode.UNAVAILABLE.value[0]


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        (CHAT_PATH, "chat"),
        ("/api/chat/completions?x=1", "chat"),
        (GRPC_CHAT_PATH, "chat"),
        ("/api/conversations", "conversations"),
        ("/api/conversations/thr_1?page_size=5", "conversations"),
        ("/chatmesh.chat.v1.ConversationService/DeleteConversation", "conversations"),
        ("/api/usage", "usage"),
        ("/chatmesh.chat.v1.UsageService/GetUsage", "usage"),
    ],
)
async def test_insufficient_scope(door, path, scope):
    """INSUFFICIENT_SCOPE."""
    others = {"chat", "conversations", "usage"} - {scope}
    key = door.add_key(tier=4, scopes=sorted(others))
    decision = await door.check(key, path)
    assert (decision.status, decision.code) == (403, "insufficient_scope")
    assert decision.body["metadata"] == {"scope": scope}
    door.clock[0] += 1
    door.add_key(tier=4, scopes=[scope])
    assert (await door.check(key, path)).status == 200


async def test_paths_that_are_not_public(door):
    key = door.add_key(tier=4)
    for path in ("/envoy.service.auth.v3.Authorization/Check", "/", "/v1/chat", "/grpc.x/Y"):
        assert (await door.check(key, path)).status == 403
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert (await door.check(key, reflection)).status == 200
    assert (await door.check("", reflection)).status == 401
    for path in ("/v1/models", "/api/models/org%2Fmodel", "/v1/chat%2Fcompletions"):
        assert (await door.check(key, path)).status == 200


@pytest.mark.parametrize(("tier", "limit"), [(1, 10), (2, 60)])
@pytest.mark.parametrize("path", [CHAT_PATH, GRPC_CHAT_PATH])
async def test_rate_limit_exceeded(redis_url, tier, limit, path):
    async with a_door(redis_url) as door:
        key = door.add_key(tier=tier)
        begin, admitted = time.monotonic(), []
        while (decision := await door.check(key, path)).status == 200:
            admitted.append(decision)
        regained = int((time.monotonic() - begin) * limit / 60) + 1
        others = await door.check(key, "/api/usage")
    assert limit <= len(admitted) <= limit + regained
    assert admitted[0].shown == {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(limit - 1),
        "x-ratelimit-reset-requests": f"{60 / limit:g}s",
    }
    assert (decision.status, decision.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(decision.shown["retry-after"]) <= 60 / limit
    assert decision.shown["x-ratelimit-remaining-requests"] == "0"
    refused_code = decision.response.status.code
    assert refused_code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    # Only turns count.
    assert others.status == 200
    assert "x-ratelimit-limit-requests" not in others.shown


async def test_rates_are_each_accounts_own_and_shared_by_gateways(redis_url):
    async with a_door(redis_url) as one, a_door(redis_url) as other:
        keys = [door.add_key(tier=1) for door in (one, other)]
        for _ in range(5):
            await one.check(keys[0])
            await other.check(keys[1])
        assert (await one.check(keys[0])).status == 429
        assert (await one.check(one.add_key(tier=2))).status == 200


async def test_a_burst_is_counted_whole(redis_url):
    """More at once than a client has connections."""
    async with a_door(redis_url) as door:
        key = door.add_key(tier=3)
        decisions = await asyncio.gather(*(door.check(key) for _ in range(400)))
    assert {each.status for each in decisions} == {200}
    left = [int(each.shown["x-ratelimit-remaining-requests"]) for each in decisions]
    assert len(set(left)) > 390  # each took one; a few are regained meanwhile
    assert min(left) <= 210


async def test_admins_have_no_rate(door):
    decision = await door.check(door.add_key(tier=4))
    assert decision.status == 200
    assert "x-ratelimit-limit-requests" not in decision.shown


@pytest.mark.parametrize(("tier", "status"), [(1, 503), (2, 200), (3, 200), (4, 200)])
async def test_redis_away_by_tier(door, tier, status):
    decision = await door.check(door.add_key(tier=tier))
    assert decision.status == status
    if status == 503:
        assert decision.code == "service_unavailable"
        assert decision.shown["retry-after"] == "5"
    elif tier < 4:  # it is counted here
        limit = decision.shown["x-ratelimit-limit-requests"]
        assert decision.shown["x-ratelimit-remaining-requests"] == str(int(limit) - 1)
    # What is not counted goes on.
    assert (await door.check(door.add_key(tier=tier), "/v1/models")).status == 200


def token(**claims: Any) -> str:
    now = int(time.time())
    payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "exp": now + 60} | claims
    return jwt.encode({k: v for k, v in payload.items() if v is not None}, SECRET, "HS256")


async def test_a_token_opens_its_subjects_account():
    async with a_door(issuer=ISSUER, audience=AUDIENCE, secret=SECRET) as door:
        decision = await door.check(token(role="admin"))
        assert decision.told["x-chatmesh-account"] == "acc_u1"
        assert decision.told["x-chatmesh-tier"] == "admin"
        assert decision.told["x-chatmesh-key"] == "jwt"
        assert door.billing.subjects[0].issuer == ISSUER
        assert door.billing.subjects[0].tier == content_pb2.TIER_ADMIN
        narrow = await door.check(token(role="admin", scope="usage other"))
        assert narrow.code == "insufficient_scope"
        expired = await door.check(token(exp=int(time.time()) - 60))
        assert (expired.status, expired.code) == (401, "invalid_token")
        assert "expired" in expired.body["message"]


async def test_tokens_are_refused_where_no_issuer_is_known(door):
    decision = await door.check(token())
    assert (decision.status, decision.code) == (401, "invalid_token")
