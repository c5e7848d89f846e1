"""Which instances live. Pure: time comes in, nothing goes out.

An instance is held by a stream (its holder). It leaves when the holder lets go, or is silent for
the lease time. After a restart of the control plane instances have no holder; they stay for a
grace period in which their processes take their leases again.
"""

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# About ten times the size that one ADS server of this kind is meant for.
INSTANCES_MAX = 2_000


class State(enum.StrEnum):
    """What an instance does."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class InstanceTakenError(RuntimeError):
    """Another live process holds the lease of this name."""


class TooManyInstancesError(RuntimeError):
    """INSTANCES_MAX are registered."""


@dataclass(frozen=True)
class Instance:
    """One process of a service."""

    service: str
    name: str
    # host:port; empty for those without a server.
    address: str
    pid: int
    state: State
    metrics_address: str = ""
    # Unix seconds of the first registration.
    register_time_s: float = 0.0
    # The operator asked it to drain; it stays so until the process is another.
    drain: bool = False
    # Drawn at random by the process; empty: it is of an older version.
    incarnation: str = ""

    def is_same_process(self, other: "Instance") -> bool:
        """Whether both describe one process: pids repeat, in containers at once."""
        if self.incarnation or other.incarnation:
            return self.incarnation == other.incarnation
        return self.pid == other.pid

    @property
    def effective_state(self) -> State:
        """DRAINING as soon as the operator asks, before the process says so itself."""
        if self.drain and self.state is State.SERVING:
            return State.DRAINING
        return self.state


@dataclass(frozen=True)
class _Lease:
    instance: Instance
    # None: restored, its process has not come back yet.
    holder: int | None
    # On the clock of `now` (monotonic seconds).
    expiry_s: float


class Registry:
    """The leases of a mesh."""

    def __init__(self, lease_ttl_s: float) -> None:
        self._lease_ttl_s = lease_ttl_s
        self._leases: dict[str, _Lease] = {}

    def restore(self, instances: Iterable[Instance], until_s: float) -> None:
        """Takes back instances of a former life; they stay until `until_s` unless re-leased."""
        for instance in instances:
            self._leases[instance.name] = _Lease(instance, None, until_s)

    def renew(self, instance: Instance, holder: int, now_s: float, wall_s: float) -> bool:
        """Registers an instance or renews its lease; True when others can see a change.

        Args:
            instance: as its process describes it.
            holder: number of the stream, never used again for another.
            now_s: monotonic seconds.
            wall_s: Unix seconds, kept as the time of a first registration.

        Raises:
            InstanceTakenError: another live process, or another service, holds the name.
            TooManyInstancesError: a new instance would be one too many.
        """
        old = self._leases.get(instance.name)
        if old is None and len(self._leases) >= INSTANCES_MAX:
            raise TooManyInstancesError(f"{INSTANCES_MAX} instances are registered")
        if old is not None and self._blocks(old, instance):
            raise InstanceTakenError(
                f"another process {old.instance.pid} holds {instance.name}; choose another name, "
                "or wait until its lease has ended"
            )
        if old is not None and old.instance.is_same_process(instance):
            instance = replace(
                instance, register_time_s=old.instance.register_time_s, drain=old.instance.drain
            )
        else:
            instance = replace(instance, register_time_s=wall_s, drain=False)
        self._leases[instance.name] = _Lease(instance, holder, now_s + self._lease_ttl_s)
        return old is None or old.instance != instance

    def _blocks(self, old: _Lease, new: Instance) -> bool:
        if old.instance.service != new.service:
            return True
        # The same process with a new stream resumes: its old stream is a broken connection.
        return old.holder is not None and not old.instance.is_same_process(new)

    def release(self, name: str, holder: int) -> bool:
        """Ends a lease; nothing happens (False) when another stream holds it by now."""
        if not self.holds(name, holder):
            return False
        del self._leases[name]
        return True

    def holds(self, name: str, holder: int) -> bool:
        """Whether the stream still holds the name."""
        lease = self._leases.get(name)
        return lease is not None and lease.holder == holder

    def expire(self, now_s: float) -> tuple[str, ...]:
        """Removes the instances that were silent too long; gives their names."""
        silent = tuple(name for name, lease in self._leases.items() if lease.expiry_s <= now_s)
        for name in silent:
            del self._leases[name]
        return silent

    def drain(self, name: str) -> bool:
        """Marks an instance as draining; True when it was not.

        Raises:
            KeyError: no such instance lives.
        """
        lease = self._leases[name]
        self._leases[name] = replace(lease, instance=replace(lease.instance, drain=True))
        return not lease.instance.drain

    def get(self, name: str) -> Instance | None:
        """The live instance of that name."""
        lease = self._leases.get(name)
        return lease.instance if lease else None

    def instances(self, service: str | None = None) -> tuple[Instance, ...]:
        """Live instances, of one service or of all, sorted by name."""
        return tuple(
            lease.instance
            for _, lease in sorted(self._leases.items())
            if service is None or lease.instance.service == service
        )


def dump(instances: Iterable[Instance], snapshot_version: int) -> str:
    """What a later life needs to know, as JSON."""
    return json.dumps(
        {
            "snapshot_version": snapshot_version,
            "instances": [asdict(instance) for instance in instances],
        }
    )


def parse(text: str) -> tuple[tuple[Instance, ...], int]:
    """Instances and snapshot version of a former life.

    Raises:
        ValueError: the text is not what `dump` writes.
    """
    try:
        content = json.loads(text)
        instances = tuple(_instance(fields) for fields in content["instances"])
        return instances, int(content["snapshot_version"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a registry file: {error!r}") from error


def _instance(fields: Mapping[str, Any]) -> Instance:
    return Instance(**{**fields, "state": State(fields["state"])})
