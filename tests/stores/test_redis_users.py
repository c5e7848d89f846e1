"""Redis users on the real embedded Redis: each service can do its work, and nothing besides."""

import asyncio
import contextlib
import stat
import subprocess
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis.asyncio
from redis.exceptions import AuthenticationError, NoPermissionError

from billing_svc import consumer
from billing_svc.kept_events import Bounds, trim
from conversation_svc.hot_tail import HotTail
from conversation_svc.thread import Tail, Thread
from gateway.admission.rate import RateLimiter
from gateway.settings import AdmissionSettings
from inference_svc.engine.stream import GeneratedCounts
from inference_svc.spool import Spool
from inference_svc.usage import MeterLabel, UsageReporter
from mesh import redis_users, stores, topology
from mesh.chassis.redis_client import connect
from mesh.home import Home
from mesh.redis_users import RedisUser, RedisUsersError
from mesh.settings import UpSettings
from mesh.system import System

ACCESSES = {n: s.redis for n, s in topology.load().services.items() if s.redis}
USERS = {name: RedisUser(name, f"password of {name}", access) for name, access in ACCESSES.items()}
# A key of each service.
KEYS = {
    "gateway": "cm:rate:acc",
    "billing": "usage:dead",
    "conversation": "cm:tail:acc:thr",
    "inference": "usage",
}
DANGEROUS = (
    "FLUSHALL", "FLUSHDB", "CONFIG GET requirepass", "KEYS *", "SCAN 0", "ACL LIST",
    "DEBUG SLEEP 0", "CLIENT LIST", "CLIENT KILL ID 1", "MONITOR", "SHUTDOWN", "SAVE", "INFO",
    "SCRIPT FLUSH", "REPLICAOF NO ONE", "PUBSUB CHANNELS", "RANDOMKEY", "DBSIZE", "MODULE LIST",
    "SWAPDB 0 1",
)  # fmt: skip
Client = redis.asyncio.Redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    process = stores.prepare_redis(tmp_path_factory.mktemp("redis"), USERS.values())
    running = start(process)
    asyncio.run(process.ready())
    yield process
    running.send_signal(process.stop_signal)
    running.wait(20)


def start(process: stores.StoreProcess) -> "subprocess.Popen[bytes]":
    quiet = subprocess.DEVNULL
    return subprocess.Popen(process.command, env=dict(process.env), stdout=quiet, stderr=quiet)


@contextlib.asynccontextmanager
async def as_user(base: str, service: str) -> AsyncIterator[Client]:
    async with connect(USERS[service].url(base), name=f"{service}-1") as client:
        yield client


async def test_the_gateway_counts_requests(server) -> None:
    async with as_user(server.url, "gateway") as client:
        limiter = RateLimiter(client, AdmissionSettings())
        first, second = await limiter.take("acc_1", "free"), await limiter.take("acc_1", "free")
        assert first is not None
        assert second is not None
        assert first.remaining == second.remaining + 1


async def test_the_gateway_keeps_a_journal_of_turns(server) -> None:
    script = "redis.call('RPUSH', KEYS[1], ARGV[1]); return redis.call('TIME')"
    async with as_user(server.url, "gateway") as client:
        append = client.register_script(script)
        await append(keys=["cm:turn:t:events"], args=["event"])
        await client.hset("cm:turn:t", mapping={"epoch": 1})
        await client.zadd("cm:kept:acc", {"t": 1})
        await client.sadd("cm:owners", "gateway-1")
        assert await client.set("cm:owner:t", "gateway-1", nx=True, px=1000)
        await client.set("cm:idem:acc:key", "t", ex=60)
        await client.pexpire("cm:turn:t", 60_000)
        pipeline = client.pipeline(transaction=True)
        pipeline.lrange("cm:turn:t:events", 0, -1)
        pipeline.unlink("cm:turn:t:events", "cm:turn:t")
        assert await pipeline.execute() == [[b"event"], 2]
        await client.delete("cm:kept:acc", "cm:owners", "cm:idem:acc:key")
        assert len(await client.time()) == 2


async def test_the_gateway_publishes_and_hears_of_turns_only(server) -> None:
    async with as_user(server.url, "gateway") as client, client.pubsub() as follower:
        await follower.subscribe("cm:turn:t")
        await follower.psubscribe("cm:owner:*")
        async with asyncio.timeout(10):
            for _ in range(2):
                await follower.get_message(timeout=None)
            await client.publish("cm:turn:t", "3")
            heard = await follower.get_message(timeout=None)
        assert heard is not None
        assert (heard["channel"], heard["data"]) == (b"cm:turn:t", b"3")
        with pytest.raises(NoPermissionError):
            await client.publish("other", "3")


async def test_inference_reports_what_billing_consumes(server, tmp_path: Path) -> None:
    async with as_user(server.url, "inference") as client:
        spool = Spool(tmp_path / "spool", 1 << 20)
        usage = UsageReporter(
            client, spool, redis_timeout_s=5, flush_interval_s=1, pending_event_count_max=10
        )
        meter = usage.open(
            MeterLabel("turn", 0, 0, "tiny", "inference-1"), GeneratedCounts(output=0)
        )
        meter._counts.output = 3
        await usage.stop()
        assert spool.empty
    async with as_user(server.url, "billing") as client:
        keep = Bounds(timedelta(0), 0)
        reader = consumer.UsageConsumer(client, None, "billing-1", keep=keep)  # type: ignore[arg-type]
        await reader._make_group()
        (message,) = await reader._take(1000)
        assert not await reader._claim()
        await reader.bury(b"event", consumer.BadEventError("turn_id", "a test"), message[0])
        await trim(client, consumer.STREAM, consumer.GROUP, keep, datetime.now(UTC))
        assert await client.xlen(consumer.STREAM) == 1  # it is not charged yet
        assert await client.xack(consumer.STREAM, consumer.GROUP, message[0]) == 1
        await trim(client, consumer.STREAM, consumer.GROUP, keep, datetime.now(UTC))
        assert await client.xlen(consumer.STREAM) == 0


async def test_conversation_keeps_its_hot_tails(server) -> None:
    hot = HotTail.connect(USERS["conversation"].url(server.url), 60)
    now = datetime.now(UTC)
    tail = Tail(Thread("thr", "", "tiny", create_time=now, update_time=now), ())
    await hot.put("acc", tail)
    assert await hot.get("acc", "thr") is not None
    await hot.drop("acc", "thr")
    assert await hot.get("acc", "thr") is None
    await hot.close()


@pytest.mark.parametrize("service", USERS)
async def test_others_keys_and_whole_redis_are_refused(server, service: str) -> None:
    foreign = {key for name, key in KEYS.items() if name != service}
    if service == "billing":
        foreign.discard("usage")
    async with as_user(server.url, service) as client:
        for key in sorted(foreign):
            for command in (["GET", key], ["XADD", key, "*", "a", "b"], ["DEL", key]):
                with pytest.raises(NoPermissionError):
                    await client.execute_command(*command)
            with pytest.raises(redis.ResponseError, match=r"(?i)perm"):
                await client.eval("return redis.call('GET', KEYS[1])", 1, key)
        for command in DANGEROUS:
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command.split())


async def test_inference_can_add_its_reports_and_not_take_them_back(server) -> None:
    async with as_user(server.url, "inference") as client:
        number = await client.xadd("usage", {"event": b"x"})
        for command in (
            ["XREAD", "STREAMS", "usage", "0"],
            ["XRANGE", "usage", "-", "+"],
            ["XDEL", "usage", number],
            ["XTRIM", "usage", "MAXLEN", "0"],
            ["DEL", "usage"],
        ):
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command)


async def test_a_script_may_not_reach_further_than_its_user(server) -> None:
    async with as_user(server.url, "gateway") as client:
        for call in ("'GET', 'usage'", "'SORT', 'cm:turn:x', 'BY', 'usage:*'", "'FLUSHALL'"):
            with pytest.raises(redis.ResponseError, match=r"can't access|can't run|not allowed"):
                await client.eval(f"return redis.call({call})", 0)


async def test_nobody_without_a_name_comes_in(server) -> None:
    address = server.url.rpartition("@")[2]
    for stranger in ("", "default:@", ":wrong@", "chatmesh_gateway:wrong@"):
        async with redis.asyncio.Redis.from_url(f"redis://{stranger}{address}") as client:
            with pytest.raises((AuthenticationError, redis.ResponseError)):
                await client.ping()


async def test_users_come_back_with_a_redis_that_was_killed(tmp_path: Path) -> None:
    process = await asyncio.to_thread(stores.prepare_redis, tmp_path, USERS.values())
    running = start(process)
    await process.ready()
    async with as_user(process.url, "inference") as client:
        await client.xadd("usage", {"event": b"1"})
        running.kill()
        await asyncio.to_thread(running.wait, 20)
        running = start(process)  # as the supervisor does: the same command
        await process.ready()
        # The same client: it connects by itself, with its own user.
        await client.xadd("usage", {"event": b"2"})
        with pytest.raises(NoPermissionError):
            await client.execute_command("FLUSHALL")
    running.send_signal(process.stop_signal)
    await asyncio.to_thread(running.wait, 20)
    acl = tmp_path / "users.acl"
    assert stat.S_IMODE(acl.stat().st_mode) == 0o600
    assert "password of" not in acl.read_text()


async def test_users_of_a_redis_that_is_not_ours(redis_url: str) -> None:
    await redis_users.create(redis_url, USERS.values())
    other_copy = RedisUser("inference", "of another copy", ACCESSES["inference"])
    await redis_users.create(redis_url, [other_copy])
    for user in (USERS["inference"], other_copy):
        async with connect(user.url(redis_url), name="test") as client:
            await client.xadd("usage", {"event": b"1"})
            with pytest.raises(NoPermissionError):
                await client.execute_command("GET", "cm:rate:a")
    with pytest.raises(RedisUsersError, match="NoPermission"):
        await redis_users.create(USERS["gateway"].url(redis_url), USERS.values())
    async with connect(redis_url, name="test") as owner:
        await owner.acl_deluser(*(user.name for user in USERS.values()))
    with pytest.raises(RedisUsersError, match="Connection"):
        await redis_users.create("redis://127.0.0.1:1/0", USERS.values())


async def test_users_that_are_gone_are_made_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()

    async def create(url: str, users: Iterable[RedisUser]) -> None:
        await real_create(url, users)
        made.set()

    real_create = redis_users.create
    monkeypatch.setattr(redis_users, "create", create)
    monkeypatch.setattr(redis_users, "CHECK_INTERVAL_S", 0.01)
    keeping = asyncio.create_task(redis_users.keep(redis_url, USERS))
    try:
        async with asyncio.timeout(20):
            await made.wait()
        async with as_user(redis_url, "inference") as client:
            assert await client.ping()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    async with connect(redis_url, name="test") as owner:
        await owner.acl_deluser(*(user.name for user in USERS.values()))


def test_a_url_keeps_all_but_its_user() -> None:
    user = RedisUser("gateway", "a/b@c", ACCESSES["gateway"])
    assert user.url("rediss://me:pw@host:6380/2?x=1") == (
        "rediss://chatmesh_gateway:a%2Fb%40c@host:6380/2?x=1"
    )
    assert user.url("redis://host") == "redis://chatmesh_gateway:a%2Fb%40c@host"


@pytest.mark.parametrize("may", [True, False])
async def test_a_copy_makes_users_in_a_redis_of_the_operators_or_says_that_it_may_not(
    server, redis_url: str, tmp_path: Path, may: bool
) -> None:
    url = redis_url if may else USERS["gateway"].url(server.url)
    said: list[tuple[str, str]] = []
    settings = UpSettings(redis_url=url)
    home = Home(tmp_path)
    home.make()
    system = System(home, settings, topology.load(), lambda what, state: said.append((what, state)))
    urls = await system.admit_to_redis(url)
    await system.stop()
    assert urls.keys() == USERS.keys()
    if may:
        assert not said
        assert len(set(urls.values())) == len(USERS)
        async with connect(urls["billing"], name="test") as client:
            assert await client.xlen("usage") == 0
        async with connect(redis_url, name="test") as owner:
            await owner.acl_deluser(*(user.name for user in USERS.values()))
    else:
        assert set(urls.values()) == {url}
        ((what, state),) = said
        assert what == "redis"
        assert "no users there (NoPermissionError" in state
        assert USERS["gateway"].password not in state
