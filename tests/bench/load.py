"""The load: a client that does next to nothing for each byte, so that it is no bottleneck.

One connection a stream, HTTP/1.1 over plain TCP or TLS, on raw sockets (`reply.py` reads them).
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast
from urllib.parse import urlsplit

from tests.bench.figures import percentile
from tests.bench.reply import ANSWERED, FAILED, OVERLOAD, Answer, Reply

PATIENCE_S = 60.0  # a turn that takes longer has failed
RETRY_AFTER_S_MAX = 1.0  # how long a refused stream waits before it asks again
RETRY_AFTER_S_DEFAULT = 0.1
CONNECTS_AT_ONCE = 64  # more would meet the listen queue, not the server


@dataclass(frozen=True)
class Account:
    """Who asks: the tier's name and the secret of a key."""

    tier: str
    key: str


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        base_url: ends with /v1.
        accounts: streams are spread over them in turn.
        model: model id.
        ca_file: trust anchor for https; "" for plain http.
        sampling: further members of each request's body.
    """

    base_url: str
    accounts: tuple[Account, ...]
    model: str
    ca_file: str = ""
    sampling: tuple[tuple[str, float], ...] = ()

    def account(self, number: int) -> Account:
        """The account of the stream of that number."""
        return self.accounts[number % len(self.accounts)]

    def request(self, account: Account, token_count: int, prompt: str) -> bytes:
        """One streamed chat completion of at most `token_count` tokens."""
        body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": token_count,
            "messages": [{"role": "user", "content": prompt}],
            **dict(self.sampling),
        }
        return self.message("POST", "chat/completions", account, json.dumps(body).encode())

    def message(self, method: str, path: str, account: Account, body: bytes = b"") -> bytes:
        """An HTTP/1.1 request to a path beside or below the base URL."""
        url = urlsplit(self.base_url)
        full = path if path.startswith("/") else f"{url.path}/{path}"
        return (
            f"{method} {full} HTTP/1.1\r\nhost: {url.netloc}\r\n"
            f"authorization: Bearer {account.key}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream, application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body


@dataclass(frozen=True)
class Wave:
    """What a number of parallel streams gave.

    Attributes:
        seconds: from the first request to the end of the last whole answer.
        answers: every request, refused and failed ones too.
    """

    stream_count: int
    seconds: float
    answers: list[Answer] = field(repr=False)

    @cached_property
    def whole(self) -> list[Answer]:
        """The turns that count."""
        return [answer for answer in self.answers if answer.kind == ANSWERED]

    @property
    def turns_per_s(self) -> float:
        """Whole answers a second."""
        return len(self.whole) / self.seconds

    @property
    def token_count(self) -> int:
        """Tokens of whole answers."""
        return sum(answer.token_count for answer in self.whole)

    def first_token_ms(self, share: float) -> float:
        """A percentile of the time from the sent request to the first content."""
        return percentile((answer.first_s * 1000 for answer in self.whole), share)

    def gap_ms(self, share: float) -> float:
        """A percentile of each turn's longest pause between two arrivals."""
        return percentile((answer.gap_s * 1000 for answer in self.whole), share)

    def others(self) -> dict[str, int]:
        """Requests that were not answered, by kind and detail."""
        return dict(Counter(f"{a.kind}: {a.detail}" for a in self.answers if a.kind != ANSWERED))


class Stream(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[Answer] | None = None
        self.first = asyncio.Event()

    @property
    def usable(self) -> bool:
        """Whether the connection is open and no answer is under way."""
        return self._transport is not None and self._done is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the request in hand."""
        self._transport = None
        if self._reply and self._done:
            self._finish(self._reply.failure("connection cut", time.perf_counter()))

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        if self._reply is None:
            return  # an answer that nobody waits for any more
        now_s = time.perf_counter()
        complete = self._reply.feed(data, now_s)
        if self._reply.begun and not self.first.is_set():
            self.first.set()
        if complete:
            self._finish(self._reply.answer(now_s))

    def _finish(self, answer: Answer) -> None:
        if self._done and not self._done.done():
            self._done.set_result(answer)
        self._reply = None

    async def ask(self, request: bytes, token_count: int | None, patience_s: float) -> Answer:
        """Sends a request and waits for its end, at most `patience_s`; then the connection goes."""
        assert self._transport
        self._done = asyncio.get_running_loop().create_future()
        reply = self._reply = Reply(time.perf_counter(), token_count)
        self.first.clear()
        self._transport.write(request)
        try:
            async with asyncio.timeout(patience_s):
                answer = await self._done
        except TimeoutError:
            self.close()
            answer = reply.failure(f"no end after {patience_s:.0f} s", time.perf_counter())
        self._reply = self._done = None
        return answer

    async def fetch(self, request: bytes) -> bytes:
        """The body of a short answer that is no stream.

        Raises:
            RuntimeError: it did not come, or is a refusal.
        """
        answer = await self.ask(request, None, PATIENCE_S)
        if not answer.body:
            raise RuntimeError(answer.detail)
        return answer.body

    def close(self) -> None:
        """Ends the connection."""
        if self._transport:
            self._transport.abort()
            self._transport = None


@lru_cache
def _tls(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


async def connect(target: Target, source: str | None = None) -> Stream:
    """Opens one connection, from the address `source` if one is given."""
    url = urlsplit(target.base_url)
    tls = _tls(target.ca_file) if url.scheme == "https" else None
    _, stream = await asyncio.get_running_loop().create_connection(
        Stream,
        url.hostname,
        url.port or (443 if tls else 80),
        ssl=tls,
        local_addr=(source, 0) if source else None,
    )
    return stream


class Connections:
    """Connections to a target, opened when needed and used again."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[Stream] = []
        self._connecting = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def open(self, count: int) -> None:
        """Opens connections beforehand."""
        self._idle += await asyncio.gather(*(self._connect() for _ in range(count)))

    async def _connect(self) -> Stream:
        async with self._connecting:
            return await connect(self.target)

    async def ask(
        self, request: bytes, token_count: int | None, patience_s: float = PATIENCE_S
    ) -> Answer:
        """One request on a connection of its own for that time."""
        while self._idle and not self._idle[-1].usable:
            self._idle.pop()  # the server closed it
        try:
            stream = self._idle.pop() if self._idle else await self._connect()
        except OSError as error:
            return Answer(FAILED, f"no connection: {type(error).__name__}")
        try:
            answer = await stream.ask(request, token_count, patience_s)
        except asyncio.CancelledError:
            stream.close()
            raise
        if stream.usable:
            self._idle.append(stream)
        return answer

    def close(self) -> None:
        """Closes what waits."""
        while self._idle:
            self._idle.pop().close()


@contextlib.asynccontextmanager
async def connections(target: Target) -> AsyncIterator[Connections]:
    """Connections that are closed at the end of the block."""
    kept = Connections(target)
    try:
        yield kept
    finally:
        kept.close()


async def wave(
    target: Target,
    stream_count: int,
    token_count: int,
    seconds_min: float,
    prompts: Iterator[str],
    *,
    exact: bool = True,
) -> Wave:
    """Lets `stream_count` streams ask for whole answers, again until `seconds_min` passed.

    `exact`: an answer is whole only with all of `token_count` tokens. A stream that is refused for
    overload waits as long as Retry-After says, at most a second, and asks again.
    """
    async with connections(target) as pool:
        await pool.open(stream_count)
        begin, ended = time.perf_counter(), [0.0]

        async def ask_again(number: int) -> list[Answer]:
            account, answers = target.account(number), list[Answer]()
            while not answers or time.perf_counter() - begin < seconds_min:
                request = target.request(account, token_count, next(prompts))
                answer = await pool.ask(request, token_count if exact else None)
                answers.append(answer)
                if answer.kind == ANSWERED:
                    ended.append(time.perf_counter())
                elif answer.kind == OVERLOAD:
                    wait = answer.retry_after_s
                    wait = RETRY_AFTER_S_DEFAULT if wait is None else wait
                    await asyncio.sleep(min(wait, RETRY_AFTER_S_MAX))
            return answers

        found = await asyncio.gather(*map(ask_again, range(stream_count)))
    seconds = max(ended) - begin if len(ended) > 1 else time.perf_counter() - begin
    return Wave(stream_count, seconds, [answer for some in found for answer in some])
