"""Where the control plane serves: two ports, found again at the same place after a restart.

grpc's dynamic server credentials either demand a client certificate or do not ask for one. So
those who have none yet (IssueCertificate) are served on a port of their own, where nothing else is.
"""

import errno
import random
import socket
from collections.abc import Iterator

import grpc
import structlog

from chatmesh.mesh.v1 import mesh_pb2
from mesh.chassis.server import SERVER_OPTIONS, ErrorInterceptor, PolicyInterceptor
from mesh.control.plane import Plane
from mesh.control.render import CONTROL
from mesh.control.store import StateFolder

# Below the kernel's ephemeral ports: while we restart, no outgoing connection can take our port,
# nor can a client that keeps trying it end up connected to itself.
FREE_PORTS = range(20_000, 30_000)
TRIES_MAX = 50

log = structlog.get_logger()


def mesh_server(plane: Plane) -> grpc.aio.Server:
    """A server for peers with certificates; the topology says who may call what."""

    def policies() -> dict[str, mesh_pb2.MethodPolicy]:
        served = plane.policy(CONTROL).served_methods
        return {policy.method: policy for policy in served}

    interceptor = PolicyInterceptor(policies, plane.topology.trust_domain)
    return grpc.aio.server(interceptors=[interceptor], options=SERVER_OPTIONS)


def join_server() -> grpc.aio.Server:
    """A server for those who have only a token."""
    return grpc.aio.server(interceptors=[ErrorInterceptor()], options=SERVER_OPTIONS)


def bind(
    server: grpc.aio.Server,
    credentials: grpc.ServerCredentials,
    wanted: str,
    folder: StateFolder,
    name: str,
) -> str:
    """Takes a port; gives the address.

    With port 0 the port of the former life is taken again if it is free: processes that outlived
    us look for us there.

    Args:
        server: not yet started.
        credentials: of the server.
        wanted: host:port; port 0: a free one.
        folder: remembers the port.
        name: under which it is remembered.

    Raises:
        OSError: the port that was asked for is taken.
    """
    host, _, port = wanted.rpartition(":")
    if int(port):
        if not _is_free(host, int(port)):
            raise OSError(errno.EADDRINUSE, f"{wanted} is taken; choose another address")
        return _add(server, credentials, host, int(port))
    for candidate in _candidates(folder.load_address(name)):
        if _is_free(host, candidate):
            folder.save_address(name, str(candidate))
            return _add(server, credentials, host, candidate)
    raise OSError(errno.EADDRINUSE, f"no free port on {host}; name one in the address")


def _candidates(remembered: str) -> Iterator[int]:
    if remembered.isdigit():
        yield int(remembered)
        log.warning("port_moved", former=remembered)
    yield from random.sample(FREE_PORTS, TRIES_MAX)


def _is_free(host: str, port: int) -> bool:
    # gRPC would tell too, but logs it as an error first.
    bare = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bare, port))
        except OSError:
            return False
    return True


def _add(server: grpc.aio.Server, credentials: grpc.ServerCredentials, host: str, port: int) -> str:
    address = f"{host}:{port}"
    server.add_secure_port(address, credentials)
    return address
