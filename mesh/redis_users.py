"""A user in Redis for each service (https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/).

In the embedded Redis the users stand in an ACL file that is written before it is started: whoever
starts it again, after whatever, starts it with the same users. In a Redis of the operator's own
they are made over the wire, where that user may, and again when they are gone.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

import structlog
from redis.exceptions import RedisError

from mesh.chassis.redis_client import connect
from mesh.privileges import RedisAccess

OWNER = "chatmesh_owner"
CALL_TIMEOUT_S = 5.0
CHECK_INTERVAL_S = 5.0
# What a connection needs before it does anything.
_CONNECTION = ("+ping", "+auth", "+hello", "+select", "+client|setname")

log = structlog.get_logger()


class RedisUsersError(Exception):
    """The users cannot be made in this Redis; the text says why."""


@dataclass(frozen=True)
class RedisUser:
    """The user of one service."""

    service: str
    password: str
    access: RedisAccess

    @property
    def name(self) -> str:
        """In Redis."""
        return f"chatmesh_{self.service}"

    def rules(self) -> list[str]:
        """What it may do, as ACL rules; nothing is inherited from what stood there before."""
        return [
            "on",
            "resetkeys",
            "resetchannels",
            "-@all",
            *(f"~{pattern}" for pattern in self.access.keys),
            *(f"&{pattern}" for pattern in self.access.channels),
            *(f"+{command}" for command in self.access.commands),
            "-@dangerous",
            "-@admin",
            *_CONNECTION,  # CLIENT as a whole is dangerous
        ]

    def url(self, base: str) -> str:
        """The URL of a Redis, with this user instead of whom it names."""
        parts = urlsplit(base)
        host = parts.netloc.rpartition("@")[2]
        netloc = f"{self.name}:{quote(self.password, safe='')}@{host}"
        return urlunsplit(parts._replace(netloc=netloc))


def acl_file(owner_password: str, users: Iterable[RedisUser]) -> str:
    """The ACL file of the embedded Redis: the owner, the services, and nobody without a name."""
    lines = [
        "user default off resetpass resetkeys resetchannels -@all",
        f"user {OWNER} on {_hashed(owner_password)} ~* &* +@all",
        *(f"user {user.name} {_hashed(user.password)} {' '.join(user.rules())}" for user in users),
    ]
    return "".join(f"{line}\n" for line in lines)


async def create(url: str, users: Iterable[RedisUser]) -> None:
    """Makes the users in a Redis that is not ours, or gives them their rules anew.

    A password is added to those that the user has: several copies may share a Redis.

    Raises:
        RedisUsersError: the user of `url` may not, Redis has no users (before 6.0), or it does not
            answer.
    """
    try:
        async with connect(url, name="supervisor") as client, asyncio.timeout(CALL_TIMEOUT_S):
            for user in users:
                rules = [_hashed(user.password), *user.rules()]
                await client.execute_command("ACL SETUSER", user.name, *rules)  # type: ignore[no-untyped-call]
    except (RedisError, OSError) as error:
        raise RedisUsersError(f"{type(error).__name__}: {error}") from error


async def keep(url: str, users: Mapping[str, RedisUser]) -> None:
    """Makes the users again when a Redis that is not ours has lost them. Runs for ever."""
    names = {user.name for user in users.values()}
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        try:
            async with connect(url, name="supervisor") as client, asyncio.timeout(CALL_TIMEOUT_S):
                found = await client.acl_users()
            known = {name.decode() if isinstance(name, bytes) else name for name in found}
            if not names <= known:
                await create(url, users.values())
                log.info("redis_users_made_again", missing=sorted(names - known))
        except (RedisError, OSError, RedisUsersError) as error:
            log.warning("redis_users_unchecked", error=type(error).__name__)


def _hashed(password: str) -> str:
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
