"""A servicer under the chassis on a loopback port with mTLS, called over a link or plainly.

`toy` methods take and give bytes; what they do is said by the test that registers them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis.channel import CHANNEL_OPTIONS, MeshChannel
from mesh.chassis.identity import Identity
from mesh.chassis.link.links import Links
from mesh.chassis.server import MeshServer
from tests.support.control_plane import until
from tests.support.pki import TestMesh

SERVICE = "toy.v1.ToyService"
CALLER = "gateway"
WAYS = ("plain", "link")
KINDS = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


def method_policy(name: str, **fields: Any) -> mesh_pb2.MethodPolicy:
    """The caller may call it; the deadline is 20 s unless said otherwise."""
    values = {
        "allowed_spiffe_ids": [f"spiffe://chatmesh/{CALLER}"],
        "deadline_ms": 20_000,
        **fields,
    }
    return mesh_pb2.MethodPolicy(method=f"{SERVICE}/{name}", **values)


@dataclass
class Toy:
    """A server with methods: name → (kind, behaviour)."""

    mesh: TestMesh
    methods: Mapping[str, tuple[str, Callable[..., Any]]]
    instance: str = "toy-1"
    offers_links: bool = True
    connection_age_max_s: float = 60.0
    policies: dict[str, mesh_pb2.MethodPolicy] = field(default_factory=dict)
    # Services beside the toy's: (name, handlers by method).
    others: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    address: str = ""

    async def start(self) -> None:
        for name in self.methods:
            self.policies.setdefault(f"{SERVICE}/{name}", method_policy(name))
        own = self.mesh.identity("toy")
        name = self.instance if self.offers_links else ""
        self.server = MeshServer(own, lambda: self.policies, self.connection_age_max_s, name)
        services = [(_register, self.methods), *((_register_other, each) for each in self.others)]
        self.address = await self.server.start(services, "127.0.0.1")

    @property
    def described(self) -> mesh_pb2.Instance:
        return mesh_pb2.Instance(
            service="toy",
            name=self.instance,
            address=self.address,
            state=mesh_pb2.INSTANCE_STATE_SERVING,
        )


def _register(methods: Mapping[str, tuple[str, Callable[..., Any]]], server: Any) -> None:
    handlers = {name: KINDS[kind](behaviour) for name, (kind, behaviour) in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


def _register_other(service: tuple[str, dict[str, Any]], server: Any) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(*service),))


class Fleet:
    """What the control plane would say of the instances."""

    def __init__(self, toys: Sequence[Toy] = ()) -> None:
        self._instances = tuple(toy.described for toy in toys)
        self._changed = asyncio.Event()

    def set(self, *instances: mesh_pb2.Instance) -> None:
        self._instances = instances
        self._changed.set()

    async def watch(self) -> AsyncIterator[tuple[mesh_pb2.Instance, ...]]:
        while True:
            self._changed.clear()
            yield self._instances
            await self._changed.wait()


def caller_channel(address: str, own: Identity) -> grpc.aio.Channel:
    """A channel to one or more addresses ("ipv4:A:P,B:P"), round robin."""
    options = [
        *CHANNEL_OPTIONS,
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.ssl_target_name_override", "localhost"),
        # Each channel a connection of its own, as two processes have.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.secure_channel(address, own.channel_credentials(), options=options)


def open_links(channel: MeshChannel) -> list[Any]:
    """The links of a channel on which calls may begin."""
    peers = channel.links._peers.values() if channel.links else ()
    return [peer.link for peer in peers if peer.link is not None and peer.link.is_open]


@contextlib.asynccontextmanager
async def calling(
    way: str, toys: Sequence[Toy], fleet: Fleet | None = None, caller: str = CALLER
) -> AsyncIterator[MeshChannel]:
    """A channel to started servers; with way "link" all their links are open."""
    inner = caller_channel(
        "ipv4:" + ",".join(toy.address for toy in toys), toys[0].mesh.identity(caller)
    )
    # The caller knows the policies of all as its control plane tells them.
    policies = {name: policy for toy in toys for name, policy in toy.policies.items()}
    fleet = fleet or Fleet(toys)
    links = Links("toy", inner, fleet.watch) if way == "link" else None
    async with MeshChannel(inner, lambda: policies, links) as channel:
        if links is not None:
            links.pick(())
            expected = sum(toy.offers_links for toy in toys)
            await until(lambda: len(open_links(channel)) >= expected, "the links are open")
        yield channel


@contextlib.asynccontextmanager
async def serving(toy: Toy) -> AsyncIterator[Toy]:
    """Starts a server; stops it without grace."""
    await toy.start()
    try:
        yield toy
    finally:
        await toy.server.stop(0)


@contextlib.asynccontextmanager
async def toy_channel(
    way: str, folder: Path, methods: Mapping[str, tuple[str, Callable[..., Any]]], **fields: Any
) -> AsyncIterator[tuple[Toy, MeshChannel]]:
    """One server and a channel to it."""
    async with (
        serving(Toy(TestMesh(folder), methods, **fields)) as toy,
        calling(way, [toy]) as channel,
    ):
        yield toy, channel


def method(channel: MeshChannel, kind: str, name: str) -> Any:
    """A multi-callable of the toy service."""
    return getattr(channel, kind)(f"/{SERVICE}/{name}")
