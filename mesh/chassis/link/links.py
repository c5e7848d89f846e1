"""The links to the instances of one service, and the choice among them.

Which instances there are is said by the control plane (RegistryService.WatchInstances); whether
one may be trusted, and where it is, by xDS as for plain calls: a link is a call on the same channel
that names its instance. While there is no link to go by, calls are plain.
"""

import asyncio
import contextvars
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from chatmesh.mesh.v1 import link_pb2_grpc, mesh_pb2
from mesh.chassis.background import kept
from mesh.chassis.errors import MeshError
from mesh.chassis.link.client import CallDetails, ClientLink
from mesh.chassis.link.flow import Flow, Sink
from mesh.chassis.link.framing import Metadata
from mesh.chassis.link.outliers import Outliers
from mesh.chassis.link.plain import PlainAttempt
from mesh.chassis.link.traffic import calls_begun, links_open

# Names an instance; the routes of mesh/control/render.py read it.
INSTANCE_KEY = "x-chatmesh-instance"
REOPEN_S_MIN = 0.05
REOPEN_S_MAX = 5.0
# They will say the same until another process stands there.
WITHOUT_LINKS = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED}

Instances = AsyncIterator[tuple[mesh_pb2.Instance, ...]]

log = structlog.get_logger()
_linked, _plain = calls_begun.labels("link"), calls_begun.labels("plain")


@dataclass(slots=True, eq=False)
class Peer:
    """One instance, from its start to its end."""

    name: str
    link: ClientLink | None = None
    # It offers no links.
    is_plain: bool = False
    # It is to be called, as far as the control plane knows.
    is_serving: bool = True


class Links:
    """Links to the instances of `service` over `channel`.

    Args:
        watch: gives the live instances, at once and on every change.
    """

    def __init__(
        self, service: str, channel: grpc.aio.Channel, watch: Callable[[], Instances]
    ) -> None:
        self._service, self._channel, self._watch = service, channel, watch
        self._stub = link_pb2_grpc.LinkServiceStub(channel)
        # By name, address and process: who takes the place of another is another.
        self._peers: dict[tuple[str, str, int, str], Peer] = {}
        # The same by name, and of those the ones that offer no links.
        self._serving: dict[str, Peer] = {}
        self._without: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()
        self._is_begun = False
        self._turn = 0
        self._outliers = Outliers()

    def pick(self, metadata: Metadata) -> ClientLink | None:
        """The link for a call with this metadata; None: a plain call it is.

        The instance that the metadata names, else one after the other.
        """
        if not self._is_begun:
            self._begin()
        named = next((value for key, value in metadata if key == INSTANCE_KEY), None)
        if isinstance(named, str) and named in self._serving:
            found = self._open_links((named,))
        elif self._without:
            # All by xDS: else the instances with links would get more than their share.
            found = []
        else:
            found = self._open_links(self._outliers.usable(tuple(self._serving)))
        if not found:
            _plain.inc()
            return None
        _linked.inc()
        self._turn += 1
        return found[self._turn % len(found)]

    def _open_links(self, names: Sequence[str]) -> list[ClientLink]:
        links = [self._serving[name].link for name in names]
        return [link for link in links if link is not None and link.has_room]

    def begin(self, details: CallDetails, sink: Sink) -> tuple[Flow | PlainAttempt, str]:
        """Begins a call that was begun before; also the name of the instance, "" if unknown."""
        link = self.pick(details.metadata)
        if link is None:
            return PlainAttempt(self._channel, details, sink), ""
        return link.begin(details, sink), link.name

    def note_end(self, name: str, is_ok: bool) -> None:
        """Tells how a call to the instance `name` ended."""
        if name:
            self._outliers.note(name, is_ok, time.monotonic())

    async def close(self) -> None:
        """Ends all links, and the calls on them."""
        self._is_begun = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        self._is_begun = True
        # Without it calls are plain: slower, and no reason to end the process.
        self._start(kept(f"links to {self._service}", self._follow, ends_max=None))

    def _start(self, work: Any) -> asyncio.Task[None]:
        # Not in the context of the call that came first: its deadline and trace are its own.
        task = self.loop.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self) -> None:
        try:
            async for instances in self._watch():
                self._take(instances)
        finally:  # nobody says any more who there is: all calls are plain
            self._take(())

    def _take(self, instances: Sequence[mesh_pb2.Instance]) -> None:
        serving = {
            (one.name, one.address, one.pid, one.incarnation)
            for one in instances
            if one.address and one.state == mesh_pb2.INSTANCE_STATE_SERVING
        }
        for key in self._peers.keys() - serving:
            self._retire(self._peers.pop(key))
        for key in serving - self._peers.keys():
            peer = self._peers[key] = Peer(key[0])
            self._start(self._keep(peer))
        self._note_peers()

    def _note_peers(self) -> None:
        self._serving = {peer.name: peer for peer in self._peers.values()}
        self._without = frozenset(peer.name for peer in self._peers.values() if peer.is_plain)

    def _retire(self, peer: Peer) -> None:
        peer.is_serving = False
        if peer.link is not None:
            peer.link.leave()  # what runs on it ends first

    async def _keep(self, peer: Peer) -> None:
        """Keeps a link open to a peer for as long as it serves."""
        delay_s = REOPEN_S_MIN
        while peer.is_serving:
            begun = time.monotonic()
            link = peer.link = ClientLink(peer.name, lambda: self._open_stream(peer.name))
            running = self._start(self._run(link))
            try:
                await link.left.wait()
            except asyncio.CancelledError:
                running.cancel()
                raise
            if isinstance(link.error, grpc.aio.AioRpcError) and link.error.code() in WITHOUT_LINKS:
                peer.is_plain = True
                self._note_peers()
                log.info("link_not_offered", instance=peer.name, code=link.error.code().name)
                return
            if time.monotonic() - begun > REOPEN_S_MAX:
                delay_s = REOPEN_S_MIN
            if link.error is not None and peer.is_serving:
                log.info("link_lost", instance=peer.name, reason=_reason(link.error))
            await asyncio.sleep(delay_s * random.uniform(0.8, 1.2))  # noqa: S311
            delay_s = min(delay_s * 2, REOPEN_S_MAX)

    async def _run(self, link: ClientLink) -> None:
        gauge = links_open.labels(self._service)
        is_counted = False

        def opened() -> None:
            nonlocal is_counted
            is_counted = True
            gauge.inc()

        try:
            await link.run(opened)
        finally:
            if is_counted:
                gauge.dec()

    def _open_stream(self, name: str) -> Any:
        return self._stub.Open(metadata=((INSTANCE_KEY, name),), wait_for_ready=False)


def _reason(error: grpc.aio.AioRpcError | MeshError) -> str:
    return error.code().name if isinstance(error, grpc.aio.AioRpcError) else error.message
