"""One request: whose key or token it is, what that may, how often it may.

Chat requests are admitted where they are served, which saves them a call of their own; all others
by Envoy's external authorization (`service.py`). Both ask here.
"""

from dataclasses import dataclass

from gateway import errors
from gateway.admission.keys import Admitted, Keys
from gateway.admission.paths import Rule
from gateway.admission.rate import Allowance, RateLimiter
from gateway.admission.tokens import Tokens
from gateway.errors import public

BEARER = "bearer "
KEY_PREFIX = "cm-"
TOKEN_DOT_COUNT = 2  # a.b.c


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides about requests."""

    keys: Keys
    tokens: Tokens
    limiter: RateLimiter

    async def identify(self, authorization: str, rule: Rule) -> Admitted:
        """Who is asking, and may.

        Args:
            authorization: the header's value; "" without one.
            rule: what the request needs.

        Raises:
            MeshError: INVALID_API_KEY, INVALID_TOKEN, INSUFFICIENT_SCOPE; SERVICE_UNAVAILABLE,
                TIMEOUT while billing is away.
        """
        if not authorization.lower().startswith(BEARER):
            message = "No API key was given; send it as 'Authorization: Bearer cm-…'."
            raise public(errors.INVALID_API_KEY, message)
        secret = authorization[len(BEARER) :].strip()
        if secret.startswith(KEY_PREFIX) or secret.count(".") != TOKEN_DOT_COUNT:
            admitted = await self.keys.of_key(secret)
        else:
            admitted = await self.keys.of_subject(self.tokens.verify(secret))
        if rule.scope and rule.scope not in admitted.scopes:
            message = f"This key lacks the scope {rule.scope!r}; use one that has it."
            raise public(errors.INSUFFICIENT_SCOPE, message, scope=rule.scope)
        return admitted

    async def count(self, admitted: Admitted, rule: Rule) -> Allowance | None:
        """Takes one request of the account's minute; None where no limit applies.

        Raises:
            RateExceededError: none is left.
            MeshError: SERVICE_UNAVAILABLE.
        """
        if not rule.limited:
            return None
        return await self.limiter.take(admitted.account_id, admitted.tier)
