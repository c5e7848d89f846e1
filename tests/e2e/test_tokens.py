"""JWTs beside API keys, against a whole running mesh."""

import time

import jwt
import pytest

from tests.support.http import Client
from tests.support.running import JWT_AUDIENCE, JWT_ISSUER, JWT_SECRET

pytestmark = pytest.mark.mesh
CHAT = {"model": "chatmesh-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


def token(secret=JWT_SECRET, **changes):
    now = int(time.time())
    claims = {
        "iss": JWT_ISSUER,
        "aud": JWT_AUDIENCE,
        "sub": "alice",
        "iat": now,
        "exp": now + 600,
        "role": "pro",
        **changes,
    }
    return jwt.encode(claims, secret, algorithm="HS256")


def test_a_good_token_has_an_account_of_its_own(mesh_copy):
    alice = Client(mesh_copy.plain_address, token())
    answer = alice.request("POST", "/v1/chat/completions", {**CHAT, "store": True})
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "60"
    path = f"/api/conversations/{answer.json()['conversation_id']}"
    assert alice.request("GET", path).status == 200
    bob = Client(mesh_copy.plain_address, token(sub="bob"))
    assert bob.request("GET", path).status == 404


@pytest.mark.parametrize(
    "bad",
    [
        {"exp": 1},
        {"iss": "https://elsewhere.example"},
        {"aud": "another service"},
        {"secret": "another secret of at least 32 bytes!"},
    ],
    ids=["expired", "foreign issuer", "foreign audience", "foreign signature"],
)
def test_a_bad_token_is_refused_with_a_reason(mesh_copy, bad):
    answer = Client(mesh_copy.plain_address, token(**bad)).request("GET", "/v1/models")
    assert answer.status == 401
    assert answer.json()["error"]["message"]
