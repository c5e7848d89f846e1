"""The services over real TLS: every reason, and who may call what."""

import asyncio
import contextlib
import datetime
import json
import ssl

import grpc
import pytest
from cryptography import x509
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from chatmesh.mesh.v1 import mesh_pb2, mesh_pb2_grpc
from mesh import topology
from mesh.chassis.errors import MeshError
from mesh.chassis.identity import new_key
from mesh.control import ads_service, tokens
from mesh.control import registry as leases
from mesh.xds import CLUSTER, ENDPOINTS, SECRET

TIMEOUT_S = 10


@contextlib.contextmanager
def refused(code: grpc.StatusCode, reason: str, words: str = ""):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    error = MeshError.from_rpc(caught.value)
    assert (error.code, error.reason) == (code, reason), error.message
    assert words in error.message


def instance(name="safety-1", **fields):
    described = {
        "service": name.rpartition("-")[0],
        "name": name,
        "address": "127.0.0.1:1000",
        "pid": 1,
        "state": mesh_pb2.INSTANCE_STATE_SERVING,
        **fields,
    }
    return mesh_pb2.Instance(**described)


class Lease:
    """An open KeepLease stream, step by step."""

    def __init__(self, channel):
        self.call = mesh_pb2_grpc.RegistryServiceStub(channel).KeepLease(timeout=TIMEOUT_S)

    async def say(self, described):
        await self.call.write(mesh_pb2.KeepLeaseRequest(instance=described))

    async def renew(self, described):
        await self.say(described)
        return await self.hear()

    async def hear(self):
        response = await self.call.read()
        assert response is not grpc.aio.EOF, await self.call.code()
        return response


async def until_gone(control, name):
    wake = asyncio.Event()
    with control.plane.listening(wake):
        while control.plane.get(name) is not None:
            await asyncio.wait_for(wake.wait(), TIMEOUT_S)
            wake.clear()


# CertificateService


async def issue(control, token, request=None):
    async with control.join_channel() as channel:
        return await mesh_pb2_grpc.CertificateServiceStub(channel).IssueCertificate(
            mesh_pb2.IssueCertificateRequest(
                join_token=token, csr_der=new_key()[1] if request is None else request
            ),
            timeout=TIMEOUT_S,
        )


async def test_a_token_becomes_a_certificate_once(control):
    token = control.issuer.create_token("gateway", 60, control.clock())
    answer = await issue(control, token)
    assert answer.spiffe_id == "spiffe://chatmesh/gateway"
    certificate = x509.load_pem_x509_certificate(answer.certificate_chain_pem.encode())
    certificate.verify_directly_issued_by(control.authority.certificate)
    with refused(grpc.StatusCode.PERMISSION_DENIED, "BAD_JOIN_TOKEN", "ask for a new one"):
        await issue(control, token)


@pytest.mark.parametrize("token", ["", "guess", "x" * 10_000])
async def test_bad_tokens_are_refused(control, token):
    with refused(grpc.StatusCode.PERMISSION_DENIED, "BAD_JOIN_TOKEN"):
        await issue(control, token)


async def test_an_expired_token_is_refused(control):
    token = control.issuer.create_token("gateway", 1, control.clock())
    control.clock.now += datetime.timedelta(seconds=2)
    with refused(grpc.StatusCode.PERMISSION_DENIED, "BAD_JOIN_TOKEN"):
        await issue(control, token)


async def test_a_bad_request_leaves_the_token_usable(control):
    token = control.issuer.create_token("gateway", 60, control.clock())
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_CSR", "PKCS#10"):
        await issue(control, token, b"not a request")
    assert (await issue(control, token)).spiffe_id


async def test_the_operator_joins_with_the_token_of_the_file_once(control):
    control.operator_token_file.write_text("secret-1\n")
    assert (await issue(control, "secret-1")).spiffe_id == "spiffe://chatmesh/operator"
    with refused(grpc.StatusCode.PERMISSION_DENIED, "BAD_JOIN_TOKEN"):
        await issue(control, "secret-1")
    # A supervisor that starts again leaves another one.
    control.operator_token_file.write_text("secret-2")
    assert (await issue(control, "secret-2")).spiffe_id == "spiffe://chatmesh/operator"


async def test_renewal_keeps_the_callers_identity(control):
    async with control.channel("safety") as channel:
        answer = await mesh_pb2_grpc.CertificateServiceStub(channel).RenewCertificate(
            mesh_pb2.RenewCertificateRequest(csr_der=new_key()[1]), timeout=TIMEOUT_S
        )
        certificate = x509.load_pem_x509_certificate(answer.certificate_chain_pem.encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [name.value for name in names] == ["spiffe://chatmesh/safety"]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_CSR"):
            await mesh_pb2_grpc.CertificateServiceStub(channel).RenewCertificate(
                mesh_pb2.RenewCertificateRequest(), timeout=TIMEOUT_S
            )


async def test_renewal_needs_a_certificate(control):
    async with control.join_channel() as channel:
        with refused(grpc.StatusCode.UNAUTHENTICATED, "NO_IDENTITY"):
            await mesh_pb2_grpc.CertificateServiceStub(channel).RenewCertificate(
                mesh_pb2.RenewCertificateRequest(csr_der=new_key()[1]), timeout=TIMEOUT_S
            )


async def test_nothing_but_joining_is_served_without_a_certificate(control):
    async with control.join_channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh_pb2_grpc.MeshAdminServiceStub(channel).GetStatus(
                mesh_pb2.GetStatusRequest(), timeout=TIMEOUT_S
            )
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    roots = grpc.ssl_channel_credentials(control.authority.trust_bundle_pem.encode())
    async with grpc.aio.secure_channel(control.address, roots) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh_pb2_grpc.MeshAdminServiceStub(channel).GetStatus(
                mesh_pb2.GetStatusRequest(), timeout=TIMEOUT_S
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_own_certificate_is_replaced_at_half_of_its_life(control):
    async def shown():
        host, _, port = control.address.rpartition(":")

        context = ssl.create_default_context(cadata=control.authority.trust_bundle_pem)
        own = control.identity("gateway")
        context.load_cert_chain(own.certificate, own.key)
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(der).serial_number

    first = await shown()
    assert await shown() == first
    control.clock.now += datetime.timedelta(minutes=31)
    assert await shown() != first


# RegistryService


async def test_a_lease_brings_the_policy_once_and_the_instance_into_the_snapshot(control):
    async with control.channel("safety") as channel:
        lease = Lease(channel)
        first = await lease.renew(instance())
        assert first.lease_ttl_ms == 600
        assert {one.method.rpartition("/")[2] for one in first.served_methods} == {
            "ScreenPrompt", "ScreenReply", "GetPolicy",
        }  # fmt: skip
        assert first.called_methods
        assert control.plane.get("safety-1").state is leases.State.SERVING
        assert (
            b"127.0.0.1" in control.plane.snapshot.resources("grpc", ENDPOINTS)["safety"].any.value
        )
        second = await lease.renew(instance())
        assert (list(second.served_methods), second.policy_version) == ([], first.policy_version)


async def test_an_instance_leaves_when_its_stream_ends(control):
    async with control.channel("safety") as channel:
        lease = Lease(channel)
        await lease.renew(instance())
        await lease.call.done_writing()
        await until_gone(control, "safety-1")
        lease = Lease(channel)
        await lease.renew(instance())
        lease.call.cancel()
        await until_gone(control, "safety-1")


async def test_the_operators_drain_reaches_the_instance_at_once(control):
    async with control.channel("safety") as channel, control.channel("operator") as operator:
        lease = Lease(channel)
        assert not (await lease.renew(instance())).drain
        await mesh_pb2_grpc.MeshAdminServiceStub(operator).DrainInstance(
            mesh_pb2.DrainInstanceRequest(instance="safety-1"), timeout=TIMEOUT_S
        )
        assert (await lease.hear()).drain
        status = await mesh_pb2_grpc.MeshAdminServiceStub(operator).GetStatus(
            mesh_pb2.GetStatusRequest(), timeout=TIMEOUT_S
        )
        assert [one.state for one in status.instances] == [mesh_pb2.INSTANCE_STATE_DRAINING]


async def test_a_changed_topology_reaches_the_instance_at_once(control):
    async with control.channel("safety") as channel:
        lease = Lease(channel)
        first = await lease.renew(instance())
        text = topology.TOPOLOGY_FILE.read_text()
        old = "ScreenReply: {callers: [gateway]"
        control.plane.set_topology(
            topology.parse(text.replace(old, "ScreenReply: {callers: [edge]"))
        )
        second = await lease.hear()
        assert second.policy_version != first.policy_version
        policies = {one.method.rpartition("/")[2]: one for one in second.served_methods}
        assert policies["ScreenReply"].allowed_spiffe_ids == ["spiffe://chatmesh/edge"]


@pytest.mark.parametrize(
    ("described", "code", "reason"),
    [
        (instance("gateway-1"), grpc.StatusCode.PERMISSION_DENIED, "WRONG_IDENTITY"),
        (instance("x-1", service="safety"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance("safety-"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance("safety-A/b"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance(address="localhost:80"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance(address="127.0.0.1"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance(address="127.0.0.1:99999"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance(metrics_address="x"), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (instance(state=0), grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
    ],
)  # fmt: skip
async def test_what_is_not_an_instance_of_the_caller_is_refused(control, described, code, reason):
    async with control.channel("safety") as channel:
        with refused(code, reason):
            await Lease(channel).renew(described)
    assert control.plane.instances() == ()


async def test_an_identity_without_a_service_has_no_instances(control):
    async with control.channel("operator") as channel:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", "is not a service"):
            await Lease(channel).renew(instance("operator-1"))


async def test_a_stream_keeps_one_instance(control):
    async with control.channel("safety") as channel:
        lease = Lease(channel)
        await lease.renew(instance("safety-1"))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", "another stream"):
            await lease.renew(instance("safety-2"))


async def test_a_silent_first_request_is_not_awaited_for_ever(control):
    async with control.channel("safety") as channel:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", "first request"):
            await Lease(channel).hear()


async def test_a_live_name_is_not_given_to_another_process(control):
    async with control.channel("safety") as channel:
        await Lease(channel).renew(instance(pid=1))
        with refused(grpc.StatusCode.ALREADY_EXISTS, "INSTANCE_TAKEN", "process 1 holds"):
            await Lease(channel).renew(instance(pid=2))


async def test_the_same_process_resumes_and_its_old_stream_ends(control):
    async with control.channel("safety") as channel:
        old, new = Lease(channel), Lease(channel)
        await old.renew(instance())
        await new.renew(instance())
        # The old stream learns of it with the next change.
        await new.renew(instance(state=mesh_pb2.INSTANCE_STATE_DRAINING))
        assert await old.call.read() is grpc.aio.EOF
        assert control.plane.get("safety-1").state is leases.State.DRAINING


async def test_the_number_of_instances_is_bounded(control, monkeypatch):
    monkeypatch.setattr(leases, "INSTANCES_MAX", 0)
    async with control.channel("safety") as channel:
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_REQUEST"):
            await Lease(channel).renew(instance())


async def test_watchers_see_instances_come_and_go(control):
    async with control.channel("safety") as channel, control.channel("gateway") as gateway:
        watch = mesh_pb2_grpc.RegistryServiceStub(gateway).WatchInstances(
            mesh_pb2.WatchInstancesRequest(service="safety"), timeout=TIMEOUT_S
        )
        assert list((await watch.read()).instances) == []
        lease = Lease(channel)
        await lease.renew(instance())
        (seen,) = (await watch.read()).instances
        assert (seen.name, seen.spiffe_id) == ("safety-1", "spiffe://chatmesh/safety")
        assert seen.register_time.ToSeconds() > 0
        lease.call.cancel()
        assert list((await watch.read()).instances) == []


async def test_only_services_can_be_watched(control):
    async with control.channel("gateway") as channel:
        watch = mesh_pb2_grpc.RegistryServiceStub(channel).WatchInstances(
            mesh_pb2.WatchInstancesRequest(service="nosuch"), timeout=TIMEOUT_S
        )
        with refused(grpc.StatusCode.NOT_FOUND, "SERVICE_NOT_FOUND"):
            await watch.read()


# MeshAdminService


async def test_only_the_operator_administers(control):
    async with control.channel("gateway") as channel:
        stub = mesh_pb2_grpc.MeshAdminServiceStub(channel)
        for call in (
            stub.CreateJoinToken(mesh_pb2.CreateJoinTokenRequest(), timeout=TIMEOUT_S),
            stub.GetStatus(mesh_pb2.GetStatusRequest(), timeout=TIMEOUT_S),
            stub.GetSnapshot(mesh_pb2.GetSnapshotRequest(), timeout=TIMEOUT_S),
            stub.DrainInstance(mesh_pb2.DrainInstanceRequest(), timeout=TIMEOUT_S),
        ):
            with refused(grpc.StatusCode.PERMISSION_DENIED, "CALLER_NOT_ALLOWED"):
                await call


async def admin(control, method, request):
    async with control.channel("operator") as channel:
        return await getattr(mesh_pb2_grpc.MeshAdminServiceStub(channel), method)(
            request, timeout=TIMEOUT_S
        )


@pytest.mark.parametrize("service", ["nosuch", "control", ""])
async def test_nobody_else_gets_a_token(control, service):
    request = mesh_pb2.CreateJoinTokenRequest(service=service)
    with refused(grpc.StatusCode.NOT_FOUND, "SERVICE_NOT_FOUND"):
        await admin(control, "CreateJoinToken", request)


async def test_a_tokens_lifetime_has_a_range(control):
    request = mesh_pb2.CreateJoinTokenRequest(service="gateway", lifetime_s=3601)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST", "lifetime_s"):
        await admin(control, "CreateJoinToken", request)


async def test_outstanding_tokens_are_bounded(control, monkeypatch):
    monkeypatch.setattr(tokens, "OUTSTANDING_MAX", 0)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_REQUEST"):
        await admin(control, "CreateJoinToken", mesh_pb2.CreateJoinTokenRequest(service="gateway"))


async def test_nobody_else_can_be_drained(control):
    with refused(grpc.StatusCode.NOT_FOUND, "INSTANCE_NOT_FOUND"):
        await admin(control, "DrainInstance", mesh_pb2.DrainInstanceRequest(instance="safety-9"))


async def test_the_snapshot_is_shown_without_private_keys(control):
    answer = await admin(
        control, "GetSnapshot", mesh_pb2.GetSnapshotRequest(include_resources=True)
    )
    (web,) = [one for one in answer.resources if one.name == "web-cert"]
    shown = json.loads(web.json)["tls_certificate"]
    assert shown["private_key"] == {"inline_string": "(masked)"}
    assert "PRIVATE KEY" not in str(answer)
    brief = await admin(control, "GetSnapshot", mesh_pb2.GetSnapshotRequest())
    assert len(brief.resources) == len(answer.resources)
    assert not any(one.json for one in brief.resources)


# ADS


class Ads:
    """An ADS stream, step by step."""

    def __init__(self, channel, cluster, agent="gRPC C-core", node="x-1"):
        self.call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).StreamAggregatedResources(
            timeout=TIMEOUT_S
        )
        self._node = base_pb2.Node(id=node, cluster=cluster, user_agent_name=agent)

    async def ask(self, type_url, *names, nonce="", nack=""):
        request = discovery_pb2.DiscoveryRequest(
            node=self._node, type_url=type_url, resource_names=names, response_nonce=nonce
        )
        if nack:
            request.error_detail.code, request.error_detail.message = 3, nack
        self._node = None
        await self.call.write(request)

    async def hear(self):
        response = await self.call.read()
        assert response is not grpc.aio.EOF
        return response


async def test_a_stream_is_bound_to_its_peer(control):
    async with control.channel("safety") as channel:
        ads = Ads(channel, cluster="gateway")
        await ads.ask(CLUSTER, "safety")
        with refused(grpc.StatusCode.PERMISSION_DENIED, "WRONG_IDENTITY", "node.cluster"):
            await ads.hear()
        ads = Ads(channel, cluster="safety", node="")
        await ads.ask(CLUSTER, "safety")
        with refused(grpc.StatusCode.PERMISSION_DENIED, "WRONG_IDENTITY", "node.id"):
            await ads.hear()


async def test_endpoints_are_pushed_and_answers_are_shown(control):
    async with control.channel("gateway") as channel, control.channel("safety") as safety:
        ads = Ads(channel, cluster="gateway", node="gateway-1")
        await ads.ask(ENDPOINTS, "safety")
        first = await ads.hear()
        await ads.ask(ENDPOINTS, "safety", nonce=first.nonce)
        await Lease(safety).renew(instance())
        second = await ads.hear()
        assert int(second.version_info) > int(first.version_info)
        await ads.ask(ENDPOINTS, "safety", nonce=second.nonce, nack="no such port")
        while True:
            answer = await admin(control, "GetSnapshot", mesh_pb2.GetSnapshotRequest())
            (line,) = answer.subscriptions
            if line.nacked_version:
                break
        assert (line.node_id, line.client_kind, line.type_url) == ("gateway-1", "grpc", ENDPOINTS)
        assert line.spiffe_id == "spiffe://chatmesh/gateway"
        assert (line.acked_version, line.nacked_version) == (
            int(first.version_info),
            int(second.version_info),
        )
        assert line.nack_message == "no such port"


async def test_private_keys_go_to_the_edge_only(control):
    for owner, count in (("edge", 1), ("gateway", 0)):
        async with control.channel(owner) as channel:
            ads = Ads(channel, cluster=owner, agent="envoy")
            await ads.ask(SECRET, "web-cert")
            await ads.ask(CLUSTER)
            # Asked for first, a secret comes before anything else, or not at all.
            heard = [await ads.hear()]
            if count:
                heard.append(await ads.hear())
            assert [one.type_url for one in heard] == [SECRET, CLUSTER][1 - count :]


async def test_a_request_beyond_the_limits_ends_the_stream(control):
    async with control.channel("gateway") as channel:
        ads = Ads(channel, cluster="gateway")
        await ads.ask(CLUSTER, "x" * 300)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"):
            await ads.hear()


async def test_the_number_of_streams_is_bounded(control, monkeypatch):
    monkeypatch.setattr(ads_service, "STREAMS_MAX", 0)
    async with control.channel("gateway") as channel:
        ads = Ads(channel, cluster="gateway")
        await ads.ask(CLUSTER, "safety")
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_REQUEST"):
            await ads.hear()
