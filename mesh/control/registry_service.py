"""The registry's service: leases as streams, and who lives; proto to domain and back."""

import asyncio
import ipaddress
import itertools
import re
import time
from collections.abc import AsyncIterator, Iterator

import grpc

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis.errors import MeshError
from mesh.control import registry
from mesh.control.inbox import Inbox
from mesh.control.plane import Plane
from mesh.control.replies import Context, bad_request, caller, no_service, timestamp

STATES = {
    mesh_pb2.INSTANCE_STATE_STARTING: registry.State.STARTING,
    mesh_pb2.INSTANCE_STATE_SERVING: registry.State.SERVING,
    mesh_pb2.INSTANCE_STATE_DRAINING: registry.State.DRAINING,
}
PROTO_STATES = {state: proto for proto, state in STATES.items()}
INSTANCE_SUFFIX = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
PORT_MAX = 65_535
INCARNATION_LENGTH_MAX = 64


class RegistryService(mesh_pb2_grpc.RegistryServiceServicer):
    """Leases and who lives."""

    def __init__(self, plane: Plane, lease_ttl_ms: int) -> None:
        self._plane, self._lease_ttl_ms = plane, lease_ttl_ms
        self._holders = itertools.count(1)

    async def KeepLease(  # noqa: N802, D102
        self, request_iterator: AsyncIterator[mesh_pb2.KeepLeaseRequest], context: Context
    ) -> AsyncIterator[mesh_pb2.KeepLeaseResponse]:
        name = caller(self._plane, context)
        wake = asyncio.Event()
        session = _LeaseSession(self._plane, name, next(self._holders), self._lease_ttl_ms)
        try:
            with self._plane.listening(wake):
                async with Inbox(request_iterator, wake) as inbox:
                    while session.alive and not inbox.ended:
                        for response in session.step(inbox.take()):
                            yield response
                        await session.wait(wake)
        finally:
            session.close()

    async def WatchInstances(  # noqa: N802, D102
        self, request: mesh_pb2.WatchInstancesRequest, context: Context
    ) -> AsyncIterator[mesh_pb2.WatchInstancesResponse]:
        if request.service not in self._plane.topology.services:
            raise no_service(request.service)
        wake = asyncio.Event()
        notified: tuple[registry.Instance, ...] | None = None
        with self._plane.listening(wake):
            while True:
                wake.clear()
                live = self._plane.instances(request.service)
                if live != notified:
                    notified = live
                    yield mesh_pb2.WatchInstancesResponse(
                        instances=[to_proto(self._plane, instance) for instance in live]
                    )
                await wake.wait()


class _LeaseSession:
    """One KeepLease stream: what it holds and what it was notified of."""

    def __init__(self, plane: Plane, service: str, holder: int, lease_ttl_ms: int) -> None:
        self._plane, self._service, self._holder = plane, service, holder
        self._lease_ttl_ms = lease_ttl_ms
        self._name = ""
        self._notified: tuple[str, bool] | None = None

    @property
    def alive(self) -> bool:
        """Whether the stream still has a reason: nothing registered yet, or the lease held."""
        return not self._name or self._plane.holds(self._name, self._holder)

    async def wait(self, wake: asyncio.Event) -> None:
        """Waits for a request or a change; for the first request not for ever."""
        timeout_s = None if self._name else self._lease_ttl_ms / 1000
        try:
            await asyncio.wait_for(wake.wait(), timeout_s)
        except TimeoutError:
            raise bad_request(
                "BAD_REQUEST", "Describe the instance in the first request."
            ) from None
        wake.clear()

    def step(
        self, requests: list[mesh_pb2.KeepLeaseRequest]
    ) -> Iterator[mesh_pb2.KeepLeaseResponse]:
        """Takes requests in; gives the answer that is due, if one is."""
        for request in requests:
            self._renew(request.instance)
        instance = self._plane.get(self._name) if self.alive else None
        if instance is None:
            return
        policy = self._plane.policy(self._service)
        notice = (policy.version, instance.drain)
        if not requests and notice == self._notified:
            return
        news = self._notified is None or self._notified[0] != policy.version
        self._notified = notice
        yield mesh_pb2.KeepLeaseResponse(
            lease_ttl_ms=self._lease_ttl_ms,
            policy_version=policy.version,
            served_methods=policy.served_methods if news else (),
            called_methods=policy.called_methods if news else (),
            drain=instance.drain,
        )

    def close(self) -> None:
        """The stream has ended, and the lease with it."""
        if self._name:
            self._plane.release(self._name, self._holder)

    def _renew(self, described: mesh_pb2.Instance) -> None:
        if described.service != self._service:
            raise MeshError(
                grpc.StatusCode.PERMISSION_DENIED,
                "WRONG_IDENTITY",
                f"{self._service} may register only its own instances, not {described.service}'s.",
            )
        if self._name and described.name != self._name:
            raise bad_request("BAD_REQUEST", "One stream keeps one instance; open another stream.")
        instance = from_proto(self._plane, described)
        try:
            self._plane.renew(instance, self._holder, time.monotonic(), time.time())
        except registry.InstanceTakenError as error:
            raise MeshError(
                grpc.StatusCode.ALREADY_EXISTS,
                "INSTANCE_TAKEN",
                f"The name is taken: {error}.",
                metadata={"instance": described.name},
                retry_after_s=self._lease_ttl_ms / 1000,
            ) from error
        except registry.TooManyInstancesError as error:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_REQUEST", f"No more room: {error}."
            ) from error
        self._name = described.name


def from_proto(plane: Plane, described: mesh_pb2.Instance) -> registry.Instance:
    """An instance as its process describes it.

    Raises:
        MeshError: INVALID_ARGUMENT (BAD_REQUEST), with what to send instead.
    """
    service = described.service
    if service not in plane.topology.services:
        raise bad_request("BAD_REQUEST", f"{service!r} is not a service and has no instances.")
    suffix = described.name.removeprefix(f"{service}-")
    if suffix == described.name or not INSTANCE_SUFFIX.fullmatch(suffix):
        raise bad_request(
            "BAD_REQUEST", f"Name the instance {service}-<a-z, 0-9, '.', '-'>, such as {service}-1."
        )
    if described.state not in STATES:
        raise bad_request("BAD_REQUEST", "Say what the instance does (state).")
    if len(described.incarnation) > INCARNATION_LENGTH_MAX:
        raise bad_request(
            "BAD_REQUEST", f"An incarnation has {INCARNATION_LENGTH_MAX} characters at most."
        )
    for address in (described.address, described.metrics_address):
        if address and not _is_address(address):
            raise bad_request(
                "BAD_REQUEST", f"{address!r} is not IP:port; xDS endpoints need an IP address."
            )
    return registry.Instance(
        service=service,
        name=described.name,
        address=described.address,
        pid=described.pid,
        state=STATES[described.state],
        metrics_address=described.metrics_address,
        incarnation=described.incarnation,
    )


def to_proto(plane: Plane, instance: registry.Instance) -> mesh_pb2.Instance:
    """An instance as others see it."""
    return mesh_pb2.Instance(
        service=instance.service,
        name=instance.name,
        address=instance.address,
        pid=instance.pid,
        spiffe_id=plane.topology.spiffe_id(instance.service),
        state=PROTO_STATES[instance.effective_state],
        metrics_address=instance.metrics_address,
        register_time=timestamp(instance.register_time_s),
        incarnation=instance.incarnation,
    )


def _is_address(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return port.isascii() and port.isdigit() and 0 < int(port[:6]) <= PORT_MAX
