"""JSON Web Tokens (RFC 7519) of one issuer. The algorithm is fixed by the key, never by the token.

HS256   the configured secret, or an "oct" key of the JWKS
RS256   "RSA" keys of the JWKS (RFC 7517), at least 2,048 bits
ES256   "EC" keys on P-256
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jwt
import structlog

from gateway import errors
from gateway.content import TIERS
from gateway.errors import public
from gateway.settings import JwtSettings
from mesh.chassis.errors import MeshError
from mesh.chassis.followed_file import FollowedFile

SCOPES = frozenset({"chat", "conversations", "usage"})
ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("oct", None): "HS256"}
RSA_BITS_MIN = 2048
HMAC_BYTES_MIN = 32
REREAD_S = 1.0
SUBJECT_LENGTH_MAX = 255
TOKEN_LENGTH_MAX = 8192

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says."""

    issuer: str
    subject: str
    tier: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    algorithm: str
    key: Any


class Tokens:
    """Verifies tokens; follows changes of the JWKS file."""

    def __init__(self, settings: JwtSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._file: FollowedFile[tuple[_Key, ...]] | None = None
        if settings.jwks_file is not None:
            self._file = FollowedFile(settings.jwks_file, parse=_read_jwks, refused=_unreadable)
        self._read_at = float("-inf")
        secret = settings.secret.get_secret_value()
        self._own_keys = (_Key("", "HS256", secret),) if secret else ()

    def verify(self, token: str) -> Claims:
        """Checks signature, issuer, audience and times.

        Raises:
            MeshError: INVALID_TOKEN; the message says what is wrong, never what the token holds.
        """
        if not self._settings.issuer:
            raise _refused("Tokens are not accepted here; use an API key.")
        if len(token) > TOKEN_LENGTH_MAX:
            raise _refused("The token is too long.")
        try:
            header = jwt.get_unverified_header(token)
            fitting = self._fitting(header.get("kid"), header.get("alg"))
            return self._claims(self._decode(token, fitting))
        except jwt.ExpiredSignatureError:
            raise _refused("The token has expired; get a new one.") from None
        except jwt.InvalidIssuerError:
            raise _refused("The token is of a foreign issuer.") from None
        except jwt.InvalidAudienceError:
            raise _refused("The token is for another audience.") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refused(f"The token lacks the claim {error.claim}.") from None
        except jwt.ImmatureSignatureError:
            raise _refused("The token is not valid yet.") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise _refused("The token cannot be verified.") from None

    def _decode(self, token: str, keys: Iterable[_Key]) -> dict[str, Any]:
        failure: Exception = jwt.InvalidSignatureError("no key fits")
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    issuer=self._settings.issuer,
                    audience=self._settings.audience,
                    leeway=self._settings.leeway_s,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
            except jwt.InvalidSignatureError as error:
                failure = error  # another key without an id may fit
        raise failure

    def _fitting(self, key_id: Any, algorithm: Any) -> list[_Key]:
        return [
            key
            for key in (*self._own_keys, *self._published_keys())
            if key.algorithm == algorithm and (key_id is None or key.id in ("", key_id))
        ]

    def _claims(self, payload: dict[str, Any]) -> Claims:
        subject = payload["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH_MAX:
            raise _refused("The token's subject is empty or too long.")
        return Claims(
            issuer=self._settings.issuer,
            subject=subject,
            tier=_tier(payload.get(self._settings.role_claim)),
            scopes=_scopes(payload.get("scope")),
        )

    def _published_keys(self) -> tuple[_Key, ...]:
        if self._file is None:
            return ()
        if self._clock() - self._read_at >= REREAD_S:
            self._read_at = self._clock()
            self._file.refresh()
        return self._file.current or ()


def _unreadable(error: OSError | ValueError) -> None:
    log.error("jwks_unreadable", error=type(error).__name__)


def _read_jwks(text: str) -> tuple[_Key, ...]:
    document = json.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("the file is no JWKS")
    keys = []
    for entry in document["keys"]:
        try:
            keys.append(_key_of(entry))
        except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("jwk_ignored", error=type(error).__name__)
    return tuple(keys)


def _key_of(entry: dict[str, Any]) -> _Key:
    algorithm = ALGORITHMS[(entry["kty"], entry.get("crv"))]
    if entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        raise ValueError("not a key to verify with")
    key = jwt.PyJWK(entry, algorithm).key
    if algorithm == "RS256" and key.key_size < RSA_BITS_MIN:
        raise ValueError("the key is too short")
    if algorithm == "HS256" and len(key) < HMAC_BYTES_MIN:
        raise ValueError("the key is too short")
    return _Key(str(entry.get("kid", "")), algorithm, key)


def _tier(role: Any) -> str:
    """The highest tier among the roles; "free" without any."""
    roles = role if isinstance(role, list) else [role]
    return next((tier for tier in reversed(TIERS) if tier in roles), "free")


def _scopes(scope: Any) -> frozenset[str]:
    """Scopes as OAuth writes them (RFC 8693: one string); all when the token names none."""
    if scope is None:
        return SCOPES
    named = scope.split() if isinstance(scope, str) else scope
    if not isinstance(named, list):
        raise _refused("The token's scope is no text.")
    return SCOPES.intersection(name for name in named if isinstance(name, str))


def _refused(message: str) -> MeshError:
    return public(errors.INVALID_TOKEN, message)
