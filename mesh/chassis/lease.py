"""The lease of a process with the control plane: who we are, what we do, whom we may call.

The stream is kept open for the life of the process. When it breaks it is opened anew, with the
same description; what the control plane said last stays in force meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis.channel import Policies
from mesh.chassis.errors import MeshError
from mesh.chassis.identity import Identity

RECONNECT_S_MIN = 0.05
RECONNECT_S_MAX = 1.0
# Until the control plane has said its own.
LEASE_TTL_MS_DEFAULT = 3000

CONTROL_CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
]

log = structlog.get_logger()


class Lease:
    """Keeps an instance registered and its policies current."""

    def __init__(self, address: str, identity: Identity, instance: mesh_pb2.Instance) -> None:
        self._address, self._identity = address, identity
        self._instance = instance
        self._ttl_s = LEASE_TTL_MS_DEFAULT / 1000
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._served: dict[str, mesh_pb2.MethodPolicy] = {}
        self._called: dict[str, mesh_pb2.MethodPolicy] = {}
        self.ready = asyncio.Event()
        self.drain_asked = asyncio.Event()

    def served(self) -> Policies:
        """Policies of the methods that this process serves, by full method name."""
        return self._served

    def called(self) -> Policies:
        """Policies of the methods that this process may call, by full method name."""
        return self._called

    async def announce(
        self, state: "mesh_pb2.InstanceState.ValueType", address: str | None = None
    ) -> None:
        """Tells the control plane a new state, and waits for its answer at most one lease time."""
        self._instance.state = state
        if address is not None:
            self._instance.address = address
        self._acknowledged.clear()
        self._changed.set()
        with contextlib.suppress(TimeoutError):  # it is notified when it is back
            async with asyncio.timeout(self._ttl_s):
                await self._acknowledged.wait()

    async def keep(self) -> None:
        """Runs for ever; ends by cancellation."""
        delay_s = RECONNECT_S_MIN
        while True:
            try:
                async for _ in self._session():
                    delay_s = RECONNECT_S_MIN
            except grpc.aio.AioRpcError as error:
                failure = MeshError.from_rpc(error)
                log.warning("lease_lost", code=failure.code.name, reason=failure.reason)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_S_MAX)

    async def _session(self) -> AsyncIterator[None]:
        # A new channel each time: it takes the newest certificate.
        async with control_channel(self._address, self._identity) as channel:
            call = mesh_pb2_grpc.RegistryServiceStub(channel).KeepLease(self._requests())
            try:
                async for response in call:
                    self._apply(response)
                    yield
            finally:
                call.cancel()

    async def _requests(self) -> AsyncIterator[mesh_pb2.KeepLeaseRequest]:
        while True:
            self._changed.clear()
            yield mesh_pb2.KeepLeaseRequest(instance=self._instance)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it may swallow a cancellation.
                async with asyncio.timeout(self._ttl_s / 3):
                    await self._changed.wait()

    def _apply(self, response: mesh_pb2.KeepLeaseResponse) -> None:
        self._ttl_s = response.lease_ttl_ms / 1000 or self._ttl_s
        if response.served_methods or response.called_methods:
            # Swapped whole: a call sees the old policies or the new ones.
            self._served = {policy.method: policy for policy in response.served_methods}
            self._called = {policy.method: policy for policy in response.called_methods}
        if response.drain:
            self.drain_asked.set()
        self._acknowledged.set()
        self.ready.set()


def control_channel(address: str, identity: Identity) -> grpc.aio.Channel:
    """An mTLS channel to the control plane, found by address."""
    return grpc.aio.secure_channel(
        address, identity.channel_credentials(), options=CONTROL_CHANNEL_OPTIONS
    )


async def watch_instances(
    address: Callable[[], str], identity: Identity, service: str
) -> AsyncIterator[tuple[mesh_pb2.Instance, ...]]:
    """The live instances of a service, again on every change; survives the control plane."""
    delay_s = RECONNECT_S_MIN
    while True:
        try:
            async with control_channel(address(), identity) as channel:
                stub = mesh_pb2_grpc.RegistryServiceStub(channel)
                call = stub.WatchInstances(mesh_pb2.WatchInstancesRequest(service=service))
                try:
                    async for response in call:
                        delay_s = RECONNECT_S_MIN
                        yield tuple(response.instances)
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            log.warning("watch_lost", service_watched=service, code=error.code().name)
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RECONNECT_S_MAX)
