"""One running copy of chatmesh: what is started after what, and how each process is prepared."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from chatmesh.mesh.v1 import mesh_pb2
from mesh import confinement, credentials, disk, redis_users, schema, stores
from mesh.chassis import identity, telemetry
from mesh.chassis.background import Work, kept
from mesh.chassis.files import write_public
from mesh.edge.bootstrap import BOOTSTRAP_FILE, discard_files, envoy_command
from mesh.home import PROJECT, Home
from mesh.operator import Operator, join
from mesh.redis_users import RedisUser
from mesh.settings import UpSettings
from mesh.supervisor import Launch, Process, Supervisor, tied
from mesh.topology import Topology

TOPOLOGY = PROJECT / "mesh" / "topology.yaml"
START_TIMEOUT_S = 120.0
POLL_S = 0.02
# A gateway repeats for 30 s what it has to settle while a store is away.
STOP_TIMEOUT_S = 32.0
# A process that dies this often before it was ever ready will not come up by itself.
RESTARTS_AT_START_MAX = 4
STORES = ("postgres", "redis")

Prepare = Callable[[], Awaitable[Launch]]
Say = Callable[[str, str], None]


class UpError(Exception):
    """The system cannot start; the message says what to do."""


class System:
    """One running copy."""

    def __init__(self, home: Home, settings: UpSettings, topology: Topology, say: Say) -> None:
        self._home, self._settings, self._topology, self._say = home, settings, topology, say
        # Work of our own that runs as long as the copy does.
        self._tasks: list[asyncio.Task[None]] = []
        self._supervisor = Supervisor(home.log, home.table)
        self._operator = Operator(home)
        self._urls: dict[str, str] = {}
        self._database_urls: Mapping[str, str] = {}
        self._redis_urls: Mapping[str, str] = {}
        self._redis_users = self._make_redis_users()
        self._names: list[str] = []
        # By service; empty: all processes are one user.
        self._groups = confinement.groups(topology.services) if confinement.is_possible() else {}

    async def start(self) -> None:
        """Starts everything and waits until it serves."""
        budget_bytes = self._settings.chatmesh_disk_mib_max << 20
        warning = await asyncio.to_thread(disk.check, self._home.folder, budget_bytes)
        if warning:
            self._say("disk", warning)
        self._keep("disk", partial(disk.watch, self._home.folder, budget_bytes))
        if self._groups:
            confinement.guard(self._home)
        self._home.metrics_address.write_text(f"{telemetry.serve_metrics('127.0.0.1')}\n")
        self._start_control()
        await self._start_stores()
        await self._await_file(self._home.control / "join-address", "control-1")
        own = await join(self._home)
        self._keep("operator", partial(self._keep_operator, own))
        discard_files(self._edge_dir)
        instances = self._start_services()
        await self._await_file(self._edge_dir / BOOTSTRAP_FILE, "edge-1")
        self._start(self._envoy())
        await self._await_serving(instances)
        await self._await_edge()

    @property
    def _edge_dir(self) -> Path:
        """State folder of the edge's agent, and Envoy's working directory."""
        return self._state_dir("edge", "edge-1")

    def _state_dir(self, service: str, instance: str) -> Path:
        path = self._home.nodes / instance
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._groups:
            confinement.guard_node(path, self._groups[service])
        return path

    async def stop(self) -> None:
        """Ends everything, the edge first and the stores last."""
        for task in self._tasks:
            task.cancel()
        services = [name for name in self._names if name not in ("envoy", "control-1", *STORES)]
        for group in (["envoy"], services, ["control-1"], list(STORES)):
            await self._supervisor.stop(group, STOP_TIMEOUT_S)

    # -- stores ------------------------------------------------------------------------------

    async def _start_stores(self) -> None:
        given = {"postgres": self._settings.database_url, "redis": self._settings.redis_url}
        prepare: Mapping[str, Callable[[Path], stores.StoreProcess]] = {
            "postgres": stores.prepare_postgres,
            "redis": partial(stores.prepare_redis, users=self._redis_users.values()),
        }
        embedded = []
        for name in STORES:
            if given[name]:
                self._urls[name] = given[name]
                continue
            process = await asyncio.to_thread(prepare[name], self._home.folder / name)
            address = partial(_host_and_port, process.url)
            self._start(Process(name, name, _fixed(process), process.stop_signal, address=address))
            self._urls[name] = process.url
            embedded.append(process)
        if self._groups:
            confinement.guard_stores(self._home)
        for process in embedded:
            await process.ready()
            self._say(process.name, "ready")
        self._database_urls = await self._deploy_tables()
        self._redis_urls = await self.admit_to_redis(self._urls["redis"])

    async def _deploy_tables(self) -> Mapping[str, str]:
        owners = [name for name, s in self._topology.services.items() if "postgres" in s.needs]
        passwords = stores.role_passwords(self._home.folder / "roles", owners)
        folders = schema.schema_folders(PROJECT)
        return await schema.deploy(self._urls["postgres"], passwords, folders)

    def _make_redis_users(self) -> dict[str, RedisUser]:
        accesses = {n: s.redis for n, s in self._topology.services.items() if s.redis}
        passwords = stores.role_passwords(self._home.folder / "redis-roles", accesses)
        return {name: RedisUser(name, passwords[name], accesses[name]) for name in accesses}

    async def admit_to_redis(self, url: str) -> Mapping[str, str]:
        """URL by service; the same for all in a Redis that does not let us make users."""
        users = self._redis_users
        if self._settings.redis_url:
            try:
                await redis_users.create(url, users.values())
            except redis_users.RedisUsersError as error:
                self._say("redis", f"shared by all services, which have no users there ({error})")
                return dict.fromkeys(users, url)
            self._keep("redis_users", partial(redis_users.keep, url, users))
        return {name: user.url(url) for name, user in users.items()}

    # -- processes ---------------------------------------------------------------------------

    def _start(self, process: Process) -> None:
        self._names.append(process.name)
        self._supervisor.start(process)

    def _start_control(self) -> None:
        # Addresses of the last run are stale until the control plane has written its own.
        for name in ("address", "join-address"):
            (self._home.control / name).unlink(missing_ok=True)
        spiffe_id = f"spiffe://{self._topology.trust_domain}/control"
        address = partial(_recorded, self._home.control / "address")
        self._start(
            Process(
                "control-1",
                "control",
                self._prepare_control,
                address=address,
                spiffe_id=spiffe_id,
            )
        )

    async def _prepare_control(self) -> Launch:
        env = {
            "CONTROL_STATE_DIR": str(self._home.control),
            "CONTROL_TOPOLOGY": str(TOPOLOGY),
            "CONTROL_OPERATOR_TOKEN_FILE": str(self._home.operator_token),
            # A restarted control plane must be where everybody looks for it.
            "CONTROL_ADDRESS": _recorded(self._home.control / "address"),
            "CONTROL_JOIN_ADDRESS": _recorded(self._home.control / "join-address"),
        }
        return _python("mesh.control", self._environment("control", env))

    def _start_services(self) -> list[str]:
        instances = []
        for name, service in self._topology.services.items():
            if name == "control":
                continue
            for number in range(1, self._settings.replicas_of(name, service.replicas) + 1):
                instance = f"{name}-{number}"
                instances.append(instance)
                prepare = self._preparer(name, service.command, instance)
                self._start(Process(instance, name, prepare))
        return instances

    def _preparer(self, service: str, module: str, instance: str) -> Prepare:
        async def prepare() -> Launch:
            state_dir = self._state_dir(service, instance)
            # Where the control plane keeps its own is not for services.
            trust_bundle = state_dir / "trust.crt"
            write_public(trust_bundle, self._home.trust_bundle.read_text())
            env = {
                "CHATMESH_SERVICE": service,
                "CHATMESH_INSTANCE": instance,
                "CHATMESH_CONTROL_ADDRESS": self._home.control_address(),
                "CHATMESH_JOIN_ADDRESS": self._home.join_address(),
                "CHATMESH_JOIN_TOKEN": await self._operator.join_token(service),
                "CHATMESH_TRUST_BUNDLE": str(trust_bundle),
                "CHATMESH_STATE_DIR": str(state_dir),
                **self._store_urls(service),
            }
            group = self._groups.get(service, -1)
            return _python(module, self._environment(service, env), group)

        return prepare

    def _store_urls(self, service: str) -> dict[str, str]:
        needs = self._topology.services[service].needs
        urls = {}
        if "postgres" in needs:
            urls["DATABASE_URL"] = self._database_urls[service]
        if "redis" in needs:
            urls["REDIS_URL"] = self._redis_urls[service]
        return urls

    def _envoy(self) -> Process:
        return Process(
            "envoy",
            "edge",
            self._prepare_envoy,
            address=lambda: f"127.0.0.1:{self._settings.edge_port}",
            spiffe_id=f"spiffe://{self._topology.trust_domain}/edge",
        )

    async def _prepare_envoy(self) -> Launch:
        group = self._groups.get("edge", -1)
        command = tied(envoy_command(self._edge_dir), self._edge_dir, group, low_ports=True)
        return Launch(command, self._environment("edge", {}))

    def _environment(self, service: str, own: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a process: what the topology lets it see, and what is its."""
        return process_environment(self._topology, self._settings, service, os.environ, own)

    def _keep(self, name: str, work: Work) -> None:
        """Keeps work of our own going; the supervisor ends for none of it."""
        self._tasks.append(asyncio.create_task(kept(name, work, ends_max=None), name=name))

    async def _keep_operator(self, own: identity.Identity) -> None:
        while True:
            with contextlib.suppress(identity.CertificateExpiredError):
                address = self._home.control_address()
                await identity.keep_renewed(address, own, self._home.operator)
            await join(self._home)

    # -- waiting -----------------------------------------------------------------------------

    async def _await_file(self, path: Path, process: str) -> None:
        async for _ in self._deadline(process):
            if path.exists():
                return

    async def _await_serving(self, instances: Iterable[str]) -> None:
        waiting = dict.fromkeys(instances)
        async for _ in self._deadline(*waiting):
            for name in await self._serving():
                if name in waiting:
                    del waiting[name]
                    self._say(name, "ready")
            if not waiting:
                return

    async def _serving(self) -> list[str]:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with self._operator.admin() as admin:
                status = await admin.GetStatus(mesh_pb2.GetStatusRequest(), timeout=2)
            serving = mesh_pb2.INSTANCE_STATE_SERVING
            return [i.name for i in status.instances if i.state == serving]
        return []

    async def _await_edge(self) -> None:
        url = f"http://127.0.0.1:{self._settings.edge_port}/healthz"
        async for _ in self._deadline("envoy"):
            if await asyncio.to_thread(credentials.answers, url):
                self._say("envoy", "ready")
                return

    async def _deadline(self, *names: str) -> AsyncIterator[None]:
        """Polls until the caller has what it waits for; raises UpError when it takes too long."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            yield
            for name in names:
                if name in self._names and self._supervisor.restarts(name) >= RESTARTS_AT_START_MAX:
                    raise UpError(f"{name} does not start:\n{self._supervisor.tail(name)}")
            await asyncio.sleep(POLL_S)
        raise UpError(f"not ready within {START_TIMEOUT_S:.0f} s: {', '.join(names)}")


def process_environment(
    topology: Topology,
    settings: UpSettings,
    service: str,
    given: Mapping[str, str],
    own: Mapping[str, str],
) -> dict[str, str]:
    """The environment of a process of a service.

    Args:
        topology: says which variables the service may see.
        settings: what was checked of the operator's environment stands above what was written.
        service: its name.
        given: the operator's environment.
        own: what this process alone gets; not filtered.
    """
    return {**topology.environment_of(service, {**given, **settings.environment()}), **own}


def _python(module: str, environment: Mapping[str, str], group: int = -1) -> Launch:
    return Launch(tied([sys.executable, "-m", module], PROJECT, group), environment)


def _fixed(process: stores.StoreProcess) -> Prepare:
    async def prepare() -> Launch:
        return Launch(process.command, process.env)

    return prepare


def _host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}"


def _recorded(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return "127.0.0.1:0"
