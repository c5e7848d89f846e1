"""One-time join tokens: who holds one becomes the identity that it stands for, once.

Only digests are kept, so that the state folder lets nobody in. Times are Unix seconds and come in
as arguments.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping

LIFETIME_S_DEFAULT = 60
LIFETIME_S_MAX = 3600
# About a day of restarts of a large mesh; expired ones are dropped first.
OUTSTANDING_MAX = 10_000
TOKEN_BYTES = 32
TOKEN_LENGTH_MAX = 256


class TooManyTokensError(RuntimeError):
    """More tokens are outstanding than a healthy mesh ever needs."""


class JoinTokens:
    """Tokens that were given out and not yet used."""

    def __init__(self, outstanding: Mapping[str, tuple[str, float]] | None = None) -> None:
        # Digest to (identity, expiry).
        self._outstanding = dict(outstanding or {})

    @property
    def outstanding(self) -> Mapping[str, tuple[str, float]]:
        """Digests with identity and expiry, to be stored."""
        return self._outstanding

    def create(self, identity: str, lifetime_s: int, now_s: float) -> str:
        """A new token for `identity`.

        Args:
            identity: name of a service or identity of the topology.
            lifetime_s: 1 to 3600; 0: 60.
            now_s: Unix seconds.

        Raises:
            ValueError: lifetime_s is out of its range.
            TooManyTokensError: OUTSTANDING_MAX are unused.
        """
        if not 0 <= lifetime_s <= LIFETIME_S_MAX:
            raise ValueError(f"lifetime_s must be 0 to {LIFETIME_S_MAX}")
        self._outstanding = {
            kept: (owner, expiry)
            for kept, (owner, expiry) in self._outstanding.items()
            if expiry > now_s
        }
        if len(self._outstanding) >= OUTSTANDING_MAX:
            raise TooManyTokensError(f"{OUTSTANDING_MAX} join tokens are unused; let some expire")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._outstanding[digest(token)] = (identity, now_s + (lifetime_s or LIFETIME_S_DEFAULT))
        return token

    def redeem(self, token: str, now_s: float) -> str | None:
        """The identity that a token stands for, which ends the token; None for a bad one."""
        identity, expiry = self._outstanding.pop(digest(token), (None, 0.0))
        return identity if expiry > now_s else None


def digest(token: str) -> str:
    """SHA-256 in hex. The token has 256 random bits: no salt or slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def same(left: str, right: str) -> bool:
    """Compares two digests in constant time."""
    return hmac.compare_digest(left, right)
