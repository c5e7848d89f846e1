"""The edge's agent: gets and renews Envoy's identity, and reports Envoy's health as its own.

Envoy itself runs beside it, so that an agent that dies cuts nobody's stream.
"""

import asyncio
from functools import partial

import structlog

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis import Node, run
from mesh.edge import admin
from mesh.edge.bootstrap import bootstrap, write_files
from mesh.edge.inputs import EdgeLimits
from mesh.edge.settings import EnvoySettings

POLL_INTERVAL_S = 0.5

log = structlog.get_logger()


async def start(node: Node) -> None:
    """Writes Envoy's files, then follows its health until the process is asked to end."""
    settings = EnvoySettings()
    heap_bytes_max = settings.heap_mib_max << 20
    write_files(
        node.state_dir,
        bootstrap(node.instance, node.control_address, EdgeLimits(), heap_bytes_max),
    )
    log.info("bootstrap_written")
    works = {
        "envoy": partial(_follow, node),
        "drain": partial(_drain_when_asked, node),
        "access_log": partial(_rotate_log, node),
    }
    async with node.keeping(**works):
        await node.stopping.wait()


async def _follow(node: Node) -> None:
    announced = admin.ABSENT
    while True:
        seen = await asyncio.to_thread(admin.health, node.state_dir)
        if seen != announced and not node.draining.is_set():
            announced = seen
            log.info("envoy_health", live=seen.live, listeners=seen.listeners)
            await node.announce(*_state(seen))
        await asyncio.sleep(POLL_INTERVAL_S)


async def _rotate_log(node: Node) -> None:
    while True:
        if await asyncio.to_thread(admin.rotate_log, node.state_dir):
            log.info("access_log_begun_anew")
        await asyncio.sleep(POLL_INTERVAL_S)


def _state(health: admin.EnvoyHealth) -> "tuple[mesh_pb2.InstanceState.ValueType, str]":
    if not health.serving:
        return mesh_pb2.INSTANCE_STATE_STARTING, ""
    # The one with TLS comes last by name; people look for the plain one.
    return mesh_pb2.INSTANCE_STATE_SERVING, health.listeners[min(health.listeners)]


async def _drain_when_asked(node: Node) -> None:
    """Drains Envoy for the operator; not when only this process is to end."""
    await node.draining.wait()
    if not node.stopping.is_set():
        await node.announce(mesh_pb2.INSTANCE_STATE_DRAINING)
        accepted = await asyncio.to_thread(admin.drain, node.state_dir)
        log.info("envoy_draining", accepted=accepted)
    await asyncio.Event().wait()  # it is done once, and nothing else is to be done


if __name__ == "__main__":
    run(start)
