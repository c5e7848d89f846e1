"""Which tokens are believed."""

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import ValidationError

from gateway.admission.tokens import SCOPES, Tokens
from gateway.settings import JwtSettings
from mesh.chassis.errors import MeshError

ISSUER, AUDIENCE = "https://issuer.test", "chatmesh"
SECRET = "0123456789abcdef0123456789abcdef"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def claims(**changes):
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "exp": now + 60} | changes
    return {key: value for key, value in found.items() if value is not None}


def jwk(key, algorithm, **more):
    return json.loads(algorithm.to_jwk(key.public_key())) | more


@pytest.fixture
def jwks_file(tmp_path):
    path = tmp_path / "jwks.json"
    keys = [
        jwk(RSA_KEY, RSAAlgorithm, kid="rsa", alg="RS256", use="sig"),
        jwk(EC_KEY, ECAlgorithm, kid="ec"),
        {"kty": "unknown"},
    ]
    path.write_text(json.dumps({"keys": keys}))
    return path


@pytest.fixture
def tokens(jwks_file):
    return Tokens(JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=jwks_file))


@pytest.fixture
def shared():
    return Tokens(JwtSettings(issuer=ISSUER, audience=AUDIENCE, secret=SECRET))


def refused(tokens: Tokens, token: str) -> str:
    with pytest.raises(MeshError) as caught:
        tokens.verify(token)
    assert caught.value.reason == "INVALID_TOKEN"
    return caught.value.message


@pytest.mark.parametrize("headers", [{"kid": "rsa"}, {}])
def test_rs256(tokens, headers):
    found = tokens.verify(jwt.encode(claims(), RSA_KEY, "RS256", headers=headers))
    assert (found.subject, found.tier, found.scopes) == ("u1", "free", SCOPES)


def test_es256(tokens):
    assert tokens.verify(jwt.encode(claims(), EC_KEY, "ES256", headers={"kid": "ec"}))


def test_hs256(shared):
    assert shared.verify(jwt.encode(claims(), SECRET, "HS256")).issuer == ISSUER


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"exp": int(time.time()) - 60}, "expired"),
        ({"exp": None}, "exp"),
        ({"iss": "https://foreign.test"}, "foreign"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "aud"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "subject"),
        ({"sub": "x" * 256}, "subject"),
        ({"nbf": int(time.time()) + 86_400}, "not valid yet"),
        ({"iat": int(time.time()) + 86_400}, "not valid yet"),
        ({"scope": {"a": 1}}, "scope"),
    ],
)
def test_wrong_claims(shared, changes, word):
    assert word in refused(shared, jwt.encode(claims(**changes), SECRET, "HS256"))


def test_a_token_without_signature(shared, tokens):
    unsigned = jwt.encode(claims(), None, "none")
    refused(shared, unsigned)
    refused(tokens, unsigned)


def test_the_public_key_is_no_secret(tokens):
    """HS256 signed with the text of the RSA public key: the confusion of CVE-2015-9235."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = RSA_KEY.public_key().public_bytes(encoding, form)

    def part(value) -> bytes:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part({"alg": "HS256", "typ": "JWT", "kid": "rsa"}) + b"." + part(claims())
    forged = signed + b"." + part(hmac.new(public, signed, hashlib.sha256).digest())
    refused(tokens, forged.decode())


def test_another_algorithm_of_the_same_key(tokens):
    refused(tokens, jwt.encode(claims(), RSA_KEY, "RS512", headers={"kid": "rsa"}))
    refused(tokens, jwt.encode(claims(), RSA_KEY, "PS256", headers={"kid": "rsa"}))


def test_a_foreign_key(tokens, shared):
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    refused(tokens, jwt.encode(claims(), other, "RS256", headers={"kid": "rsa"}))
    refused(tokens, jwt.encode(claims(), RSA_KEY, "RS256", headers={"kid": "unknown"}))
    refused(shared, jwt.encode(claims(), "x" * 32, "HS256"))


@pytest.mark.parametrize("token", ["a.b.c", "..", "", "é.é.é", "x" * 10_000])
def test_what_is_no_token(shared, token):
    refused(shared, token)


def test_a_key_that_was_added_is_seen_and_a_broken_file_forgets_none(jwks_file):
    now = [0.0]
    settings = JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=jwks_file)
    tokens = Tokens(settings, clock=lambda: now[0])
    first = jwt.encode(claims(), EC_KEY, "ES256")
    tokens.verify(first)
    added = ec.generate_private_key(ec.SECP256R1())
    second = jwt.encode(claims(), added, "ES256", headers={"kid": "new"})
    document = json.loads(jwks_file.read_text())
    document["keys"].append(jwk(added, ECAlgorithm, kid="new"))
    jwks_file.write_text(json.dumps(document))
    refused(tokens, second)
    now[0] += 1
    tokens.verify(second)
    jwks_file.write_text("{")
    now[0] += 1
    tokens.verify(second)


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_short_keys_are_ignored(tmp_path):
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(weak, RSAAlgorithm)]}))
    tokens = Tokens(JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=path))
    refused(tokens, jwt.encode(claims(), weak, "RS256"))


@pytest.mark.parametrize(
    ("role", "tier"),
    [("pro", "pro"), (["free", "enterprise"], "enterprise"), ("root", "free"), (5, "free"),
     (None, "free"), ("admin", "admin")],
)  # fmt: skip
def test_roles(shared, role, tier):
    assert shared.verify(jwt.encode(claims(role=role), SECRET, "HS256")).tier == tier


@pytest.mark.parametrize(
    "wrong",
    [{"issuer": ISSUER}, {"secret": SECRET}, {"issuer": ISSUER, "audience": "a", "secret": "x"}],
)
def test_settings_that_cannot_be_meant(wrong):
    with pytest.raises(ValidationError):
        JwtSettings(**wrong)
