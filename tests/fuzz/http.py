"""HTTP requests by number, each a valid one with something wrong in it.

The chat body follows OpenAI's own description: that of its Python client, field by field, beside
the fields that this system has of its own.
"""

import gzip
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.fuzz.values import NUMBERS, STRINGS, Pairs, Raw, atom, dump, encoded, mutated, shape

CHAT = ("/v1/chat/completions", "/api/chat/completions")
JSON = {"content-type": "application/json"}
# What only this system has, and what it knows of vLLM's.
OWN_FIELDS: dict[str, Any] = {
    "top_k": {"type": "integer"},
    "min_p": {"type": "number"},
    "repetition_penalty": {"type": "number"},
    "conversation_id": {"type": "string"},
    "background": {"type": "boolean"},
    "guided_json": {"type": "object"},
    "guided_regex": {"type": "string"},
    "guided_choice": {"type": "array", "items": {"type": "string"}},
    "guided_grammar": {"type": "string"},
    "structured_outputs": {
        "type": "object",
        "properties": {
            "json": {"type": "object"},
            "json_object": {"type": "boolean"},
            "regex": {"type": "string"},
            "choice": {"type": "array", "items": {"type": "string"}},
        },
    },
}
# Of these a valid value is one that the system serves, most of the time.
SERVED = {
    "model": "chatmesh-tiny",
    "max_tokens": 3,
    "stream": True,
    "n": 2,
    "store": True,
    "temperature": 0.5,
    "stop": ["zzz"],
    "logit_bias": {"5": -1},
    "logprobs": True,
    "response_format": {"type": "json_object"},
}
DEPTH_MAX = 6
BOMB_BYTES = 64 << 20
# Lists of so many entries are repeated: no more, or a body becomes gigabytes.
REPEATED_COUNT_MAX = 3


@dataclass(frozen=True, slots=True)
class HttpCase:
    """One request."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str | bytes] = field(default_factory=dict)


@cache
def description() -> dict[str, Any]:
    """The JSON schema of a chat body."""
    found = TypeAdapter(CompletionCreateParamsNonStreaming).json_schema()
    found["properties"] |= OWN_FIELDS
    return found


def http_case(rng: random.Random, ids: Sequence[str]) -> HttpCase:
    """A request of any method; `ids` are of turns and conversations that exist."""
    if rng.random() < 0.75:
        return _chat(rng, ids)
    return _other(rng, ids)


def _chat(rng: random.Random, ids: Sequence[str]) -> HttpCase:
    body = _body(rng, ids)
    data = encoded(rng, dump(body))
    headers: dict[str, str | bytes] = dict(JSON)
    chance = rng.random()
    if chance < 0.15:
        data = mutated(rng, data)
    elif chance < 0.2:
        headers |= _strange_headers(rng)
    elif chance < 0.23:
        data, headers["content-encoding"] = _compressed(rng, data)
    return HttpCase("POST", rng.choice(CHAT), data, headers)


def _body(rng: random.Random, ids: Sequence[str]) -> Any:
    body: dict[str, Any] = {
        "model": SERVED["model"],
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": SERVED["max_tokens"],
    }
    schema = description()
    for name in rng.sample(sorted(schema["properties"]), rng.choice((0, 1, 1, 2, 4))):
        served = name in SERVED and rng.random() < 0.5
        body[name] = SERVED[name] if served else _valid(rng, schema["properties"][name])
    if rng.random() < 0.1 and ids:
        body["conversation_id"] = rng.choice(ids)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        _spoil(rng, body)
    if rng.random() < 0.05:
        repeated = rng.choice(sorted(body))
        return Pairs([*body.items(), (repeated, atom(rng))])
    return shape(rng) if rng.random() < 0.01 else body


def _spoil(rng: random.Random, body: dict[str, Any]) -> None:
    """Puts something wrong at a place within the body."""
    place: Any = body
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]
        is_open = isinstance(inner, dict | list) and not isinstance(inner, Pairs)
        if is_open and inner and rng.random() < 0.7:
            place = inner
            continue
        break
    match rng.randrange(8):
        case 0:
            place[key] = shape(rng)
        case 1 if isinstance(place, dict):
            del place[key]
        case 2 if isinstance(place, dict):
            name = rng.choice((*STRINGS, *description()["properties"]))
            place[name] = atom(rng)
        case 3:
            place[key] = rng.choice(NUMBERS)
        case 4:
            place[key] = rng.choice(STRINGS)
        case 5 if isinstance(inner, list) and len(inner) <= REPEATED_COUNT_MAX:
            inner += inner * rng.choice((1, 5, 600))
        case _:
            place[key] = atom(rng)
    if rng.random() < 0.1:
        body["logit_bias"] = {rng.choice(("9" * 5000, "5")): rng.choice(NUMBERS)}


def _valid(rng: random.Random, schema: Any, depth: int = 0) -> Any:  # noqa: PLR0911  # one a kind
    """A value that the description allows."""
    if "$ref" in schema:
        schema = description()["$defs"][schema["$ref"].rpartition("/")[2]]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return _valid(rng, rng.choice(schema[union]), depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return _object(rng, schema, depth)
    if kind == "array":
        items = schema.get("items", {})
        return [_valid(rng, items, depth + 1) for _ in range(rng.choice((0, 1, 2)))]
    if kind == "string":
        return rng.choice(("hello", "user", rng.choice(STRINGS)))
    if kind in ("integer", "number"):
        return rng.choice((0, 1, 2, 0.5 if kind == "number" else 3, rng.choice(NUMBERS)))
    return rng.choice((True, False)) if kind == "boolean" else None


def _object(rng: random.Random, schema: Any, depth: int) -> dict[str, Any]:
    if depth >= DEPTH_MAX:
        return {}
    required = schema.get("required", ())
    result = {
        name: _valid(rng, each, depth + 1)
        for name, each in schema.get("properties", {}).items()
        if name in required or rng.random() < 0.3
    }
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        for _ in range(rng.choice((1, 3))):
            name = rng.choice((str(rng.randrange(600)), rng.choice(STRINGS)))
            result[name] = _valid(rng, values, depth + 1)
    return result


def _compressed(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A body as no endpoint asks for it; at times one that grows a thousandfold."""
    inner = b" " * BOMB_BYTES if rng.random() < 0.3 else data
    kind = rng.choice(("gzip", "deflate", "br", "zstd", "identity, gzip"))
    return (zlib.compress(inner) if kind == "deflate" else gzip.compress(inner)), kind


def _strange_headers(rng: random.Random) -> dict[str, str | bytes]:
    text = rng.choice(STRINGS).encode("utf-8", "surrogatepass")
    text = text.translate(None, b"\r\n\0")[:4000].strip()
    name = rng.choice(
        (
            "content-type",
            "accept",
            "idempotency-key",
            "last-event-id",
            "traceparent",
            "x-request-id",
            "authorization",
            "x-chatmesh-request",
            "x-chatmesh-account",
            "grpc-timeout",
            "grpc-encoding",
            "te",
            "expect",
            "user-agent",
            "origin",
        )
    )
    words = ("application/grpc", "application/grpc-web+proto", "text/plain", "0n", "100-continue")
    return {name: rng.choice((text, rng.choice(words).encode()))}


def _other(rng: random.Random, ids: Sequence[str]) -> HttpCase:
    """A method that begins no turn."""
    name = quote(_text(rng, ids), safe="" if rng.random() < 0.7 else "/?&=")
    size, token = quote(str(_plain(rng.choice(NUMBERS)))[:6000]), quote(_text(rng, ids))
    page = f"?page_size={size}&page_token={token}"
    changes = dump({"title": atom(rng), "background": atom(rng), "extra": atom(rng)})
    method, path, body = rng.choice(
        (
            ("GET", f"/api/turns/{name}", b""),
            ("GET", f"/api/turns/{name}/events?after={token}", b""),
            ("POST", f"/api/turns/{name}/cancel", mutated(rng, b'{"a": 1}')),
            ("GET", f"/v1/models/{name}", b""),
            ("GET", f"/api/conversations{page}", b""),
            ("GET", f"/api/conversations/{name}{page}", b""),
            ("PATCH", f"/api/conversations/{name}", encoded(rng, changes)),
            ("DELETE", f"/api/conversations/{name}", b""),
            ("GET", f"/api/usage?period={token}", b""),
            ("GET", f"/api/usage?{token}={token}&period={size}", b""),
            (rng.choice(("PUT", "HEAD", "TRACE", "OPTIONS")), f"/api/conversations/{name}", b""),
        )
    )
    headers = dict(JSON) | (_strange_headers(rng) if rng.random() < 0.2 else {})
    return HttpCase(method, path, body, headers)


def _text(rng: random.Random, ids: Sequence[str]) -> bytes:
    if ids and rng.random() < 0.4:
        found = rng.choice(ids).encode()
        return mutated(rng, found) if rng.random() < 0.3 else found
    return rng.choice(STRINGS).encode("utf-8", "surrogatepass")[:6000]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Raw) else value
