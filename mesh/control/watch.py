"""What changes while we run: silent leases, the topology, the edge's certificate."""

import asyncio
import time
from pathlib import Path

import structlog

from mesh.chassis.followed_file import FollowedFile
from mesh.control.edge import WebCertificate
from mesh.control.plane import Plane
from mesh.control.snapshot import SnapshotError
from mesh.topology import TopologyError, parse

POLL_INTERVAL_S = 0.25
CERTIFICATE_INTERVAL_S = 1.0

log = structlog.get_logger()


async def expire_leases(plane: Plane, lease_ttl_ms: int) -> None:
    """Drops silent instances, at most two tenths of the lease time late. Runs for ever."""
    tick_s = lease_ttl_ms / 10_000
    while True:
        planned = time.monotonic() + tick_s
        await asyncio.sleep(tick_s)
        now = time.monotonic()
        # When we ourselves were held up, what they sent meanwhile is still to be read.
        if now - planned < tick_s:
            plane.expire(now)


class TopologyFile:
    """A topology file that is taken up when it changes."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError, ValueError: the file cannot be used; TopologyError among them.
        """
        self._file = FollowedFile(
            path, parse=lambda text: parse(text, path.name), refused=_refuse_topology
        )
        self.topology = self._file.load()

    async def follow(self, plane: Plane) -> None:
        """Looks again and again. Runs for ever."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.take(plane)

    def take(self, plane: Plane) -> bool:
        """Puts a new version in force; one that is no good is reported once, the old one stays."""
        taken = self._file.refresh(plane.set_topology)
        if taken:
            log.info("topology_changed", snapshot_version=plane.snapshot.version)
        return taken


def _refuse_topology(error: OSError | ValueError) -> None:
    if isinstance(error, TopologyError | SnapshotError):
        log.error("topology_refused", problems=error.problems)
    else:
        log.error("topology_unreadable", problem=str(error))


async def follow_certificate(plane: Plane, certificate: WebCertificate) -> None:
    """Serves a new public certificate as soon as there is one. Runs for ever."""
    while True:
        await asyncio.sleep(CERTIFICATE_INTERVAL_S)
        if certificate.refresh():
            log.info("web_certificate_changed")
            plane.refresh()
