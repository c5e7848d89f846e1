"""Where a running copy keeps its files: one private folder, `.chatmesh` by default."""

import dataclasses
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Home:
    """Paths below the folder of one copy."""

    folder: Path

    @classmethod
    def find(cls) -> "Home":
        """The folder that CHATMESH_HOME names, or `.chatmesh` in the project."""
        return cls(Path(os.environ.get("CHATMESH_HOME", PROJECT / ".chatmesh")).resolve())

    def make(self) -> None:
        """Creates the folders, readable by nobody else."""
        for path in (self.folder, self.log, self.run, self.control, self.operator, self.nodes):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        """One log file a process."""
        return self.folder / "log"

    @property
    def run(self) -> Path:
        """What is true only while the copy runs."""
        return self.folder / "run"

    @property
    def control(self) -> Path:
        """The control plane's state: CA, registry, addresses."""
        return self.folder / "control"

    @property
    def operator(self) -> Path:
        """The operator's identity."""
        return self.folder / "operator"

    @property
    def nodes(self) -> Path:
        """One private folder an instance."""
        return self.folder / "nodes"

    @property
    def lock(self) -> Path:
        """Locked while the copy runs; holds the supervisor's pid."""
        return self.run / "up.lock"

    @property
    def table(self) -> Path:
        """The supervisor's processes as JSON."""
        return self.run / "processes.json"

    @property
    def metrics_address(self) -> Path:
        """host:port of the supervisor's own /metrics."""
        return self.run / "metrics-address"

    @property
    def ready(self) -> Path:
        """There once the copy answers; what it printed."""
        return self.run / "ready"

    @property
    def dev_env(self) -> Path:
        """What clients need, as shell assignments."""
        return self.folder / "dev.env"

    @property
    def operator_token(self) -> Path:
        """Token with which the supervisor joins."""
        return self.operator / "join-token"

    @property
    def trust_bundle(self) -> Path:
        """Roots of the mesh (PEM)."""
        return self.control / "ca.crt"

    @property
    def web_ca(self) -> Path:
        """Root of the edge's own TLS certificate (PEM), for clients."""
        return self.control / "web-ca.crt"

    def control_address(self) -> str:
        """host:port of the control plane (mTLS)."""
        return (self.control / "address").read_text().strip()

    def join_address(self) -> str:
        """host:port where join tokens are taken (server TLS only)."""
        return (self.control / "join-address").read_text().strip()
