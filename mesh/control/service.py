"""Certificates and operation: proto to domain and back; decides nothing."""

import datetime
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import json_format

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh.chassis.errors import MeshError
from mesh.control import ca
from mesh.control.ads_service import AdsService
from mesh.control.issuer import BadJoinTokenError, Issuer
from mesh.control.plane import Plane
from mesh.control.registry_service import to_proto
from mesh.control.replies import Context, bad_request, caller, no_service, timestamp
from mesh.control.resources import MESSAGES, Packed
from mesh.control.snapshot import KINDS
from mesh.control.tokens import TooManyTokensError
from mesh.xds import SECRET

Clock = Callable[[], datetime.datetime]


class CertificateService(mesh_pb2_grpc.CertificateServiceServicer):
    """Join and renew."""

    def __init__(self, plane: Plane, issuer: Issuer, clock: Clock) -> None:
        self._plane, self._issuer, self._clock = plane, issuer, clock

    async def IssueCertificate(  # noqa: N802, D102
        self, request: mesh_pb2.IssueCertificateRequest, context: Context
    ) -> mesh_pb2.IssueCertificateResponse:
        try:
            issued, spiffe_id = self._issuer.issue(
                request.join_token, request.csr_der, self._clock()
            )
        except ca.BadCertificateRequestError as error:
            raise bad_request("BAD_CSR", f"The certificate request is refused: {error}.") from error
        except BadJoinTokenError as error:
            raise MeshError(
                grpc.StatusCode.PERMISSION_DENIED, "BAD_JOIN_TOKEN", f"Refused: {error}."
            ) from error
        return mesh_pb2.IssueCertificateResponse(
            certificate_chain_pem=issued.certificate_chain_pem,
            trust_bundle_pem=self._issuer.trust_bundle_pem,
            spiffe_id=spiffe_id,
            expire_time=timestamp(issued.not_after.timestamp()),
        )

    async def RenewCertificate(  # noqa: N802, D102
        self, request: mesh_pb2.RenewCertificateRequest, context: Context
    ) -> mesh_pb2.RenewCertificateResponse:
        name = caller(self._plane, context)
        try:
            issued = self._issuer.renew(name, request.csr_der, self._clock())
        except ca.BadCertificateRequestError as error:
            raise bad_request("BAD_CSR", f"The certificate request is refused: {error}.") from error
        return mesh_pb2.RenewCertificateResponse(
            certificate_chain_pem=issued.certificate_chain_pem,
            trust_bundle_pem=self._issuer.trust_bundle_pem,
            expire_time=timestamp(issued.not_after.timestamp()),
        )


class MeshAdminService(mesh_pb2_grpc.MeshAdminServiceServicer):
    """The operator's view and hand."""

    def __init__(self, plane: Plane, issuer: Issuer, ads: AdsService, clock: Clock) -> None:
        self._plane, self._issuer, self._ads, self._clock = plane, issuer, ads, clock

    async def CreateJoinToken(  # noqa: N802, D102
        self, request: mesh_pb2.CreateJoinTokenRequest, context: Context
    ) -> mesh_pb2.CreateJoinTokenResponse:
        try:
            token = self._issuer.create_token(request.service, request.lifetime_s, self._clock())
        except KeyError:
            raise no_service(request.service) from None
        except ValueError as error:
            raise bad_request("BAD_REQUEST", f"{error}.") from error
        except TooManyTokensError as error:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_REQUEST", f"{error}.", retry_after_s=60
            ) from error
        return mesh_pb2.CreateJoinTokenResponse(join_token=token)

    async def GetStatus(  # noqa: N802, D102
        self, request: mesh_pb2.GetStatusRequest, context: Context
    ) -> mesh_pb2.GetStatusResponse:
        return mesh_pb2.GetStatusResponse(
            instances=[to_proto(self._plane, instance) for instance in self._plane.instances()],
            snapshot_version=self._plane.snapshot.version,
        )

    async def GetSnapshot(  # noqa: N802, D102
        self, request: mesh_pb2.GetSnapshotRequest, context: Context
    ) -> mesh_pb2.GetSnapshotResponse:
        snapshot = self._plane.snapshot
        resources = [
            mesh_pb2.Resource(
                client_kind=kind,
                type_url=type_url,
                name=name,
                json=_as_json(type_url, packed) if request.include_resources else "",
            )
            for kind in KINDS
            for type_url in MESSAGES
            for name, packed in sorted(snapshot.resources(kind, type_url).items())
        ]
        return mesh_pb2.GetSnapshotResponse(
            version=snapshot.version,
            resources=resources,
            subscriptions=self._ads.subscriptions(),
        )

    async def DrainInstance(  # noqa: N802, D102
        self, request: mesh_pb2.DrainInstanceRequest, context: Context
    ) -> mesh_pb2.DrainInstanceResponse:
        try:
            self._plane.drain(request.instance)
        except KeyError:
            raise MeshError(
                grpc.StatusCode.NOT_FOUND,
                "INSTANCE_NOT_FOUND",
                f"No instance {request.instance!r} lives; GetStatus lists those that do.",
                metadata={"instance": request.instance},
            ) from None
        return mesh_pb2.DrainInstanceResponse()


def _as_json(type_url: str, packed: Packed) -> str:
    message = MESSAGES[type_url]()
    packed.any.Unpack(message)
    if type_url == SECRET:
        message = _masked(message)
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)


def _masked(secret: Any) -> Any:
    """The secret without what is secret: of a certificate its key, of other kinds everything."""
    kind = secret.WhichOneof("type")
    if kind == "tls_certificate":
        secret.tls_certificate.private_key.inline_string = "(masked)"
    elif kind != "validation_context":
        secret.ClearField(kind)
    return secret
