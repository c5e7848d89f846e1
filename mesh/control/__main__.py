"""Runs the control plane: settings → telemetry → state → services → serve."""

import asyncio
import contextlib
import datetime
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import structlog
import uvloop
from envoy.service.discovery.v3 import ads_pb2_grpc

from chatmesh.mesh.v1 import mesh_pb2_grpc
from mesh.chassis import telemetry
from mesh.chassis.files import write_public
from mesh.control import ca, serving, watch
from mesh.control.ads_service import AdsService
from mesh.control.edge import Edge, WebCertificate
from mesh.control.issuer import Issuer, OwnCertificate
from mesh.control.plane import Plane
from mesh.control.registry import Registry
from mesh.control.registry_service import RegistryService
from mesh.control.render import CONTROL
from mesh.control.service import CertificateService, MeshAdminService
from mesh.control.settings import EdgeSettings, Settings
from mesh.control.store import StateFolder

# Streams here never end by themselves.
STOP_GRACE_S = 0.5

log = structlog.get_logger()


def utc_now() -> datetime.datetime:
    """The clock of certificates and tokens."""
    return datetime.datetime.now(datetime.UTC)


async def run(settings: Settings, edge_settings: EdgeSettings) -> None:
    """Serves until SIGTERM or SIGINT."""
    folder = StateFolder(settings.state_dir)
    authority = ca.load_or_create(folder.path, "ca", "chatmesh mesh", utc_now())
    lifetime = datetime.timedelta(seconds=settings.cert_lifetime_s)
    certificate = WebCertificate(edge_settings, folder, utc_now)
    file = watch.TopologyFile(settings.topology)
    edge = Edge(edge_settings, certificate, authority.trust_bundle_pem)

    instances, version = folder.load_registry()
    leases = Registry(settings.lease_ttl_ms / 1000)
    leases.restore(instances, time.monotonic() + settings.restore_grace_s)
    log.info("instances_restored", count=len(instances))
    plane = Plane(file.topology, leases, folder, version, edge.resources)
    issuer = Issuer(
        authority, lambda: plane.topology, folder, lifetime, settings.operator_token_file
    )
    own = OwnCertificate(
        authority, plane.topology.spiffe_id(CONTROL), settings.names, lifetime, utc_now
    )

    ads = AdsService(plane)
    certificates = CertificateService(plane, issuer, utc_now)
    mesh, join = serving.mesh_server(plane), serving.join_server()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ads, mesh)
    mesh_pb2_grpc.add_RegistryServiceServicer_to_server(
        RegistryService(plane, settings.lease_ttl_ms), mesh
    )
    mesh_pb2_grpc.add_MeshAdminServiceServicer_to_server(
        MeshAdminService(plane, issuer, ads, utc_now), mesh
    )
    for server in (mesh, join):
        mesh_pb2_grpc.add_CertificateServiceServicer_to_server(certificates, server)
    address = serving.bind(
        mesh, own.credentials(require_client_certificate=True), settings.address, folder, "port"
    )
    join_address = serving.bind(
        join,
        own.credentials(require_client_certificate=False),
        settings.join_address,
        folder,
        "join-port",
    )

    async with _background(
        watch.expire_leases(plane, settings.lease_ttl_ms),
        file.follow(plane),
        watch.follow_certificate(plane, certificate),
    ):
        await mesh.start()
        await join.start()
        metrics_address = telemetry.serve_metrics(address.rpartition(":")[0])
        write_public(folder.path / "metrics-address", f"{metrics_address}\n")
        folder.save_address("address", address)
        folder.save_address("join-address", join_address)
        log.info("serving", address=address, join_address=join_address, pid=os.getpid())
        await _asked_to_stop()
        # Instances that outlive us must be found again by our next life.
        plane.freeze()
        await asyncio.gather(mesh.stop(STOP_GRACE_S), join.stop(STOP_GRACE_S))
    log.info("stopped")


@contextlib.asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs endless work beside the block; when one of them fails, the process ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in work]
        yield
        for task in tasks:
            task.cancel()


async def _asked_to_stop() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()


def main() -> None:
    """Reads the settings and runs; tells what is wrong with them in one line."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # the environment fills it
        telemetry.configure(CONTROL, "control-1", settings.log_level)
        uvloop.run(run(settings, EdgeSettings()))
    except (OSError, ValueError) as error:
        log.error("cannot_start", problem=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
