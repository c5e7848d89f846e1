"""Sends cases and judges the answers: what a client may be told is that it erred, nothing else."""

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import httpx

from tests.fuzz.http import HttpCase, http_case
from tests.fuzz.typed import TypedCase, typed_case
from tests.support.running import RunningMesh
from tests.support.waiting import eventually

TYPED_SHARE = 0.35
ANSWER_TIMEOUT_S = 30.0
LEDGER_TIMEOUT_S = 60.0
# Codes that say what the client may mend; not CANCELLED, for nobody left.
CLIENT_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}
# In a stream that had begun: as a 500 would be before it.
FAULTS = {"internal_error", "service_unavailable", "timeout", "overloaded"}
CLIENT_CLOSED_REQUEST = 499
BODY_BYTES_MAX = 4 << 20
# Methods whose answers have a body in no case, or one that is not ours.
BODILESS = {"HEAD", "TRACE", "OPTIONS"}

Case = HttpCase | TypedCase


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that was answered as none may be."""

    number: int
    what: str
    case: Case

    def __str__(self) -> str:
        data = self.case.body if isinstance(self.case, HttpCase) else self.case.data
        shown = data if len(data) <= 600 else data[:400] + b" ... " + data[-200:]
        head = f"{self.case.method} " if isinstance(self.case, HttpCase) else ""
        headers = self.case.headers if isinstance(self.case, HttpCase) else ""
        return f"#{self.number} {self.what}\n  {head}{self.case.path} {headers}\n  {shown!r}"


@dataclass
class Outcome:
    """What came of a run."""

    answered: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    # Turns and conversations that were made, for later cases to name.
    ids: list[str] = field(default_factory=list)


def case_of(seed: int, number: int, ids: Sequence[str] = ()) -> Case:
    """A case; with the same ids the same."""
    rng = random.Random(f"{seed}:{number}")
    return typed_case(rng, ids) if rng.random() < TYPED_SHARE else http_case(rng, ids)


class Fuzzer:
    """Cases against one running copy."""

    def __init__(self, http: httpx.AsyncClient, channel: grpc.aio.Channel, key: str) -> None:
        self._http, self._channel, self._key = http, channel, key
        self.outcome = Outcome()

    async def run(self, seed: int, numbers: Sequence[int], deadline_s: float, workers: int) -> None:
        """Sends the cases of these numbers, or those for which there is time."""
        todo, loop = iter(numbers), asyncio.get_running_loop()
        end = loop.time() + deadline_s

        async def work() -> None:
            for number in todo:
                if loop.time() >= end:
                    return
                case = case_of(seed, number, self.outcome.ids[-40:])
                if what := await self.tried(case):
                    self.outcome.findings.append(Finding(number, what, case))

        await asyncio.gather(*(work() for _ in range(workers)))

    async def tried(self, case: Case) -> str:
        """What is wrong with the answer; empty: nothing."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await (
                    self._http_case(case) if isinstance(case, HttpCase) else self._typed(case)
                )
        except TimeoutError:
            return "no answer"

    async def _http_case(self, case: HttpCase) -> str:
        headers = {"authorization": f"Bearer {self._key}", **case.headers}
        request = self._http.build_request(
            case.method, case.path, content=case.body, headers=list(headers.items())
        )
        try:
            answer = await self._http.send(request)
        except httpx.HTTPError as error:
            self.outcome.answered[type(error).__name__] += 1
            # The edge answers 413 and closes while the rest is still being sent.
            return "" if len(case.body) > BODY_BYTES_MAX else f"no answer: {error!r}"
        self.outcome.answered[str(answer.status_code)] += 1
        self._remember(answer)
        if answer.status_code == CLIENT_CLOSED_REQUEST or not 200 <= answer.status_code < 500:
            return f"{answer.status_code} {answer.text[:300]}"
        if answer.status_code >= 400 and case.method not in BODILESS:
            return _unlike_openai(answer)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return _fault_in_stream(answer.text)
        return ""

    def _remember(self, answer: httpx.Response) -> None:
        for name in ("x-turn-id", "x-conversation-id"):
            if found := answer.headers.get(name):
                self.outcome.ids.append(found)

    async def _typed(self, case: TypedCase) -> str:
        metadata = (("authorization", f"Bearer {self._key}"),)
        call = self._channel.unary_stream(case.path)(case.data, metadata=metadata)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError:
            pass
        code = await call.code()
        self.outcome.answered[code.name] += 1
        return "" if code in CLIENT_CODES else f"{code.name} {await call.details()}"


def _unlike_openai(answer: httpx.Response) -> str:
    """What an error's body lacks of OpenAI's shape."""
    if answer.headers.get("content-type", "").startswith("application/grpc"):
        return ""
    try:
        error = answer.json()["error"]
        if error["message"] and error["type"] and error["code"] and "param" in error:
            return ""
    except (ValueError, KeyError, TypeError):
        pass
    return f"{answer.status_code} without a reason: {answer.text[:300]}"


def _fault_in_stream(text: str) -> str:
    for line in text.splitlines():
        if line.startswith('data: {"error"'):
            error = json.loads(line.removeprefix("data: "))["error"]
            if error["code"] in FAULTS:
                return f"in the stream: {error}"
    return "" if text.rstrip().endswith("[DONE]") else "a stream without an end"


@asynccontextmanager
async def fuzzer(base_url: str, key: str) -> AsyncIterator[Fuzzer]:
    """A fuzzer of the copy at `base_url` (scheme, host and port)."""
    context = ssl.create_default_context()
    limits = httpx.Limits(max_connections=64)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    address = base_url.removeprefix("http://")
    async with (
        httpx.AsyncClient(base_url=base_url, limits=limits, timeout=60, verify=context) as http,
        grpc.aio.insecure_channel(address, options=options) as channel,
    ):
        yield Fuzzer(http, channel, key)


def audited(mesh: RunningMesh, account: str) -> dict[str, int]:
    """What the audit says of an account, once its turns have ended and the ledger has them."""

    def settled() -> dict[str, int] | None:
        summary = mesh.audit(account)["summary"]
        done = not summary["running_turns"] and not summary["differing_turns"]
        return summary if done else None

    return eventually(settled, LEDGER_TIMEOUT_S) or mesh.audit(account)["summary"]
