"""How a chat request comes in: admitted where it is served, refused before it costs anything."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ulid import ULID

from gateway import metrics
from gateway.admission.admit import Admission
from gateway.admission.keys import TOKEN_KEY_ID
from gateway.admission.paths import CHAT
from gateway.faces.identity import ACCOUNT_KEY, caller_of
from gateway.faces.openai.errors import public_error
from gateway.turn.domain import Caller
from gateway.turn.fair_queue import FairQueue
from gateway.turn.plan import Plan

AUTHORIZATION = "authorization"
# What the edge alone sets: milliseconds since the epoch at which it got the request, and the
# request's id ("1732290000123.8f14…"). The same however often it tries.
REQUEST_KEY = "x-chatmesh-request"
# How often the edge tried, from 1.
ATTEMPT_KEY = "x-envoy-attempt-count"
ULID_RANDOM_BYTES = 10
ULID_TIME_BYTES = 6

Metadata = Iterable[tuple[str, str | bytes]]
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ChatAdmission:
    """The way in for requests that begin a turn."""

    admission: Admission | None
    queue: FairQueue

    async def admitted(self, metadata: Metadata) -> tuple[Caller, Headers]:
        """Who is asking, and what the answer tells of what is left of their minute.

        A request that the edge had admitted says so in its metadata, which the edge lets nobody
        else set; any other shows its key here.

        Raises:
            MeshError: what `Admission` refuses; OVERLOADED, which counts against no rate.
        """
        found = {key: str(value) for key, value in metadata}
        if self.admission is None or ACCOUNT_KEY in found:
            return caller_of(metadata), ()
        try:
            who = await self.admission.identify(found.get(AUTHORIZATION, ""), CHAT)
            self.queue.check_room(who.account_id, who.tier)
            is_first = found.get(ATTEMPT_KEY, "1") == "1"
            allowance = await self.admission.count(who, CHAT) if is_first else None
        except Exception as error:
            metrics.ADMISSIONS.labels(public_error(error).reason.lower()).inc()
            raise
        metrics.ADMISSIONS.labels("admitted").inc()
        turn_id = turn_id_of(who.account_id, found.get(REQUEST_KEY, ""))
        headers = tuple(allowance.headers().items()) if allowance else ()
        key_id = "" if who.key_id == TOKEN_KEY_ID else who.key_id
        return Caller(who.account_id, who.tier, turn_id, who.jurisdiction, key_id), headers


def turn_id_of(account_id: str, request: str) -> str:
    """The turn's id, a ULID: of the account's request the same at every try of the edge.

    Args:
        request: value of REQUEST_KEY; another one gives an id that no other request has.
    """
    begin_ms, _, request_id = request.partition(".")
    if not (begin_ms.isascii() and begin_ms.isdigit() and request_id):
        return str(ULID())
    time = int(begin_ms).to_bytes(ULID_TIME_BYTES, "big")
    key = account_id.encode()[:64]
    drawn = blake2b(request_id.encode(), key=key, digest_size=ULID_RANDOM_BYTES).digest()
    return str(ULID.from_bytes(time + drawn))


def token_headers(plan: Plan) -> Headers:
    """What the answer tells of what is left of the minute's tokens."""
    return tuple(plan.tokens.headers().items()) if plan.tokens else ()


class HeadedContext:
    """A call's context whose answer has more headers, whatever the answer becomes."""

    def __init__(self, context: Any, headers: Headers) -> None:
        self._context, self.headers = context, headers
        self.write = context.write

    async def send_initial_metadata(self, headers: Headers) -> None:
        """Sends the headers, and the answer's own."""
        await self._context.send_initial_metadata((*headers, *self.headers))
