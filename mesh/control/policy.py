"""Method policies, as instances enforce them, derived from the topology."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from chatmesh.mesh.v1 import mesh_pb2
from mesh.topology import Method, Retry, Topology


@dataclass(frozen=True)
class Policy:
    """What one service must know of the topology."""

    # Digest of the two lists: equal content, equal version.
    version: str
    served_methods: tuple[mesh_pb2.MethodPolicy, ...]
    called_methods: tuple[mesh_pb2.MethodPolicy, ...]


def derive(topology: Topology, name: str) -> Policy:
    """The policy of a service or identity; an identity serves nothing."""
    service = topology.services.get(name)
    served = _policies(topology, service.methods if service else ())
    called = _policies(topology, topology.called_by(name))
    digest = hashlib.sha256()
    for policy in (*served, None, *called):
        # None marks where one list ends: a method moved between them is a change.
        digest.update(b"\0" if policy is None else policy.SerializeToString(deterministic=True))
    return Policy(digest.hexdigest()[:16], served, called)


def _policies(topology: Topology, methods: Iterable[Method]) -> tuple[mesh_pb2.MethodPolicy, ...]:
    return tuple(
        mesh_pb2.MethodPolicy(
            method=method.name,
            allowed_spiffe_ids=[topology.spiffe_id(caller) for caller in method.callers],
            deadline_ms=method.deadline_ms,
            deadline_optional=method.deadline_optional,
            repeatable=method.retry is Retry.REPEATABLE,
        )
        for method in methods
    )
