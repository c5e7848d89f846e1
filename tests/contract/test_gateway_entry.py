"""Chat requests that the gateway admits itself: by their key, in the call that serves them."""

import asyncio
import contextlib
from hashlib import sha256

import grpc
import pytest
import redis.asyncio
from google.rpc import error_details_pb2
from ulid import ULID

from chatmesh.billing.v1 import billing_pb2
from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from gateway.admission.admit import Admission
from gateway.admission.keys import Keys
from gateway.admission.rate import RateLimiter
from gateway.admission.tokens import Tokens
from gateway.faces.entry import turn_id_of
from gateway.settings import AdmissionSettings, JwtSettings, QueueLimits
from gateway.upstreams.pool import Load
from mesh.chassis.errors import MeshError
from tests.support.fakes import MODEL, Fakes
from tests.support.gateway_turns import failed, running_gateway
from tests.support.loopback import loopback

NOBODY_LISTENS = "redis://127.0.0.1:1/0"
BEGIN_MS = 1_732_290_000_123
ASKED = chat_pb2.ChatRequest(
    model=MODEL,
    messages=[chat_pb2.Message(role=content_pb2.ROLE_USER, content="How are you?")],
)


class Door:
    """A gateway that admits by itself, and its keys."""

    def __init__(self, gateway, fakes) -> None:
        self.gateway, self.fakes = gateway, fakes

    def key(self, account: str = "acc_1", tier: int = 2, scopes=("chat",)) -> str:
        secret = f"cm-{account}{tier}".ljust(46, "k")
        found = billing_pb2.ResolveKeyResponse(
            account=billing_pb2.Account(id=account, tier=tier, jurisdiction="DE"),
            key=billing_pb2.Key(id="key_1", scopes=scopes),
        )
        self.fakes.billing.keys[sha256(secret.encode()).digest()] = found
        return secret


def shown(secret: str, request: str = "", attempt: int = 1) -> tuple[tuple[str, str], ...]:
    """Metadata as the edge makes it."""
    given = (("authorization", f"Bearer {secret}"), ("x-envoy-attempt-count", str(attempt)))
    return (*given, ("x-chatmesh-request", f"{BEGIN_MS}.{request}")) if request else given


@contextlib.asynccontextmanager
async def a_door(redis_url: str = NOBODY_LISTENS, queue: QueueLimits | None = None):
    fakes, settings = Fakes(), AdmissionSettings()
    client = redis.asyncio.Redis.from_url(redis_url)
    async with loopback(fakes.registrations()) as upstream:
        admission = Admission(
            Keys(upstream, settings), Tokens(JwtSettings()), RateLimiter(client, settings)
        )
        async with running_gateway(fakes, admission=admission, queue=queue) as gateway:
            yield Door(gateway, fakes)
    await client.aclose()


async def test_a_key_opens_and_the_turn_is_its_accounts():
    async with a_door() as door:
        answer = await door.gateway.post({}, shown(door.key(), "r1"))
        await door.gateway.background.finish()
    assert answer.status == 200
    turn_id = answer.headers["x-turn-id"]
    assert door.fakes.billing.holds[turn_id].account_id == "acc_1"
    (screened,) = door.fakes.safety.prompts
    assert (screened.subject.tier, screened.subject.jurisdiction) == ("pro", "DE")
    # A ULID of the moment in which the edge got the request.
    assert int(ULID.from_str(turn_id).timestamp * 1000) == BEGIN_MS


async def test_a_request_that_the_edge_repeats_is_the_same_turn():
    async with a_door() as door:
        key = door.key()
        first, second = await asyncio.gather(
            door.gateway.post({}, shown(key, "r1")),
            door.gateway.post({}, shown(key, "r1", attempt=2)),
        )
        other = await door.gateway.post({}, shown(key, "r2"))
        stranger = await door.gateway.post({}, shown(door.key("acc_2"), "r1"))
    ids = [each.headers["x-turn-id"] for each in (first, second, other, stranger)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert set(door.fakes.billing.holds) == set(ids)


@pytest.mark.parametrize("request_key", ["", "x", "12", "12.", ".r", "١٢.r", "-1.r"])
def test_what_is_no_name_of_a_request_names_none(request_key):
    assert turn_id_of("acc_1", request_key) != turn_id_of("acc_1", request_key)


@pytest.mark.parametrize(
    ("authorization", "status", "code"),
    [
        (None, 401, "invalid_api_key"),
        ("Basic eDp5", 401, "invalid_api_key"),
        ("Bearer cm-" + "x" * 43, 401, "invalid_api_key"),
        ("Bearer a.b.c", 401, "invalid_token"),
    ],
)
async def test_without_a_key_that_opens_nothing_happens(authorization, status, code):
    metadata = (("x-chatmesh-request", "1.r"),)
    if authorization:
        metadata += (("authorization", authorization),)
    async with a_door() as door:
        answer = await door.gateway.post({}, metadata)
        error = await failed(door.gateway.chat.Chat(ASKED, metadata=metadata))
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert (error.code(), MeshError.from_rpc(error).reason) == (
        grpc.StatusCode.UNAUTHENTICATED,
        code.upper(),
    )
    assert not door.fakes.safety.prompts
    assert "Hold" not in door.fakes.billing.calls


async def test_a_key_without_the_scope():
    async with a_door() as door:
        answer = await door.gateway.post({}, shown(door.key(scopes=["usage"])))
    assert (answer.status, answer.json["error"]["code"]) == (403, "insufficient_scope")


async def test_the_rate_is_counted_once_a_request_and_told(redis_url):
    async with a_door(redis_url) as door:
        key = door.key(tier=1)
        first = await door.gateway.post({}, shown(key, "r0"))
        again = await door.gateway.post({}, shown(key, "r0", attempt=2))
        refused = await door.gateway.post({"temperature": 9}, shown(key, "r1"))
        call = door.gateway.chat.Chat(ASKED, metadata=shown(key, "r2"))
        typed = dict(await call.initial_metadata())
        assert [event async for event in call][-1].HasField("finished")
        for number in range(3, 10):
            await door.gateway.post({}, shown(key, f"r{number}"))
        over = await door.gateway.post({}, shown(key, "r10"))
        error = await failed(door.gateway.chat.Chat(ASKED, metadata=shown(key, "r11")))
    remaining = "x-ratelimit-remaining-requests"
    assert [each.headers.get(remaining) for each in (first, again, refused)] == ["9", None, "8"]
    assert refused.status == 400
    assert typed[remaining] == "7"
    assert (over.status, over.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert over.headers[remaining] == "0"
    assert over.headers["x-ratelimit-limit-requests"] == "10"
    assert int(over.headers["retry-after"]) >= 1
    assert dict(error.initial_metadata())[remaining] == "0"
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (detail,) = [
        each
        for each in MeshError.from_rpc(error).to_status().details
        if each.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
    ]
    assert detail.value


async def test_what_is_refused_for_want_of_room_counts_against_no_rate(redis_url):
    crowded = QueueLimits(planning_count_max=1, waiting_count_max=0)
    async with a_door(redis_url, crowded) as door:
        key = door.key(tier=1)
        door.fakes.billing.hold_gate = asyncio.Event()
        first = asyncio.ensure_future(door.gateway.post({}, shown(key, "r0")))
        await door.fakes.billing.called["Hold"].wait()
        refused = await door.gateway.post({}, shown(key, "r1"))
        error = await failed(door.gateway.chat.Chat(ASKED, metadata=shown(key, "r2")))
        door.fakes.billing.hold_gate.set()
        assert (await first).headers["x-ratelimit-remaining-requests"] == "9"
        after = await door.gateway.post({}, shown(key, "r3"))
    assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert MeshError.from_rpc(error).retry_after_s == 1.0
    assert after.headers["x-ratelimit-remaining-requests"] == "8"


async def test_turns_for_crowded_nodes_wait_at_the_gateway_until_one_has_room():
    fakes = Fakes()
    async with running_gateway(fakes) as gateway:
        gateway.pool.replace({"inference-1": "a", "inference-2": "b"})
        for name in ("inference-1", "inference-2"):
            gateway.pool.report(name, Load(waiting_count=9, queue_depth_max=16))
        waiting = asyncio.ensure_future(gateway.post({}))
        await asyncio.sleep(0.1)
        assert not fakes.safety.prompts  # nothing was planned: nothing was screened or held
        gateway.pool.report("inference-2", Load(waiting_count=1, queue_depth_max=16))
        assert (await waiting).status == 200
    assert fakes.inference.pins == ["inference-2"]
