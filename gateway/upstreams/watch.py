"""Keeps the pool true: the live nodes from the mesh, and each node's own reports of its load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import grpc
import structlog

from chatmesh.inference.v1 import inference_pb2
from chatmesh.mesh.v1 import mesh_pb2
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Load, Pool
from mesh.chassis.errors import MeshError

RECONNECT_S_MIN = 0.1
RECONNECT_S_MAX = 2.0
# An instance in another state takes no new calls.
USABLE = {mesh_pb2.INSTANCE_STATE_SERVING}

log = structlog.get_logger()


async def watch(
    pool: Pool, inference: Inference, views: AsyncIterator[tuple[mesh_pb2.Instance, ...]]
) -> None:
    """Follows the instances of the mesh until cancelled; one load stream for each."""
    watching: dict[str, asyncio.Task[None]] = {}
    try:
        async for instances in views:
            live = {each.name: each.address for each in instances if each.state in USABLE}
            pool.replace(live)
            wanted = {f"{name}@{address}": name for name, address in live.items()}
            await _end(watching.pop(key) for key in watching.keys() - wanted.keys())
            for key, name in wanted.items():
                if key not in watching:
                    watching[key] = asyncio.create_task(_follow(pool, inference, name))
    finally:
        await _end(watching.values())


async def _follow(pool: Pool, inference: Inference, name: str) -> None:
    delay_s = RECONNECT_S_MIN
    while True:
        try:
            async with contextlib.aclosing(inference.watch_load(name)) as reports:
                async for report in reports:
                    delay_s = RECONNECT_S_MIN
                    pool.report(name, load_of(report))
        except (grpc.aio.AioRpcError, MeshError) as error:
            log.warning("load_unknown", instance_watched=name, error=repr(error)[:200])
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RECONNECT_S_MAX)


def load_of(report: inference_pb2.WatchLoadResponse) -> Load:
    """A node's report in the pool's words."""
    return Load(
        waiting_count=report.waiting_count,
        running_count=report.running_count,
        queue_depth_max=report.queue_depth_max,
        kv_block_count=report.kv_block_count,
        kv_block_free_count=report.kv_block_free_count,
        draining=report.draining,
    )


async def _end(tasks: Iterable["asyncio.Task[None]"]) -> None:
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
