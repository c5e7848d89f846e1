"""The wire of ADS: streams of proxyless gRPC clients and of Envoy, bound to their identities."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import structlog
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import timestamp_pb2
from prometheus_client import Counter, Gauge

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis.errors import MeshError
from mesh.chassis.server import spiffe_ids
from mesh.control.ads import AdsSession, BadRequestError, TypeState
from mesh.control.edge import EDGE
from mesh.control.inbox import Inbox
from mesh.control.plane import Plane

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
ENVOY_AGENT = "envoy"
# A process opens one stream for each service that it calls.
STREAMS_MAX = 10_000

log = structlog.get_logger()
_streams = Gauge("chatmesh_control_ads_streams", "Open ADS streams", ["kind"])
_nacks = Counter("chatmesh_control_ads_nacks_total", "Responses that were refused", ["kind"])


@dataclass(frozen=True)
class _Stream:
    node_id: str
    spiffe_id: str
    session: AdsSession


class AdsService(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]  # untyped
    """State-of-the-world ADS."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._streams: dict[int, _Stream] = {}
        self._numbers = itertools.count(1)

    async def StreamAggregatedResources(  # noqa: N802, D102
        self, request_iterator: AsyncIterator[discovery_pb2.DiscoveryRequest], context: Context
    ) -> AsyncIterator[discovery_pb2.DiscoveryResponse]:
        wake, number = asyncio.Event(), next(self._numbers)
        stream: _Stream | None = None
        try:
            with self._plane.listening(wake):
                async with Inbox(request_iterator, wake) as inbox:
                    while not inbox.ended:
                        wake.clear()
                        for request in inbox.take():
                            stream = stream or self._open(number, request, context)
                            _take(stream, request)
                        if stream is not None:
                            # A slow reader holds this loop, not a queue: what it gets next is
                            # the newest snapshot.
                            for response in stream.session.poll(self._plane.snapshot):
                                yield response
                        await wake.wait()
        finally:
            self._close(number)

    def subscriptions(self) -> list[mesh_pb2.Subscription]:
        """What each client has of each type, one line a client and type.

        A proxyless client has a stream for each service it calls. Their lines are merged: the
        oldest version accepted, the newest refusal.
        """
        lines: dict[tuple[str, str], mesh_pb2.Subscription] = {}
        for stream in self._streams.values():
            for type_url, state in stream.session.types.items():
                line = _line(stream, type_url, state)
                old = lines.get((stream.node_id, type_url))
                lines[stream.node_id, type_url] = _merged(old, line) if old else line
        return [lines[key] for key in sorted(lines)]

    def _open(
        self, number: int, first: discovery_pb2.DiscoveryRequest, context: Context
    ) -> _Stream:
        """Binds the stream to its peer: nobody gets what was made for another.

        Raises:
            MeshError: PERMISSION_DENIED (WRONG_IDENTITY), RESOURCE_EXHAUSTED (BAD_REQUEST).
        """
        node = first.node
        topology = self._plane.topology
        claimed = topology.spiffe_id(node.cluster)
        if not node.id or claimed not in spiffe_ids(context):
            raise MeshError(
                grpc.StatusCode.PERMISSION_DENIED,
                "WRONG_IDENTITY",
                f"Node {node.id!r} says that it is {node.cluster!r}, its certificate does not; "
                "set node.id, and node.cluster to the service of the certificate.",
                metadata={"peer": ",".join(spiffe_ids(context)), "cluster": node.cluster},
            )
        if len(self._streams) >= STREAMS_MAX:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "BAD_REQUEST",
                f"{STREAMS_MAX} streams are open; run another control plane.",
                retry_after_s=1,
            )
        is_envoy = node.user_agent_name == ENVOY_AGENT
        session = AdsSession("envoy" if is_envoy else "grpc", secrets=node.cluster == EDGE)
        stream = self._streams[number] = _Stream(node.id, claimed, session)
        _streams.labels(session.kind).inc()
        log.info("ads_opened", node=node.id, agent=node.user_agent_name)
        return stream

    def _close(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            _streams.labels(stream.session.kind).dec()
            log.info("ads_closed", node=stream.node_id)


def _take(stream: _Stream, request: discovery_pb2.DiscoveryRequest) -> None:
    try:
        nack = stream.session.on_request(request, time.time())
    except BadRequestError as error:
        raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", f"{error}.") from error
    if nack is not None:
        _nacks.labels(stream.session.kind).inc()
        log.error("ads_refused", node=stream.node_id, type_url=request.type_url, problem=nack)


def _line(stream: _Stream, type_url: str, state: TypeState) -> mesh_pb2.Subscription:
    updated = timestamp_pb2.Timestamp()
    updated.FromMilliseconds(int(state.update_time_s * 1000))
    return mesh_pb2.Subscription(
        node_id=stream.node_id,
        spiffe_id=stream.spiffe_id,
        client_kind=stream.session.kind,
        type_url=type_url,
        acked_version=state.acked_version,
        nacked_version=state.nacked_version,
        nack_message=state.nack_message,
        update_time=updated,
    )


def _merged(left: mesh_pb2.Subscription, right: mesh_pb2.Subscription) -> mesh_pb2.Subscription:
    refused = max(left, right, key=lambda line: line.nacked_version)
    newest = max(left, right, key=lambda line: line.update_time.ToMilliseconds())
    merged = mesh_pb2.Subscription()
    merged.CopyFrom(newest)
    merged.acked_version = min(left.acked_version, right.acked_version)
    merged.nacked_version = refused.nacked_version
    merged.nack_message = refused.nack_message
    return merged
