"""What PostgreSQL must promise: told at start, by log and metric."""

import datetime as dt
from collections.abc import Callable
from urllib.parse import quote

import pytest
from prometheus_client import REGISTRY

from billing_svc import promises
from billing_svc.jobs import guarded
from billing_svc.store import Store

GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "replicas": "0",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"synchronous_commit": "local"}, []),
        ({"synchronous_commit": "off"}, ["synchronous_commit"]),
        ({"fsync": "off", "full_page_writes": "off"}, ["fsync", "full_page_writes"]),
        ({"replicas": "1"}, ["synchronous_standby_names"]),
        ({"replicas": "2", "synchronous_standby_names": "ANY 1 (*)"}, []),
    ],
)
def test_what_promises_too_little(settings: dict[str, str], expected: list[str]) -> None:
    assert promises.broken(GOOD | settings) == expected
    assert set(expected) <= promises.REMEDIES.keys()


def gauge(setting: str) -> float | None:
    return REGISTRY.get_sample_value("chatmesh_billing_store_promise_broken", {"setting": setting})


async def test_the_role_of_the_service_sees_it(postgres_dsn_for: Callable[[str], str]) -> None:
    dsn = postgres_dsn_for("billing")
    options = "?options=" + quote("-c synchronous_commit=off")
    for url, found in ((dsn, set()), (dsn + options, {"synchronous_commit"})):
        store = await Store.open(url)
        # The cluster of the tests may itself be run without fsync.
        seen = set(await promises.check(store)) - {"fsync", "full_page_writes"}
        assert seen == found
        assert gauge("synchronous_commit") == len(found)
        await store.close()


async def test_a_store_that_is_away_at_the_start_is_looked_at_again() -> None:
    store = await Store.open("postgresql://nobody@127.0.0.1:1/none")

    async def check(now: dt.datetime) -> int:
        return len(await promises.check(store))

    async def done(now: dt.datetime) -> int:
        return 1

    assert not await guarded(check)
    assert await guarded(done)
    await store.close()
