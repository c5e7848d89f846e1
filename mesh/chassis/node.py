"""A process of the mesh: joined, registered, serving, drained."""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog
import uvloop

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis import bootstrap, identity, lease, telemetry
from mesh.chassis.background import Work, keeping
from mesh.chassis.channel import MeshChannel, open_xds_channel
from mesh.chassis.loop_lag import watch_loop_lag
from mesh.chassis.server import MeshServer, Registration
from mesh.chassis.settings import NodeSettings

# Between leaving the balancing and closing the door: the time in which callers hear of it.
DRAIN_NOTICE_S = 0.2
# Links need to know the instances: who may not watch them calls plainly.
WATCH_INSTANCES = "chatmesh.mesh.v1.RegistryService/WatchInstances"
READY_TIMEOUT_S = 30.0
# What a process that gave up may take beyond the grace of its calls; then it is ended as it is. A
# gateway settles for 30 s while a store is away.
FAILED_END_S = 35.0
# New objects of the youngest generation, and collections of the younger one, before a collection.
GC_THRESHOLDS = (20_000, 20, 50)
SWITCH_INTERVAL_S = 0.0003

log = structlog.get_logger()


class Node:
    """What a service gets from the mesh. Made by `run`."""

    def __init__(self, settings: NodeSettings, own: identity.Identity, lease_: lease.Lease) -> None:
        self._settings, self._lease = settings, lease_
        self._channels: dict[str, MeshChannel] = {}
        self.identity = own
        # Set when the operator drains this instance or the process is asked to end: services
        # refuse new work and close the streams that would never end by themselves.
        self.draining = lease_.drain_asked
        self.stopping = asyncio.Event()
        # Why the process gave up; empty: it did not.
        self.failure = ""

    @property
    def service(self) -> str:
        """The service, such as "inference"."""
        return self._settings.service

    @property
    def instance(self) -> str:
        """The instance, such as "inference-1"."""
        return self._settings.instance

    @property
    def state_dir(self) -> Path:
        """A private folder that outlives the process."""
        return self._settings.state_dir

    @property
    def control_address(self) -> str:
        """host:port of the control plane."""
        return self._settings.control_address

    def channel_to(self, service: str) -> MeshChannel:
        """The channel to a service of the topology; one a process."""
        if service not in self._channels:
            links = self._settings.link and WATCH_INSTANCES in self._lease.called()
            watch = partial(self.watch_instances, service) if links else None
            self._channels[service] = open_xds_channel(service, self._lease.called, watch)
        return self._channels[service]

    def watch_instances(self, service: str) -> AsyncIterator[tuple[mesh_pb2.Instance, ...]]:
        """The live instances of a service, at once and on every change."""
        return lease.watch_instances(lambda: self.control_address, self.identity, service)

    async def announce(
        self, state: "mesh_pb2.InstanceState.ValueType", address: str | None = None
    ) -> None:
        """Tells the control plane a new state and, when given, the address others reach."""
        await self._lease.announce(state, address)

    def stop(self) -> None:
        """Leaves the balancing and ends when the running calls have ended."""
        self.stopping.set()
        self.draining.set()

    def give_up(self, failure: str) -> None:
        """Ends the process because it cannot do its work; its supervisor starts another."""
        if not self.failure:
            log.error("process_gives_up", failure=failure, remedy="it is started anew")
            self.failure = failure
            # Whatever hangs on the way out: nothing is worse than a process that only seems there.
            limit_s = self._settings.drain_grace_s + FAILED_END_S
            asyncio.get_running_loop().call_later(limit_s, os._exit, 1)
        self.stop()

    def keeping(self, **works: Work) -> contextlib.AbstractAsyncContextManager[None]:
        """Keeps work going beside the block that should go on as long as the process does.

        What ends is begun again; what ends again and again makes the process give up.
        """
        return keeping(works, self.give_up)

    async def serve(
        self,
        registrations: Sequence[Registration],
        *,
        on_drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serves until the process is asked to end and its calls are done.

        Args:
            registrations: (add_…Servicer_to_server, servicer) pairs.
            on_drain: awaited once when draining begins.
        """
        server = MeshServer(
            self.identity,
            self._lease.served,
            self._settings.connection_age_max_s,
            self.instance if self._settings.link else "",
        )
        address = await server.start(registrations, self._settings.bind_host)
        await self.announce(mesh_pb2.INSTANCE_STATE_SERVING, address)
        log.info("serving", address=address)
        await self.draining.wait()
        await self.announce(mesh_pb2.INSTANCE_STATE_DRAINING)
        if on_drain is not None:
            await on_drain()
        log.info("draining")
        await self.stopping.wait()
        await asyncio.sleep(DRAIN_NOTICE_S)
        await server.stop(self._settings.drain_grace_s)
        log.info("stopped")

    async def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels.values():
            await channel.close()


def run(start: Callable[[Node], Awaitable[None]]) -> None:
    """Runs a service: telemetry, identity, registration, then `start`, until it returns."""
    settings = NodeSettings()  # type: ignore[call-arg]  # the environment fills it
    telemetry.configure(settings.service, settings.instance, settings.log_level)
    uvloop.run(_run(settings, start))


async def _run(settings: NodeSettings, start: Callable[[Node], Awaitable[None]]) -> None:
    async with joined(settings) as node:
        _tune_interpreter()
        await start(node)
    if node.failure:
        sys.exit(1)


def _tune_interpreter() -> None:
    """Sets the interpreter up for a service of many short events and few objects that live long."""
    # What was imported lives as long as the process: a collection need not walk it each time.
    gc.freeze()
    # By default 700 new objects begin a collection, which is a turn's worth: they were 2-3 % of the
    # gateway's CPU. Cycles that a turn leaves wait a little longer.
    gc.set_threshold(*GC_THRESHOLDS)
    # A thread that computes gives the interpreter up when it was asked for it for so long; by
    # default 5 ms, which the event loop would wait after each of its polls. With it the longest gap
    # between chunks (p99, 64 streams x 256 tokens) fell from 500 to 223 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)


@contextlib.asynccontextmanager
async def joined(settings: NodeSettings) -> AsyncIterator[Node]:
    """Joins the mesh, keeps certificate and lease renewed, leaves at the end."""
    own = await identity.join(
        settings.join_address or settings.control_address,
        settings.join_token.get_secret_value(),
        settings.trust_bundle,
        settings.state_dir,
    )
    # Read by gRPC once, at the first xds channel: set before any is opened.
    os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = bootstrap.render(settings, own)
    held = lease.Lease(settings.control_address, own, _description(settings))
    node = Node(settings, own, held)
    _stop_on_signals(node)
    async with node.keeping(**chassis_work(settings, own, held)):
        async with asyncio.timeout(READY_TIMEOUT_S):
            await held.ready.wait()
        try:
            yield node
        finally:
            await node.close()


def chassis_work(
    settings: NodeSettings, own: identity.Identity, held: lease.Lease
) -> Mapping[str, Work]:
    """What the chassis itself keeps going in every process, by name."""

    async def renew() -> None:
        await identity.keep_renewed(settings.control_address, own, settings.state_dir)

    return {"lease": held.keep, "renewal": renew, "loop_lag": watch_loop_lag}


def _description(settings: NodeSettings) -> mesh_pb2.Instance:
    return mesh_pb2.Instance(
        service=settings.service,
        name=settings.instance,
        pid=os.getpid(),
        state=mesh_pb2.INSTANCE_STATE_STARTING,
        metrics_address=telemetry.serve_metrics(settings.bind_host),
        incarnation=secrets.token_hex(16),
    )


def _stop_on_signals(node: Node) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
