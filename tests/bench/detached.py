"""Memory of detached background turns: `python -m tests.bench.detached [--turns 2000]`.

Begins them all on the simulated engine, whose tokens come seconds apart, waits until all run, and
compares the memory of all processes with what it was before. Then they are stopped. Prints the
growth a turn by service and, as the last line, the same as JSON.
"""

import argparse
import asyncio
import json
import sys

import uvloop

from tests.bench import processes, systems
from tests.bench.prompts import endless

WORK_S = 2.0
PARALLEL = 64


async def post(port: int, key: str, body: bytes, path: str) -> bytes:
    """One request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


async def begin(port: int, key: str, count: int) -> list[str]:
    """Begins background turns; their ids."""
    prompts, limit, ids = endless(0), asyncio.Semaphore(PARALLEL), list[str]()

    async def one(prompt: str) -> None:
        body = {
            "model": "chatmesh-tiny",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 200,
            "background": True,
        }
        async with limit:
            answer = await post(port, key, json.dumps(body).encode(), "/v1/chat/completions")
        if b" 202 " in answer.split(b"\r\n", 1)[0]:
            ids.append(answer.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode())

    await asyncio.gather(*(one(next(prompts)) for _ in range(count)))
    return ids


async def run(arguments: argparse.Namespace) -> None:
    """The whole benchmark."""
    slow = {
        **systems.SIMULATED,
        "INFERENCE_SIMULATED_TOKEN_INTERVAL_MS": str(arguments.interval_ms),
        "INFERENCE_SIMULATED_RUNNING_COUNT_MAX": "4096",
        "INFERENCE_SIMULATED_KV_BLOCK_COUNT": "200000",
    }
    systems.WORK.mkdir(parents=True, exist_ok=True)
    async with systems.chatmesh("detached", slow, accounts_per_tier=1) as copy:
        port = int(copy.target.base_url.rsplit(":", 1)[1].split("/")[0])
        key = copy.target.accounts[-1].key
        warm = await begin(port, key, arguments.warm)
        for turn in warm:
            await post(port, key, b"", f"/api/turns/{turn}/cancel")
        await asyncio.sleep(WORK_S)
        before = processes.memory_kib(copy.root)
        ids = await begin(port, key, arguments.turns)
        await asyncio.sleep(WORK_S)
        after = processes.memory_kib(copy.root)
        grown = {name: round((after[name] - before.get(name, 0)) / len(ids), 2) for name in after}
        for turn in ids:
            await post(port, key, b"", f"/api/turns/{turn}/cancel")
    result = {
        "bench": "detached",
        "turns": len(ids),
        "kib_per_turn": {name: value for name, value in grown.items() if value},
        "kib_per_turn_in_all": round(sum(grown.values()), 2),
    }
    print(json.dumps(result))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=200, help="begun and stopped before")
    parser.add_argument("--interval-ms", type=int, default=2000, help="between two tokens")
    uvloop.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
