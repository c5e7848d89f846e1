"""What a service may do in Redis and see of the environment: least privilege, as checked values.

The topology says both for each service (`redis:`, `environment:`); `mesh.redis_users` turns the
first into ACL users, `mesh.system` uses the second for each process that it starts.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mesh.chassis.checked_yaml import Value, optional

REDIS_KEYS = ("keys", "channels", "commands")
# Categories without a command that reaches beyond its keys: SORT, the one exception (with BY it
# reads any key), is in @dangerous, which every user is refused.
CATEGORIES = frozenset(
    {"string", "hash", "list", "set", "sortedset", "stream", "hyperloglog", "transaction"}
)
# Read others' data, stop the server or change who may do what; no service needs one. Redis refuses
# services its whole category @dangerous besides.
FORBIDDEN_COMMANDS = frozenset(
    {
        "acl",
        "bgrewriteaof",
        "bgsave",
        "client",
        "cluster",
        "config",
        "debug",
        "dump",
        "failover",
        "flushall",
        "flushdb",
        "function",
        "info",
        "keys",
        "latency",
        "lastsave",
        "migrate",
        "module",
        "monitor",
        "move",
        "object",
        "psync",
        "pubsub",
        "randomkey",
        "replicaof",
        "reset",
        "restore",
        "role",
        "save",
        "scan",
        "script",
        "select",
        "shutdown",
        "slaveof",
        "slowlog",
        "sort",
        "swapdb",
        "sync",
    }
)
_COMMAND = re.compile(r"[a-z]+(\|[a-z]+)?|@[a-z]+")
# Its beginning is fixed, so that two services' keys can be told apart: "usage", "cm:rate:*".
_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9:._-]+\*?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
# What `mesh.up` gives a process itself, by its needs.
GIVEN_VARIABLES = ("DATABASE_URL", "REDIS_URL", "GRPC_XDS_BOOTSTRAP_CONFIG", "CHATMESH_JOIN_TOKEN")


@dataclass(frozen=True)
class RedisAccess:
    """What one service may do in Redis.

    Attributes:
        keys: patterns; a `*` stands only at the end.
        channels: patterns of the publish/subscribe channels.
        commands: names such as "get" and "script|load", and categories such as "@stream".
    """

    keys: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of the patterns; a `*` at the end of one stands for anything."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )


def visible(environment: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The variables that a process with these patterns may see."""
    patterns = tuple(patterns)
    return {name: value for name, value in environment.items() if matches(name, patterns)}


def read_redis(value: Value) -> RedisAccess:
    """Checks a `redis:` section; raises YamlError, or notes, what is wrong with its remedy."""
    fields = value.fields(REDIS_KEYS, required=("keys", "commands"))
    return RedisAccess(
        *(
            optional(fields, key, _words(check), tuple[str, ...]())
            for key, check in zip(REDIS_KEYS, (_pattern, _pattern, _command), strict=True)
        )
    )


def read_environment(value: Value) -> tuple[str, ...]:
    """Checks a list of variables; raises YamlError with the remedy."""
    return _words(_variable)(value)


def _words(check: Callable[[Value], str]) -> Callable[[Value], tuple[str, ...]]:
    return lambda value: tuple(check(item) for item in value.sequence())


def _pattern(value: Value) -> str:
    text = value.text()
    if not _PATTERN.fullmatch(text):
        value.fail(f"{text!r} is no pattern; write a fixed beginning, and a * only at the end")
    return text


def _variable(value: Value) -> str:
    text = value.text()
    if not _VARIABLE.fullmatch(text):
        value.fail(f"{text!r} is no variable; write a name, or its beginning with a * at the end")
    given = [name for name in GIVEN_VARIABLES if matches(name, [text])]
    if given:
        value.fail(f"{text!r} shows {given[0]}, which each process gets of its own; leave it out")
    return text


def _command(value: Value) -> str:
    text = value.text()
    if not _COMMAND.fullmatch(text):
        value.fail(f"{text!r} is no command; write get, script|load or @stream, in lower case")
    if text.startswith("@") and text[1:] not in CATEGORIES:
        value.fail(f"{text} is too much; use one of @{', @'.join(sorted(CATEGORIES))}, or commands")
    if text in FORBIDDEN_COMMANDS:
        value.fail(f"{text} reaches beyond a service's own keys; do without it")
    return text
