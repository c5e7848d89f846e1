"""The operator's identity, and what it may call: the control plane and billing's admin methods.

`mesh.up` joins as the operator with a token that it leaves for the control plane in a private
file; `mesh.ctl` uses the identity that `mesh.up` keeps renewed.
"""

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from pydantic import SecretStr

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis import bootstrap, identity
from mesh.chassis.channel import MeshChannel, open_xds_channel
from mesh.chassis.lease import control_channel
from mesh.chassis.settings import NodeSettings
from mesh.home import Home

CALL_TIMEOUT_S = 10.0


def leave_token(home: Home) -> str:
    """Writes a fresh join token where the control plane looks for it; returns the token."""
    token = secrets.token_urlsafe(32)
    scratch = home.operator_token.with_suffix(".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    scratch.replace(home.operator_token)
    return token


async def join(home: Home) -> identity.Identity:
    """Becomes the operator; see `mesh.chassis.identity.join` for the errors."""
    return await identity.join(
        home.join_address(), leave_token(home), home.trust_bundle, home.operator
    )


class Operator:
    """Calls as the operator."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._identity = identity.Identity(home.operator / "identity")
        self._xds: MeshChannel | None = None

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator["mesh_pb2_grpc.MeshAdminServiceAsyncStub"]:
        """The control plane's admin methods."""
        async with control_channel(self._home.control_address(), self._identity) as channel:
            yield mesh_pb2_grpc.MeshAdminServiceStub(channel)

    async def join_token(self, service: str) -> str:
        """A one-time token for an instance of `service`."""
        async with self.admin() as stub:
            request = mesh_pb2.CreateJoinTokenRequest(service=service)
            answer = await stub.CreateJoinToken(
                request, timeout=CALL_TIMEOUT_S, wait_for_ready=True
            )
        return answer.join_token

    def channel_to(self, service: str) -> MeshChannel:
        """A channel to a service of the mesh; give a timeout with each call."""
        if "GRPC_XDS_BOOTSTRAP_CONFIG" not in os.environ:
            settings = NodeSettings(
                service="operator",
                instance=f"operator-{os.getpid()}",
                control_address=self._home.control_address(),
                join_token=SecretStr(""),
                trust_bundle=self._home.trust_bundle,
                state_dir=self._home.operator,
            )
            os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = bootstrap.render(settings, self._identity)
        return open_xds_channel(service, _no_policies)


def _no_policies() -> Mapping[str, Any]:
    return {}


def describe(error: grpc.aio.AioRpcError) -> str:
    """One line for a person about a failed call."""
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return "The mesh does not answer. Is it running? Start it with `make up`."
    return f"{error.code().name}: {error.details()}"
