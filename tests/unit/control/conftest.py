"""A control plane inside the test's own process, served over real TLS on loopback."""

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc

from chatmesh.mesh.v1 import mesh_pb2_grpc
from mesh import topology
from mesh.chassis.identity import Identity, new_key, publish
from mesh.control import ca, serving
from mesh.control.ads_service import AdsService
from mesh.control.edge import Edge, WebCertificate
from mesh.control.issuer import Issuer, OwnCertificate
from mesh.control.plane import Plane
from mesh.control.registry import Registry
from mesh.control.registry_service import RegistryService
from mesh.control.service import CertificateService, MeshAdminService
from mesh.control.settings import EdgeSettings
from mesh.control.store import StateFolder

NAMES = ("localhost", "127.0.0.1")
HOUR = datetime.timedelta(hours=1)
LEASE_TTL_MS = 600


class Clock:
    """Time that stands still until it is moved; behind the real one, which TLS checks."""

    def __init__(self) -> None:
        self.now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=31)

    def __call__(self) -> datetime.datetime:
        return self.now


@dataclass
class Control:
    """The parts of a control plane, and its two addresses."""

    folder: StateFolder
    clock: Clock
    operator_token_file: Path
    authority: ca.CertificateAuthority = field(init=False)
    plane: Plane = field(init=False)
    issuer: Issuer = field(init=False)
    address: str = ""
    join_address: str = ""

    def __post_init__(self) -> None:
        self.authority = ca.load_or_create(self.folder.path, "ca", "test", self.clock())
        self.certificate = WebCertificate(EdgeSettings(), self.folder, self.clock)
        edge = Edge(EdgeSettings(), self.certificate, self.authority.trust_bundle_pem)
        instances, version = self.folder.load_registry()
        leases = Registry(LEASE_TTL_MS / 1000)
        leases.restore(instances, time.monotonic() + 60)
        self.plane = Plane(topology.load(), leases, self.folder, version, edge.resources)
        self.issuer = Issuer(
            self.authority, lambda: self.plane.topology, self.folder, HOUR, self.operator_token_file
        )
        self.own = OwnCertificate(
            self.authority, "spiffe://chatmesh/control", NAMES, HOUR, self.clock
        )

    def identity(self, name: str) -> Identity:
        """A certificate without the wire."""
        key, request = new_key()
        issued = self.issuer.renew(name, request, self.clock())
        folder = self.folder.path / "test" / name
        return publish(folder, key, issued.certificate_chain_pem, self.issuer.trust_bundle_pem)

    def channel(self, name: str) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self.address, self.identity(name).channel_credentials())

    def join_channel(self) -> grpc.aio.Channel:
        roots = self.authority.trust_bundle_pem.encode()
        return grpc.aio.secure_channel(self.join_address, grpc.ssl_channel_credentials(roots))


@contextlib.asynccontextmanager
async def served(control: Control) -> AsyncIterator[Control]:
    plane, clock = control.plane, control.clock
    ads = AdsService(plane)
    mesh, join = serving.mesh_server(plane), serving.join_server()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads, mesh)
    mesh_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryService(plane, LEASE_TTL_MS), mesh)
    mesh_pb2_grpc.add_MeshAdminServiceServicer_to_server(
        MeshAdminService(plane, control.issuer, ads, clock), mesh
    )
    for server in (mesh, join):
        mesh_pb2_grpc.add_CertificateServiceServicer_to_server(
            CertificateService(plane, control.issuer, clock), server
        )
    both, token_only = (
        control.own.credentials(require_client_certificate=required) for required in (True, False)
    )
    control.address = serving.bind(mesh, both, "127.0.0.1:0", control.folder, "port")
    control.join_address = serving.bind(join, token_only, "127.0.0.1:0", control.folder, "join")
    await asyncio.gather(mesh.start(), join.start())
    try:
        yield control
    finally:
        await asyncio.gather(mesh.stop(0), join.stop(0))


@pytest.fixture
def make_control(tmp_path: Path) -> Callable[[], Control]:
    """Makes a control plane on the test's state folder; again for a restart."""
    clock = Clock()

    def make() -> Control:
        return Control(StateFolder(tmp_path / "state"), clock, tmp_path / "operator-token")

    return make


@pytest.fixture
async def control(make_control: Callable[[], Control]) -> AsyncIterator[Control]:
    async with served(make_control()) as running:
        yield running
