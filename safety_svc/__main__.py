"""Starts the safety service: settings, policy, back end, audit, serve."""

from datetime import UTC, datetime, timedelta
from functools import partial

from chatmesh.safety.v1.safety_pb2_grpc import add_SafetyServiceServicer_to_server
from mesh.chassis import Node, run
from safety_svc.audit import Audit
from safety_svc.backends.choose import chosen
from safety_svc.policy_source import PolicySource
from safety_svc.purge import keep_purging
from safety_svc.service import SafetyService
from safety_svc.settings import Settings
from safety_svc.store import PostgresAuditStore


def utc_now() -> datetime:
    """The time by the wall."""
    return datetime.now(UTC)


async def start(node: Node) -> None:
    """Serves until the node is told to stop and has drained."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    policies = PolicySource(settings.policy_file)
    policies.refresh()
    backend = chosen(settings, node.channel_to)
    follow = partial(policies.follow, settings.policy_poll_interval_s)
    store = PostgresAuditStore(settings.database_url)
    keep = timedelta(days=settings.decision_retention_days)
    purge = partial(keep_purging, store, utc_now, keep, settings.purge_interval_s)
    try:
        async with (
            node.keeping(policy=follow, purge=purge),
            Audit(store, settings.audit_timeout_ms / 1000) as audit,
        ):
            service = SafetyService(policies, audit, backend)
            await node.serve([(add_SafetyServiceServicer_to_server, service)])
            await service.finish()
    finally:
        if backend:
            await backend.close()
        await store.close()


if __name__ == "__main__":
    run(start)
