"""Starts the conversation store: settings, stores, services, purge, serve."""

from datetime import timedelta
from functools import partial

from chatmesh.conversation.v1.conversation_pb2_grpc import (
    add_ThreadReadServiceServicer_to_server,
    add_ThreadWriteServiceServicer_to_server,
)
from conversation_svc.hot_tail import HotTail
from conversation_svc.purge import keep_purging
from conversation_svc.service import ThreadReadService, ThreadWriteService, utc_now
from conversation_svc.settings import Settings
from conversation_svc.store import Store
from mesh.chassis import Node, run


async def start(node: Node) -> None:
    """Serves until the process is asked to end."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    database_url = settings.database_url.get_secret_value()
    store = await Store.connect(database_url, settings.connection_count_max)
    hot = HotTail.connect(settings.redis_url.get_secret_value(), settings.tail_ttl_s)
    keep = timedelta(days=settings.purge_after_days)
    purge = partial(keep_purging, store, utc_now, keep, settings.purge_interval_s)
    async with node.keeping(purge=purge):
        await node.serve(
            [
                (add_ThreadReadServiceServicer_to_server, ThreadReadService(store, hot)),
                (add_ThreadWriteServiceServicer_to_server, ThreadWriteService(store, hot)),
            ]
        )
    await hot.close()
    await store.close()


if __name__ == "__main__":
    run(start)
