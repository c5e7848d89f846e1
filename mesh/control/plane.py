"""The state of the mesh, and its one way to change: build → check → swap → tell the streams."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

import structlog
from prometheus_client import Counter, Gauge

from mesh.control import policy, registry, render, snapshot
from mesh.control.snapshot import Kind, Snapshot
from mesh.control.store import StateFolder
from mesh.topology import Topology
from mesh.xds import Resources

log = structlog.get_logger()
_version = Gauge("chatmesh_control_snapshot_version", "Version of the xDS snapshot in force")
_instances = Gauge("chatmesh_control_instances", "Live instances", ["service", "state"])
_refused = Counter("chatmesh_control_snapshots_refused_total", "Snapshots that failed their check")

# What the edge adds to Envoy's clusters; given the table and the live instances.
EdgeResources = Callable[[Topology, tuple[registry.Instance, ...]], Resources]


class Plane:
    """Topology, registry and snapshot of one mesh. Lives on one event loop."""

    def __init__(
        self,
        topology: Topology,
        leases: registry.Registry,
        folder: StateFolder,
        version: int,
        edge: EdgeResources | None = None,
    ) -> None:
        """`version`: of the last snapshot of a former life; ours are higher.

        Raises:
            SnapshotError: the first snapshot does not pass its check.
        """
        self.topology, self._leases, self._folder, self._edge = topology, leases, folder, edge
        self._listeners: set[asyncio.Event] = set()
        self._frozen = False
        self._policies = _derive_policies(topology)
        self.snapshot: Snapshot = snapshot.EMPTY
        self.snapshot = self._build(version + 1, topology)
        self._publish()

    # Reading

    def policy(self, name: str) -> policy.Policy:
        """Policy of a service or identity of the topology.

        Raises:
            KeyError: the topology has no such name.
        """
        return self._policies[name]

    def instances(self, service: str | None = None) -> tuple[registry.Instance, ...]:
        """Live instances, of one service or of all, sorted by name."""
        return self._leases.instances(service)

    def get(self, name: str) -> registry.Instance | None:
        """The live instance of that name."""
        return self._leases.get(name)

    def holds(self, name: str, holder: int) -> bool:
        """Whether a stream still holds an instance."""
        return self._leases.holds(name, holder)

    @contextlib.contextmanager
    def listening(self, wake: asyncio.Event) -> Iterator[None]:
        """Sets `wake` at every change while the block runs."""
        self._listeners.add(wake)
        try:
            yield
        finally:
            self._listeners.discard(wake)

    # Changing

    def renew(self, instance: registry.Instance, holder: int, now_s: float, wall_s: float) -> None:
        """Registers or renews; see `Registry.renew` for the errors."""
        if self._leases.renew(instance, holder, now_s, wall_s):
            log.info("instance_seen", instance=instance.name, state=instance.state.value)
            self._commit()

    def release(self, name: str, holder: int) -> None:
        """The stream that held an instance has ended."""
        # When we are the ones who leave, the instances are still there.
        if not self._frozen and self._leases.release(name, holder):
            log.info("instance_left", instance=name)
            self._commit()

    def expire(self, now_s: float) -> None:
        """Drops the instances that were silent too long."""
        if self._frozen:
            return
        silent = self._leases.expire(now_s)
        if silent:
            log.warning("instances_silent", instances=silent)
            self._commit()

    def drain(self, name: str) -> None:
        """Takes an instance out of balancing.

        Raises:
            KeyError: no such instance lives.
        """
        if self._leases.drain(name):
            log.info("instance_drained", instance=name)
            self._commit()

    def set_topology(self, topology: Topology) -> None:
        """Puts a new topology in force.

        Raises:
            SnapshotError: what would be served does not pass its check; the old one stays.
        """
        built = self._build(self.snapshot.version + 1, topology)
        self.topology, self._policies = topology, _derive_policies(topology)
        self._swap(built)
        self._publish()

    def refresh(self) -> None:
        """Builds anew, for example because the edge's certificate has changed."""
        self._commit()

    def freeze(self) -> None:
        """We are about to stop: from now on the end of a stream says nothing of its instance."""
        self._frozen = True

    def _commit(self) -> None:
        try:
            self._swap(self._build(self.snapshot.version + 1, self.topology))
        except snapshot.SnapshotError as error:
            _refused.inc()
            log.error("snapshot_refused", problems=error.problems)
        self._publish()

    def _build(self, version: int, topology: Topology) -> Snapshot:
        live = self._leases.instances()
        rendered: Mapping[Kind, Resources] = {
            "grpc": render.for_grpc(topology, live),
            "envoy": self._edge(topology, live) if self._edge else {},
        }
        return snapshot.build(version, rendered, self.snapshot)

    def _swap(self, built: Snapshot) -> None:
        if not built.same_content(self.snapshot):
            self.snapshot = built

    def _publish(self) -> None:
        """Keeps what is in force, then tells everybody who listens."""
        live = self._leases.instances()
        self._folder.save_registry(live, self.snapshot.version)
        _version.set(self.snapshot.version)
        _instances.clear()
        for instance in live:
            _instances.labels(instance.service, instance.effective_state.value).inc()
        for wake in self._listeners:
            wake.set()


def _derive_policies(topology: Topology) -> Mapping[str, policy.Policy]:
    return {name: policy.derive(topology, name) for name in topology.names()}
