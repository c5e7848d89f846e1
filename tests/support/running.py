"""A whole running copy: `python -m mesh.up` in a folder of its own, ended by pid."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mesh import stores
from tests.support.collector import Collector, collecting

PROJECT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 150
JWT_ISSUER = "https://issuer.example"
JWT_AUDIENCE = "chatmesh"
JWT_SECRET = "a secret of at least thirty-two bytes"
STOP_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True)
class RunningMesh:
    """What a client and an operator of the copy need."""

    home: Path
    environment: Mapping[str, str]
    base_url: str
    api_key: str
    tls_address: str
    ca_cert: Path
    pid: int

    @property
    def root_url(self) -> str:
        """The edge without /v1."""
        return self.base_url.removesuffix("/v1")

    @property
    def plain_address(self) -> str:
        """host:port of the plain listener."""
        return self.root_url.removeprefix("http://")

    def ctl(self, *arguments: str, check: bool = True) -> str:
        """Runs `mesh.ctl` and returns what it printed."""
        command = [sys.executable, "-m", "mesh.ctl", *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=PROJECT, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> list[dict]:
        """Rows of `mesh.ctl status`."""
        return json.loads(self.ctl("status", "--json", check=False))

    def row(self, instance: str) -> dict:
        """The row of one instance."""
        return next(row for row in self.status() if row["instance"] == instance)

    def new_key(
        self, tier: str = "admin", budget_usd: float | None = None, jurisdiction: str = ""
    ) -> str:
        """A key of an account of its own."""
        budget = [] if budget_usd is None else ["--budget-usd", str(budget_usd)]
        country = ["--jurisdiction", jurisdiction] if jurisdiction else []
        return self.ctl("keys", "create", "--tier", tier, *budget, *country).strip()

    def account_of(self, key: str) -> str:
        """The account of a key that this copy made."""
        rows = json.loads(self.ctl("keys", "list", "--json"))
        (account,) = [row["account"] for row in rows if row["prefix"] == key[: len(row["prefix"])]]
        return account

    def audit(self, account: str, *options: str) -> dict:
        """What `mesh.ctl audit` says of an account, whether it balances or not."""
        words = ("audit", "--account", account, "--json", *options)
        return json.loads(self.ctl(*words, check=False))

    @property
    def database_url(self) -> str:
        """The DSN of the database's owner, who may do what no service may."""
        folder = self.home / "postgres"
        password, port = ((folder / name).read_text().strip() for name in ("password", "port"))
        return f"postgresql://{stores.OWNER}:{password}@127.0.0.1:{port}/{stores.DATABASE}"

    def logs(self) -> str:
        """The ends of all logs, for a failure message."""
        parts = []
        for path in sorted((self.home / "log").glob("*")):
            with contextlib.suppress(OSError):
                parts.append(f"--- {path.name}\n" + path.read_text(errors="replace")[-1500:])
        return "\n".join(parts)


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def running_mesh(home: Path, **settings: str) -> Iterator[RunningMesh]:
    """Starts a copy, waits until it answers, ends it."""
    plain, tls = free_ports(2)
    environment = {
        **os.environ,
        "CHATMESH_HOME": str(home),
        "EDGE_PORT": str(plain),
        "EDGE_TLS_PORT": str(tls),
        "INFERENCE_ENGINE": "simulated",
        # Its own copy of the shipped policy, for tests that change it.
        "SAFETY_POLICY_FILE": str(home / "policy.yaml"),
        **settings,
    }
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(PROJECT / "safety_svc" / "policies" / "default.yaml", home / "policy.yaml")
    output = home / "up.out"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mesh.up"],
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        _await_ready(process, home, output)
        values = dict(line.split("=", 1) for line in (home / "dev.env").read_text().splitlines())
        yield RunningMesh(
            home=home,
            environment=environment,
            base_url=values["OPENAI_BASE_URL"],
            api_key=values["OPENAI_API_KEY"],
            tls_address=values["CHATMESH_EDGE"],
            ca_cert=Path(values["CHATMESH_CA_CERT"]),
            pid=process.pid,
        )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen, home: Path, output: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not (home / "run" / "ready").exists():
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"the mesh did not start:\n{output.read_text()}")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Gets the traces of `mesh_copy`."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def mesh_copy(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[RunningMesh]:
    """A copy with the simulated engine, two gateways and two inference nodes, for all tests."""
    tracing = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds
    }
    tokens = {
        "GATEWAY_JWT_ISSUER": JWT_ISSUER,
        "GATEWAY_JWT_AUDIENCE": JWT_AUDIENCE,
        "GATEWAY_JWT_SECRET": JWT_SECRET,
    }
    home = tmp_path_factory.mktemp("mesh")
    with running_mesh(home, REPLICAS="gateway=2,inference=2", **tracing, **tokens) as copy:
        yield copy
