"""The journal of turns in Redis: scripts that check owner and epoch, and news by channels.

    cm:turn:{T}            hash   head: owner, epoch, number, state, plan, …
    cm:turn:{T}:log        list   batches
    cm:turn:{T}:read       string somebody reads it at another gateway; expires
    cm:owner:{O}           string an owner is alive; expires
    cm:owner:{O}:turns     set    what it owns
    cm:owners              set    who ever owned
    cm:idem:{digest}       string what turn an account's idempotency key names
    cm:kept{…}, …:bytes    zset   ended turns by the time of their end, with their size; its sum

A script touches one turn only, so that turns may lie on different nodes of a cluster.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from hashlib import sha256
from typing import Any

import redis.asyncio
import redis.exceptions

from gateway.settings import TurnLimits
from gateway.turn.journal import (
    RUNNING,
    Claim,
    Head,
    JournalAway,
    Outcome,
    Write,
    Written,
)
from gateway.upstreams.channels import Channels

OWNERS = "cm:owners"
# A turn that nobody ends any more (no gateway came back) is kept for so long after its time.
RUNNING_MARGIN_S = 3_600
MS = 1000

# KEYS head, log. ARGV owner, epoch, serial, number, batch, state, time to live (s), [plan, account,
# epochs]. Answer: outcome (0 fenced, 1 written, 2 lost), listeners, whether it is to be stopped,
# bytes. A write that is late, for a later one of its owner was here, is taken for written: what it
# brought is there, and nobody waits for its answer any more. A head of an earlier epoch than that
# of the write is one that lost an adoption: the later owner writes the whole.
PUT = """
local head = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state', 'stopped', 'serial', 'number')
local age = head[1] and tonumber(ARGV[2]) - tonumber(head[2])
if head[1] and (age < 0 or (age == 0 and head[1] ~= ARGV[1])) then return {0, 0, 0, 0} end
local again = head[3] ~= 'running' and head[3] == ARGV[6] and head[6] == ARGV[4]
if age == 0 and (again or tonumber(head[5]) >= tonumber(ARGV[3])) then
  return {1, 0, head[4] and 1 or 0, tonumber(redis.call('HGET', KEYS[1], 'bytes'))}
end
if head[1] and head[3] ~= 'running' then return {0, 0, 0, 0} end
local bytes = #ARGV[5] + #ARGV[8]
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', ARGV[2], 'serial', ARGV[3],
           'number', ARGV[4], 'state', ARGV[6], 'plan', ARGV[8], 'account', ARGV[9],
           'epochs', ARGV[10], 'bytes', bytes)
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[7])
redis.call('EXPIRE', KEYS[2], ARGV[7])
return {1, redis.call('PUBLISH', KEYS[1], ARGV[4]), head[4] and 1 or 0, bytes}
"""

# As PUT, without what stands in brackets.
APPEND = """
local head = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state', 'stopped', 'serial')
if not head[1] then return {2, 0, 0, 0} end
local age = tonumber(ARGV[2]) - tonumber(head[2])
if age > 0 then return {2, 0, 0, 0} end
if age < 0 or head[1] ~= ARGV[1] then return {0, 0, 0, 0} end
local listeners = 0
if tonumber(head[5]) < tonumber(ARGV[3]) then
  if tonumber(head[5]) + 1 ~= tonumber(ARGV[3]) or head[3] ~= 'running' then
    return {2, 0, 0, 0}
  end
  redis.call('HSET', KEYS[1], 'serial', ARGV[3], 'number', ARGV[4], 'state', ARGV[6])
  redis.call('HINCRBY', KEYS[1], 'bytes', #ARGV[5])
  redis.call('RPUSH', KEYS[2], ARGV[5])
  if ARGV[6] ~= 'running' then  -- until then what PUT said holds
    redis.call('EXPIRE', KEYS[1], ARGV[7])
    redis.call('EXPIRE', KEYS[2], ARGV[7])
  end
  listeners = redis.call('PUBLISH', KEYS[1], ARGV[4])
end
return {1, listeners, head[4] and 1 or 0, tonumber(redis.call('HGET', KEYS[1], 'bytes'))}
"""

# KEYS head. ARGV owner and epoch as they were seen, new owner, serial as it was seen. Repeatable.
ADOPT = """
local head = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'state', 'number', 'epochs', 'serial')
if head[3] ~= 'running' then return 0 end
if head[1] == ARGV[3] and tonumber(head[2]) == ARGV[2] + 1 then return 1 end
if head[1] ~= ARGV[1] or head[2] ~= ARGV[2] or head[6] ~= ARGV[4] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'epoch', head[2] + 1, 'serial', 0,
           'epochs', head[5] .. head[4] .. ' ')
redis.call('PUBLISH', KEYS[1], head[4])
return 1
"""

# KEYS head. ARGV the turn.
STOP = """
local head = redis.call('HMGET', KEYS[1], 'owner', 'state')
if head[2] ~= 'running' then return 0 end
redis.call('HSET', KEYS[1], 'stopped', 1)
redis.call('PUBLISH', 'cm:owner:' .. head[1], ARGV[1])
return 1
"""

# KEYS head, log. ARGV owner.
FORGET = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
"""

# KEYS claim. ARGV claim, [what stands there instead, time to live (s)].
DISCLAIM = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""
RECLAIM = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""

# KEYS ended turns, the sum of their bytes. ARGV now (ms), the oldest to keep (ms), turn, bytes,
# bytes at most, time to live (s). Answer: the turns that had to go, the oldest first.
KEEP = """
local function size(member) return tonumber(string.match(member, ' (%d+)$')) end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[3] .. ' ' .. ARGV[4])
redis.call('INCRBY', KEYS[2], ARGV[4])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2], 'LIMIT', 0, 100)) do
  redis.call('ZREM', KEYS[1], member)
  redis.call('DECRBY', KEYS[2], size(member))
end
local gone = {}
while tonumber(redis.call('GET', KEYS[2])) > tonumber(ARGV[5]) do
  local member = redis.call('ZPOPMIN', KEYS[1])[1]
  if not member then redis.call('SET', KEYS[2], 0) break end
  redis.call('DECRBY', KEYS[2], size(member))
  gone[#gone + 1] = string.match(member, '^%S+')
end
redis.call('EXPIRE', KEYS[1], ARGV[6])
redis.call('EXPIRE', KEYS[2], ARGV[6])
return gone
"""

OUTCOMES = {0: Outcome.FENCED, 1: Outcome.WRITTEN, 2: Outcome.LOST}
HEAD_FIELDS = ("account", "owner", "epoch", "number", "state", "epochs", "stopped", "serial")


def head_key(turn_id: str) -> str:
    """Where a turn's head is; also its channel."""
    return f"cm:turn:{{{turn_id}}}"


def owner_key(owner: str) -> str:
    """Where an owner says that it lives; also its channel."""
    return f"cm:owner:{owner}"


def claim_key(account_id: str, key: str) -> str:
    """Where an idempotency key is; it is the account's own, and may hold anything."""
    return "cm:idem:" + sha256(f"{account_id}\0{key}".encode()).hexdigest()


def claim_text(claim: Claim) -> str:
    """A claim as it stands under its key."""
    return json.dumps([claim.turn_id, claim.digest, claim.owner, claim.holder, claim.epoch])


class RedisJournal:
    """A `JournalStore`; values are bytes, so the client must not decode."""

    def __init__(self, client: "redis.asyncio.Redis", limits: TurnLimits) -> None:
        self._client, self._limits = client, limits
        self._channels = Channels(client)
        self._running_s = int(limits.turn_duration_s_max) + RUNNING_MARGIN_S
        names = {"put": PUT, "append": APPEND, "adopt": ADOPT, "stop": STOP}
        names |= {"forget": FORGET, "disclaim": DISCLAIM, "reclaim": RECLAIM, "keep": KEEP}
        self._ended: list[tuple[Write, int]] = []
        self._scripts = {name: client.register_script(text) for name, text in names.items()}

    async def write(self, writes: Sequence[Write]) -> list[Written]:
        """One round trip for all turns, with the lists they stand in."""
        calls = [self._write(each) for each in writes]
        answers = await self._run_all(calls, [self._listing(each) for each in writes])
        for write, answer in zip(writes, answers, strict=True):
            if write.state != RUNNING and answer[0] == 1:
                self._ended.append((write, answer[3]))
        return [Written(OUTCOMES[each[0]], bool(each[1]), bool(each[2])) for each in answers]

    def _write(self, write: Write) -> tuple[str, list[str], list[Any]]:
        keys = [head_key(write.turn_id), head_key(write.turn_id) + ":log"]
        ttl_s = self._running_s if write.state == RUNNING else self._limits.turn_retention_s
        values: list[Any] = [write.owner, write.epoch, write.serial, write.number]
        values += [write.batch, write.state, ttl_s]
        if not write.is_whole:
            return "append", keys, values
        epochs = "".join(f"{number} " for number in write.epoch_numbers)
        return "put", keys, [*values, write.plan, write.account_id, epochs]

    @staticmethod
    def _listing(write: Write) -> tuple[str, str, str] | None:
        """How a write changes the list of what its owner has."""
        key = owner_key(write.owner) + ":turns"
        if write.state != RUNNING:
            return ("SREM", key, write.turn_id)
        return ("SADD", key, write.turn_id) if write.is_whole else None

    async def tidy(self) -> None:
        """Files what ended since the last time; where it is too much, the oldest goes."""
        ended, self._ended = self._ended, []
        calls = [call for write, size in ended for call in self._keep(write, size)]
        if not calls:
            return
        gone = {turn.decode() for answer in await self._run_all(calls) for turn in answer}
        for turn_id in gone:
            keys = (head_key(turn_id), head_key(turn_id) + ":log")
            await self._timed(self._client.unlink(*keys))

    def _keep(self, write: Write, size: int) -> list[tuple[str, list[str], list[Any]]]:
        limits, now_ms = self._limits, time.time_ns() // 1_000_000
        retention_s = limits.turn_retention_s
        bounds = (
            ("cm:kept{all}", limits.turn_retention_bytes_max),
            (f"cm:kept{{{write.account_id}}}", limits.account_retention_bytes_max),
        )
        calls: list[tuple[str, list[str], list[Any]]] = []
        for key, bytes_max in bounds:
            oldest_ms = now_ms - retention_s * MS
            values = [now_ms, oldest_ms, write.turn_id, size, bytes_max, retention_s]
            calls.append(("keep", [key, key + ":bytes"], values))
        return calls

    async def head(self, turn_id: str) -> Head | None:
        """One round trip."""
        found = await self._timed(self._client.hmget(head_key(turn_id), HEAD_FIELDS))
        account, owner, epoch, number, state, epochs, stopped, serial = found
        if owner is None:
            return None
        return Head(
            turn_id=turn_id,
            account_id=account.decode(),
            owner=owner.decode(),
            epoch=int(epoch),
            number=int(number),
            state=state.decode(),
            epoch_numbers=tuple(int(each) for each in epochs.split()),
            is_stopped=stopped is not None,
            serial=int(serial),
        )

    async def plan(self, turn_id: str) -> bytes:
        """One round trip."""
        return await self._timed(self._client.hget(head_key(turn_id), "plan")) or b""

    async def batches(self, turn_id: str, index: int = 0) -> list[bytes]:
        """One round trip."""
        key = head_key(turn_id) + ":log"
        found: list[bytes] = await self._timed(self._client.lrange(key, index, -1))
        return found

    async def adopt(self, head: Head, owner: str) -> bool:
        """Compares and sets owner and epoch."""
        # Listed first: a turn that is listed twice is looked at once too often, and no more.
        turn = head.turn_id
        await self._timed(self._client.sadd(owner_key(owner) + ":turns", turn))
        values = [head.owner, head.epoch, owner, head.serial]
        adopted = bool(await self._run("adopt", [head_key(turn)], values))
        now = None if adopted else await self.head(turn)
        loser = head.owner if adopted else owner
        # One that adopts what was its own, or was adopted by it before, goes on to be listed.
        is_kept = loser == owner if adopted else now is not None and now.owner == owner
        if not is_kept:
            await self._timed(self._client.srem(owner_key(loser) + ":turns", turn))
        return adopted

    async def stop(self, turn_id: str) -> None:
        """Remembered in the head, and published."""
        await self._run("stop", [head_key(turn_id)], [turn_id])

    async def forget(self, turn_id: str, owner: str) -> None:
        """Deletes head and batches."""
        keys = [head_key(turn_id), head_key(turn_id) + ":log"]
        await self._run("forget", keys, [owner])
        await self._timed(self._client.srem(owner_key(owner) + ":turns", turn_id))

    async def keep_alive(self, owner: str, lease_ms: int) -> None:
        """One round trip."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(owner_key(owner), 1, px=lease_ms)
        pipeline.sadd(OWNERS, owner)
        await self._timed(pipeline.execute())

    async def leave(self, owner: str) -> None:
        """Ends the lease."""
        await self._timed(self._client.delete(owner_key(owner)))

    async def alive_s(self, owner: str) -> float:
        """What is left of the lease."""
        left_ms: int = await self._timed(self._client.pttl(owner_key(owner)))
        return max(0, left_ms) / MS

    async def orphans(self, owner: str, count_max: int) -> list[str]:
        """Looks at each owner that ever was."""
        orphans: list[str] = []
        for raw in await self._timed(self._client.smembers(OWNERS)):
            found = raw.decode()
            if found != owner and await self.alive_s(found):
                continue
            key = owner_key(found) + ":turns"
            turns = await self._timed(self._client.srandmember(key, count_max))
            if not turns and found != owner:
                await self._timed(self._client.srem(OWNERS, found))
            orphans += [turn.decode() for turn in turns or ()]
        return orphans

    async def claim(self, account_id: str, key: str, claim: Claim) -> Claim:
        """Sets the key if it is free."""
        name, ttl_s = claim_key(account_id, key), self._running_s
        await self._timed(self._client.set(name, claim_text(claim), nx=True, ex=ttl_s))
        stands = await self._timed(self._client.get(name))
        return Claim(*json.loads(stands)) if stands else claim

    async def reclaim(self, account_id: str, key: str, old: Claim, claim: Claim) -> bool:
        """Compares and sets."""
        values = [claim_text(old), claim_text(claim), self._running_s]
        return bool(await self._run("reclaim", [claim_key(account_id, key)], values))

    async def disclaim(self, account_id: str, key: str, claim: Claim) -> None:
        """Deletes the key if the claim stands."""
        await self._run("disclaim", [claim_key(account_id, key)], [claim_text(claim)])

    async def mark_read(self, turn_id: str, lease_ms: int) -> None:
        """A key that expires."""
        await self._timed(self._client.set(head_key(turn_id) + ":read", 1, px=lease_ms))

    async def is_read(self, turn_id: str) -> bool:
        """Whether it is there."""
        return bool(await self._timed(self._client.exists(head_key(turn_id) + ":read")))

    @contextlib.asynccontextmanager
    async def news(self, turn_id: str) -> AsyncIterator[asyncio.Event]:
        """By the channel of the turn."""
        arrived = asyncio.Event()
        async with self._channels.heard(head_key(turn_id), lambda _: arrived.set()):
            yield arrived

    async def stops(self, owner: str) -> AsyncIterator[str]:
        """By the channel of the owner."""
        turns: asyncio.Queue[str] = asyncio.Queue()
        async with self._channels.heard(
            owner_key(owner), lambda data: turns.put_nowait(data.decode())
        ):
            while True:
                yield await turns.get()

    async def _run(self, name: str, keys: list[str], values: list[Any]) -> Any:
        return (await self._run_all([(name, keys, values)]))[0]

    async def _run_all(
        self,
        calls: Sequence[tuple[str, list[str], list[Any]]],
        commands: Sequence[tuple[str, ...] | None] = (),
    ) -> list[Any]:
        """Runs scripts, and commands whose answers are not needed, in one round trip."""
        answers: list[Any] = []
        for _ in range(2):
            pipeline = self._client.pipeline(transaction=False)
            for name, keys, values in calls:
                pipeline.evalsha(self._scripts[name].sha, len(keys), *keys, *values)
            for command in filter(None, commands):
                pipeline.execute_command(*command)
            answers = await self._timed(pipeline.execute(raise_on_error=False))
            if not any(isinstance(each, redis.exceptions.NoScriptError) for each in answers):
                break
            # A Redis that was restarted knows no script; each of ours may be repeated.
            await self.prepare()
        for answer in answers:
            if isinstance(answer, Exception):
                raise JournalAway from answer
        return answers[: len(calls)]

    async def prepare(self) -> None:
        """Gives Redis the scripts, so that the first turn need not."""
        with contextlib.suppress(JournalAway):
            for script in self._scripts.values():
                await self._timed(self._client.script_load(script.script))

    async def _timed(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._limits.journal_timeout_s):
                return await call
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            raise JournalAway from error
