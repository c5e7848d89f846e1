"""`envoy.service.auth.v3.Authorization`: one Check does key or token, scope and rate."""

import base64
from collections.abc import Iterable
from typing import Any

import grpc
import structlog
from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2 as pb
from envoy.service.auth.v3 import external_auth_pb2_grpc
from envoy.type.v3 import http_status_pb2
from google.rpc import status_pb2
from ulid import ULID

from gateway import errors, metrics
from gateway.admission.admit import Admission
from gateway.admission.keys import Admitted
from gateway.admission.paths import rule_of
from gateway.admission.rate import Allowance
from gateway.faces import identity
from gateway.faces.openai.errors import http_error, public_error
from mesh.chassis.errors import MeshError

GRPC = "application/grpc"
OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

log = structlog.get_logger()


class Authorization(external_auth_pb2_grpc.AuthorizationServicer):  # type: ignore[misc]  # untyped
    """Admits requests that Envoy asks about."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def Check(self, request: pb.CheckRequest, context: Any) -> pb.CheckResponse:  # noqa: N802
        """Decides about one request; a refusal is an answer, never an error of the call."""
        http = request.attributes.request.http
        try:
            rule = rule_of(http.path)
            given = http.headers.get("authorization", "")
            admitted = await self._admission.identify(given, rule)
            allowance = await self._admission.count(admitted, rule)
        except Exception as error:
            is_grpc = http.headers.get("content-type", "").startswith(GRPC)
            return _denied(_shown(error), is_grpc)
        metrics.ADMISSIONS.labels("admitted").inc()
        return _admitted(admitted, allowance)


def _shown(error: Exception) -> MeshError:
    shown = public_error(error)
    if shown.reason == errors.INTERNAL_ERROR:
        log.error("admission_crashed", error=type(error).__name__)
    metrics.ADMISSIONS.labels(shown.reason.lower()).inc()
    return shown


def _admitted(admitted: Admitted, allowance: Allowance | None) -> pb.CheckResponse:
    told = {
        identity.ACCOUNT_KEY: admitted.account_id,
        identity.TIER_KEY: admitted.tier,
        identity.SCOPES_KEY: ",".join(sorted(admitted.scopes)),
        identity.KEY_KEY: admitted.key_id,
        identity.TURN_KEY: str(ULID()),
        identity.JURISDICTION_KEY: admitted.jurisdiction,
    }
    return pb.CheckResponse(
        status=status_pb2.Status(code=grpc.StatusCode.OK.value[0]),
        ok_response=pb.OkHttpResponse(
            headers=_options(told.items()),
            # The secret ends its journey here.
            headers_to_remove=["authorization"],
            response_headers_to_add=_options(allowance.headers().items() if allowance else ()),
        ),
    )


def _denied(error: MeshError, is_grpc: bool) -> pb.CheckResponse:
    shown = http_error(error)
    headers = [("content-type", "application/json"), *shown.headers]
    if is_grpc:
        # Envoy makes status and message of a gRPC answer; the reason goes where clients look.
        details = base64.b64encode(error.to_status().SerializeToString()).decode()
        headers.append(("grpc-status-details-bin", details))
    return pb.CheckResponse(
        status=status_pb2.Status(code=error.code.value[0], message=error.message),
        denied_response=pb.DeniedHttpResponse(
            status=http_status_pb2.HttpStatus(code=shown.status),
            headers=_options(headers),
            body=shown.body.decode(),
        ),
    )


def _options(headers: Iterable[tuple[str, str]]) -> list[base_pb2.HeaderValueOption]:
    return [
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=key, value=value), append_action=OVERWRITE
        )
        for key, value in headers
    ]
