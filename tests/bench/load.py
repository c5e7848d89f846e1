"""The load: a client that does next to nothing for each byte, so that it is no bottleneck.

One connection a stream, HTTP/1.1 over plain TCP or TLS. Tokens are counted from the `usage` of
each stream's last event, never from events: one event may carry several tokens.
"""

import asyncio
import itertools
import json
import re
import ssl
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

TIMEOUT_S = 600.0
TAIL_BYTE_COUNT = 2_048
PROMPT = "Tell me a long story about the sea."
_FIRST = re.compile(rb'"content": ?"[^"]')
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        base_url: ends with /v1.
        api_key: sent as bearer token.
        model: model id.
        ca_file: trust anchor for https; "" for plain http.
    """

    base_url: str
    api_key: str
    model: str
    ca_file: str = ""

    def request(self, token_count: int, prompt: str = PROMPT) -> bytes:
        """One streamed chat completion."""
        body = json.dumps(
            {
                "model": self.model,
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": token_count,
                "messages": [{"role": "user", "content": prompt}],
            }
        ).encode()
        url = urlsplit(self.base_url)
        return (
            f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\n"
            f"authorization: Bearer {self.api_key}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body


@dataclass(frozen=True)
class Wave:
    """What a number of parallel streams gave."""

    stream_count: int
    token_count: int
    seconds: float
    first_token_s: list[float]

    @property
    def tokens_per_s(self) -> float:
        """Streamed tokens over all streams."""
        return self.token_count / self.seconds

    @property
    def first_token_p50_ms(self) -> float:
        """Median time from the sent request to the first token."""
        return statistics.median(self.first_token_s) * 1000


class Stream(asyncio.Protocol):
    """One connection; `ask` sends a request and returns its tokens and first-token time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._sent_at = self._first_s = 0.0
        self._done: asyncio.Future[int] | None = None
        self.first = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the request in hand."""
        if self._done and not self._done.done():
            self._done.set_exception(ConnectionError(f"cut: {self._tail[-300:]!r} {exc}"))

    def data_received(self, data: bytes) -> None:
        """Looks for the first token, then only for the end."""
        seen = self._tail + data
        if not self._first_s and _FIRST.search(seen):
            self._first_s = time.perf_counter() - self._sent_at
            self.first.set()
        self._tail = seen[-TAIL_BYTE_COUNT:]
        if seen.endswith(b"\r\n0\r\n\r\n") and self._done and not self._done.done():
            usage = _USAGE.findall(seen)
            if usage and b"[DONE]" in seen:
                self._done.set_result(int(usage[-1]))
            else:
                self._done.set_exception(RuntimeError(f"no answer: {seen[-600:]!r}"))
        elif not self._first_s and b"content-length:" in seen.lower() and len(seen) > 64:
            assert self._done
            if not self._done.done():
                self._done.set_exception(RuntimeError(f"no stream: {seen[:900]!r}"))

    async def ask(self, request: bytes) -> tuple[int, float]:
        """Returns (tokens, seconds to the first one)."""
        assert self._transport
        self._done = asyncio.get_running_loop().create_future()
        self._tail, self._first_s = b"", 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(request)
        tokens = await self._done
        return tokens, self._first_s

    def close(self) -> None:
        """Ends the connection."""
        if self._transport:
            self._transport.abort()


async def connect(target: Target) -> Stream:
    """Opens one connection."""
    url = urlsplit(target.base_url)
    tls = ssl.create_default_context(cafile=target.ca_file) if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(Stream, url.hostname, port, ssl=tls)
    return stream


async def wave(
    target: Target,
    stream_count: int,
    token_count: int,
    seconds_min: float,
    prompts: Iterator[str] | None = None,
) -> Wave:
    """Lets `stream_count` connections stream whole answers, again until `seconds_min` passed.

    `prompts` gives each request its own; without it all ask the same.
    """
    prompts = prompts or itertools.repeat(PROMPT)
    streams = await asyncio.gather(*(connect(target) for _ in range(stream_count)))
    begin = time.perf_counter()

    async def ask_again(stream: Stream) -> list[tuple[int, float]]:
        answers = []
        while not answers or time.perf_counter() - begin < seconds_min:
            try:
                answers.append(await stream.ask(target.request(token_count, next(prompts))))
            except RuntimeError as error:
                if "content_filter" not in str(error):  # a natural prompt in a thousand is refused
                    raise
        return answers

    try:
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*map(ask_again, streams))
        seconds = time.perf_counter() - begin
    finally:
        for stream in streams:
            stream.close()
    flat = [answer for some in answers for answer in some]
    tokens = sum(count for count, _ in flat)
    return Wave(stream_count, tokens, seconds, [first for _, first in flat])
