"""Starts the meter: settings, stores, services, consumer and jobs, serve."""

import sys

from billing_svc.account_service import AccountAdminService, KeyService
from billing_svc.account_store import AccountStore
from billing_svc.audit_job import AuditJob
from billing_svc.audit_service import AuditService
from billing_svc.audit_store import AuditStore
from billing_svc.consumer import UsageConsumer
from billing_svc.jobs import Jobs
from billing_svc.ledger_store import LedgerStore
from billing_svc.limit_store import LimitStore
from billing_svc.price_file import PriceFile
from billing_svc.prices import PriceListError
from billing_svc.quota_store import QuotaStore
from billing_svc.repair_store import RepairStore
from billing_svc.service import QuotaService, UsageService
from billing_svc.settings import Settings
from billing_svc.store import Store
from chatmesh.billing.v1 import billing_pb2_grpc as rpc
from mesh.chassis import Node, run
from mesh.chassis.redis_client import connect


async def start(node: Node) -> None:
    """Serves until the process is asked to end."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    prices = PriceFile(settings.prices)
    store = await Store.open(settings.database_url, settings.connection_count_max)
    redis = connect(settings.redis_url, name=node.instance)
    accounts, limits = AccountStore(store, settings.tiers), LimitStore(store)
    quota, ledger = QuotaStore(store), LedgerStore(store)
    consumer = UsageConsumer(redis, ledger, node.instance, keep=settings.usage_keep)
    jobs = Jobs(quota, ledger, consumer, settings, store)
    audits = AuditStore(store, settings.audit_bounds)
    repairs = RepairStore(store, settings.audit_bounds)
    audit = AuditJob(audits, settings)
    works = {"usage": consumer.run, "jobs": jobs.run, "audit": audit.run, "prices": prices.watch}
    try:
        async with node.keeping(**works):
            await node.serve(
                [
                    (rpc.add_KeyServiceServicer_to_server, KeyService(accounts)),
                    (
                        rpc.add_AccountAdminServiceServicer_to_server,
                        AccountAdminService(accounts, limits),
                    ),
                    (rpc.add_QuotaServiceServicer_to_server, QuotaService(quota, prices)),
                    (rpc.add_UsageServiceServicer_to_server, UsageService(ledger, limits, prices)),
                    (rpc.add_AuditServiceServicer_to_server, AuditService(audits, repairs)),
                ]
            )
    finally:
        await quota.close()
        await redis.aclose()
        await store.close()


if __name__ == "__main__":
    try:
        run(start)
    except PriceListError as error:
        sys.exit(f"billing: {error}")
