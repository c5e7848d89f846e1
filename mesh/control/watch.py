"""What changes while we run: silent leases, the topology, the edge's certificate."""

import asyncio
import time
from pathlib import Path

import structlog

from mesh.control.edge import WebCertificate
from mesh.control.plane import Plane
from mesh.control.snapshot import SnapshotError
from mesh.topology import TopologyError, load

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
        OSError, TopologyError: the file cannot be used.
        """
        self._path = path
        # Before it is read: a change in between is seen as one more change.
        self._seen = _signature(path)
        self.topology = load(path)

    async def follow(self, plane: Plane) -> None:
        """Looks again and again. Runs for ever."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.take(plane)

    def take(self, plane: Plane) -> bool:
        """Puts a new version in force; one that is no good is reported, and the old one stays.

        True when the file has changed since the last look.
        """
        signature = _signature(self._path)
        if signature == self._seen:
            return False
        self._seen = signature
        try:
            plane.set_topology(load(self._path))
        except (TopologyError, SnapshotError) as error:
            log.error("topology_refused", problems=error.problems)
        except (OSError, UnicodeDecodeError) as error:
            log.error("topology_unreadable", problem=str(error))
        else:
            log.info("topology_changed", snapshot_version=plane.snapshot.version)
        return True


async def follow_certificate(plane: Plane, certificate: WebCertificate) -> None:
    """Serves a new public certificate as soon as there is one. Runs for ever."""
    while True:
        await asyncio.sleep(CERTIFICATE_INTERVAL_S)
        if certificate.refresh():
            log.info("web_certificate_changed")
            plane.refresh()


def _signature(path: Path) -> tuple[int, int, int]:
    """Changes when the file is written or replaced; zeros when it is away."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
