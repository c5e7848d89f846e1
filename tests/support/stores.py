"""Real stores for tests: one embedded PostgreSQL and one Redis for a whole test session.

`pytest_plugins = ["tests.support.stores"]` in tests/conftest.py brings the fixtures. A server
starts when the first test asks for it and ends, by its pid, with the session. With
TEST_DATABASE_URL / TEST_REDIS_URL set (an owner's DSN; both are written to), those are used.

Tests share the database: they keep apart by fresh ids (`fresh_id`), never by truncating. Redis is
emptied before each test that asks for `redis_url`.
"""

import asyncio
import itertools
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from ulid import ULID

from mesh import schema, stores

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("billing", "conversation", "safety")
STOP_TIMEOUT_S = 20.0


def _run(process: stores.StoreProcess, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen(
            process.command, env=dict(process.env), stdout=stream, stderr=stream
        )


def _stop(running: "subprocess.Popen[bytes]", process: stores.StoreProcess) -> None:
    running.send_signal(process.stop_signal)
    try:
        running.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _served(process: stores.StoreProcess, log: Path) -> Iterator[str]:
    running = _run(process, log)
    try:
        try:
            asyncio.run(process.ready())
        except stores.StoreError as error:
            pytest.fail(f"{error}\n{log.read_text(errors='replace')[-3000:]}")
        yield process.url
    finally:
        _stop(running, process)


@pytest.fixture(scope="session")
def embedded_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The owner's DSN; its database does not exist yet."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield url
        return
    folder = tmp_path_factory.mktemp("postgres")
    yield from _served(stores.prepare_postgres(folder), folder / "log")


@pytest.fixture(scope="session")
def deployed_dsns(embedded_postgres: str) -> dict[str, str]:
    """service -> DSN of its role, with every service's tables applied."""
    passwords = {service: secrets.token_urlsafe(12) for service in SERVICES}
    folders = schema.schema_folders(ROOT)
    return asyncio.run(schema.deploy(embedded_postgres, passwords, folders))


@pytest.fixture(scope="session")
def postgres_owner_dsn(embedded_postgres: str, deployed_dsns: dict[str, str]) -> str:
    """The owner's DSN of the migrated database."""
    return embedded_postgres


@pytest.fixture(scope="session")
def postgres_dsn_for(deployed_dsns: dict[str, str]) -> Callable[[str], str]:
    """postgres_dsn_for("billing"): DSN with that service's role, tables applied."""
    return deployed_dsns.__getitem__


@pytest.fixture(scope="session")
def embedded_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis for the session; tests take `redis_url`."""
    if url := os.environ.get("TEST_REDIS_URL"):
        yield url
        return
    folder = tmp_path_factory.mktemp("redis")
    yield from _served(stores.prepare_redis(folder), folder / "log")


@pytest.fixture
def redis_url(embedded_redis: str) -> str:
    """URL of a Redis that is empty at the start of the test."""
    with redis.Redis.from_url(embedded_redis) as client:
        client.flushdb()
    return embedded_redis


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def fresh_id() -> Callable[..., str]:
    """fresh_id("acc_"): an id that no other test has, prefix and ULID."""

    def make(prefix: str = "") -> str:
        return f"{prefix}{ULID()}"

    return make


@pytest.fixture
def empty_database(embedded_postgres: str) -> str:
    """The owner's DSN of a database of this test's own, without tables; roles are shared."""
    base = embedded_postgres.rsplit("/", 1)[0]
    dsn = f"{base}/test_{os.getpid()}_{next(_numbers)}"
    asyncio.run(schema.create_database(dsn))
    return dsn
