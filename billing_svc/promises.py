"""What PostgreSQL must promise, so that money that was answered for is there after a crash."""

from collections.abc import Mapping

import structlog
from prometheus_client import Gauge

from billing_svc.store import Store

# Seen from the billing role: its own settings, and how many replicas are connected.
_QUERY = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS synchronous_standby_names,
    (SELECT count(*) FROM pg_stat_replication)::text AS replicas
"""
REMEDIES = {
    "fsync": "set fsync = on: a crash of the machine may destroy the ledger",
    "full_page_writes": "set full_page_writes = on: a crash of the machine may tear pages",
    "synchronous_commit": "set synchronous_commit = on for the role: a crash loses settlements",
    "synchronous_standby_names": (
        "name the replicas in synchronous_standby_names; or read the usage stream again after a "
        "failover, as billing_svc/README.md says, and keep their lag below BILLING_USAGE_KEEP_S"
    ),
}

log = structlog.get_logger()
_broken = Gauge(
    "chatmesh_billing_store_promise_broken", "1: a setting of PostgreSQL risks money", ["setting"]
)


def broken(settings: Mapping[str, str]) -> list[str]:
    """Names of the settings (keys of REMEDIES) that do not promise enough.

    Args:
        settings: PostgreSQL's by name, and "replicas": how many are connected.
    """
    switches = ("fsync", "full_page_writes", "synchronous_commit")
    found = [name for name in switches if settings[name] == "off"]
    if int(settings["replicas"]) and not settings["synchronous_standby_names"]:
        found.append("synchronous_standby_names")
    return found


async def check(store: Store) -> list[str]:
    """Tells, in log and metric, what is broken; gives it.

    Raises:
        MeshError: STORE_UNAVAILABLE.
    """
    async with store.connection() as connection:
        row = await connection.fetchrow(_QUERY)
    assert row is not None
    found = broken(dict(row))
    for name, remedy in REMEDIES.items():
        _broken.labels(name).set(name in found)
        if name in found:
            log.warning("store_promises_too_little", setting=name, value=row[name], remedy=remedy)
    return found
