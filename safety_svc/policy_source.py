"""The policy in force: a file, read again when it changes; a bad new one changes nothing."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from prometheus_client import Counter, Gauge

from mesh.chassis.errors import MeshError
from mesh.chassis.followed_file import FollowedFile
from safety_svc.detectors.rulebook import Detectors, house_rules
from safety_svc.policy import Policy
from safety_svc.policy_file import read

_log = structlog.get_logger()
_reads = Counter("chatmesh_safety_policy_reads_total", "Policies read, by outcome.", ["outcome"])
_loaded = Gauge("chatmesh_safety_policy_loaded", "1 when a checked policy is in force.")


@dataclass(frozen=True, slots=True)
class Published:
    """A checked policy with the detectors made for it."""

    policy: Policy
    detectors: Detectors


def published(text: str, file: str) -> Published:
    """Checks a policy document and makes its detectors; raises YamlError."""
    policy = read(text, file)
    return Published(policy, Detectors(house_rules(), policy.terms, policy.allowed))


class PolicySource:
    """Publishes the policy of a file.

    Args:
        path: the YAML document; it may be missing or bad, then there is no policy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FollowedFile(
            path, parse=lambda text: published(text, str(path)), refused=self._refuse
        )

    @property
    def current(self) -> Published:
        """The policy in force; raises MeshError NO_POLICY when there is none."""
        if self._file.current is None:
            raise MeshError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "NO_POLICY",
                f"No checked safety policy is loaded. The operator must mend {self._path.name}; "
                "the log of the safety service says which line.",
            )
        return self._file.current

    def refresh(self) -> bool:
        """Reads the file when it changed; True when a new policy is in force."""
        return self._file.refresh(_announce)

    async def follow(self, interval_s: float) -> None:
        """Refreshes for ever."""
        await self._file.follow(interval_s, _announce)

    def _refuse(self, error: OSError | ValueError) -> None:
        _reads.labels("refused").inc()
        kept = self._file.current.policy.version if self._file.current else None
        _log.error("policy_refused", problem=str(error), kept_version=kept)


def _announce(found: Published) -> None:
    _reads.labels("published").inc()
    _loaded.set(1)
    _log.info("policy_published", version=found.policy.version, digest=found.policy.digest)
