"""The policy in force: a file, read again when it changes; a bad new one changes nothing."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from prometheus_client import Counter, Gauge

from mesh.chassis.errors import MeshError
from safety_svc.detectors.rulebook import Detectors, house_rules
from safety_svc.document import DocumentError
from safety_svc.policy import Policy
from safety_svc.policy_file import read

POLICY_BYTE_COUNT_MAX = 1 << 20

_log = structlog.get_logger()
_reads = Counter("chatmesh_safety_policy_reads_total", "Policies read, by outcome.", ["outcome"])
_loaded = Gauge("chatmesh_safety_policy_loaded", "1 when a checked policy is in force.")


@dataclass(frozen=True, slots=True)
class Published:
    """A checked policy with the detectors made for it."""

    policy: Policy
    detectors: Detectors


def published(text: str, file: str) -> Published:
    """Checks a policy document and makes its detectors; raises DocumentError."""
    policy = read(text, file)
    return Published(policy, Detectors(house_rules(), policy.terms, policy.allowed))


class PolicySource:
    """Publishes the policy of a file.

    Args:
        path: the YAML document; it may be missing or bad, then there is no policy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None
        self._published: Published | None = None

    @property
    def current(self) -> Published:
        """The policy in force; raises MeshError NO_POLICY when there is none."""
        if self._published is None:
            raise MeshError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "NO_POLICY",
                f"No checked safety policy is loaded. The operator must mend {self._path.name}; "
                "the log of the safety service says which line.",
            )
        return self._published

    def refresh(self) -> bool:
        """Reads the file when it changed; True when a new policy is in force."""
        try:
            data = self._path.read_bytes()[:POLICY_BYTE_COUNT_MAX]
        except OSError as error:
            if self._seen is not None or self._published is None:
                self._refuse(f"{self._path}: {error.strerror}; put the policy file there")
            self._seen = None
            return False
        if data == self._seen:
            return False
        self._seen = data
        try:
            found = published(data.decode(), str(self._path))
        except (DocumentError, UnicodeDecodeError) as error:
            self._refuse(str(error))
            return False
        self._published = found
        _reads.labels("published").inc()
        _loaded.set(1)
        _log.info("policy_published", version=found.policy.version, digest=found.policy.digest)
        return True

    async def follow(self, interval_s: float) -> None:
        """Refreshes for ever."""
        while True:
            await asyncio.sleep(interval_s)
            self.refresh()

    def _refuse(self, problem: str) -> None:
        _reads.labels("refused").inc()
        kept = self._published.policy.version if self._published else None
        _log.error("policy_refused", problem=problem, kept_version=kept)
