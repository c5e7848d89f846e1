"""A bare OpenAI-shaped server: the fastest backend that a proxy can stand in front of.

`python tests/bench/mock_openai.py PORT`. Every token is one SSE event, as providers send them;
all events of an answer are ready bytes.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"cache-control: no-cache\r\n\r\n"
)


def framed(body: bytes) -> bytes:
    """One chunk of chunked transfer encoding."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    """One SSE event in a chunk of its own."""
    value = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "bench",
        "choices": choices,
        **({"usage": usage} if usage else {}),
    }
    return framed(b"data: " + json.dumps(value).encode() + b"\n\n")


def delta(content: dict[str, str], finish: str | None = None) -> bytes:
    """One event of the only choice."""
    return event([{"index": 0, "delta": content, "finish_reason": finish}])


# LiteLLM ends an answer that repeats one token, so they differ.
WORDS = ("the", "sea", "was", "calm", "and", "a", "small", "boat", "went", "out", "that", "morning")
TOKENS = [delta({"content": f" {word}"}) for word in WORDS]
ALL = b"".join(TOKENS)
FIRST = delta({"role": "assistant", "content": ""})
STOP = delta({}, "length")
DONE = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"

LISTED = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model"}]}).encode()
MODELS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(LISTED),
    LISTED,
)


async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Streams one answer."""
    count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
    writer.write(HEAD + FIRST + TOKENS[0])
    for sent in range(1, count, len(TOKENS)):
        writer.write(ALL if count - sent >= len(TOKENS) else b"".join(TOKENS[: count - sent]))
        await writer.drain()
        await asyncio.sleep(0)  # other streams get their turn
    usage = {"prompt_tokens": 16, "completion_tokens": count, "total_tokens": 16 + count}
    writer.write(STOP + event([], usage) + DONE)
    await writer.drain()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests one after another."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get "):  # a router asks for health and models
                writer.write(MODELS)
                continue
            if not head.startswith(b"post "):  # it also tries whether this is gRPC
                break
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            await answer(json.loads(await reader.readexactly(length)), writer)
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serves until it is ended."""
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
