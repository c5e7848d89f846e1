"""Starts an inference node."""

import asyncio

from chatmesh.inference.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server
from inference_svc.engine.choose import choose_engine
from inference_svc.generations import Generations
from inference_svc.model_folder import open_model
from inference_svc.service import InferenceService
from inference_svc.settings import Settings
from inference_svc.spool import Spool
from inference_svc.usage import UsageReporter
from mesh.chassis import Node, run
from mesh.chassis.redis_client import connect


async def start(node: Node) -> None:
    """Wires and serves."""
    settings = Settings()  # type: ignore[call-arg]  # the environment fills it
    model = open_model(settings.model, settings.model_id)
    engine = choose_engine(settings, model)
    await engine.start()
    usage = UsageReporter(
        connect(settings.redis_url, name=node.instance, connect_timeout_s=settings.redis_timeout_s),
        Spool(node.state_dir / "usage.spool", settings.usage_spool_bytes_max),
        redis_timeout_s=settings.redis_timeout_s,
        flush_interval_s=settings.usage_flush_interval_s,
        pending_event_count_max=settings.usage_pending_event_count_max,
    )
    usage.start()
    generations = Generations(engine, usage)
    service = InferenceService(
        node.instance,
        model,
        engine,
        generations,
        flush_window_s=settings.flush_window_ms / 1000,
        stopping=node.stopping,
    )

    async def drain() -> None:
        generations.drain()

    async def end_when_failed() -> None:
        await engine.failed.wait()
        node.stopping.set()
        node.draining.set()

    watcher = asyncio.create_task(end_when_failed())
    await node.serve([(add_InferenceServiceServicer_to_server, service)], on_drain=drain)
    watcher.cancel()
    await engine.stop()
    await generations.idle()
    await usage.stop()


if __name__ == "__main__":
    run(start)
