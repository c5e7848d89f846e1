"""Native gRPC and gRPC-Web through a real Envoy, on the ports that HTTP uses."""

import asyncio
import base64

import grpc
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from mesh.chassis.errors import MeshError
from tests.support.edge import running_edge
from tests.support.fake_gateway import KEY, denied

pytestmark = [pytest.mark.mesh, pytest.mark.asyncio(loop_scope="module")]

AUTHORIZED = (("authorization", KEY),)
TIMEOUT_S = 20
# Envoy answers, then resets a request that is not complete; C-core may see the reset first.
RESET_FIRST = (grpc.StatusCode.INTERNAL,)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    async with running_edge(tmp_path_factory.mktemp("edge")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def edge(shared):
    shared.gateway.reset()
    return shared


@pytest_asyncio.fixture(params=["plain", "tls"], loop_scope="module")
async def channel(edge, request):
    """h2c on the plain port, h2 on the other."""
    if request.param == "plain":
        opened = grpc.aio.insecure_channel(f"127.0.0.1:{edge.plain_port}")
    else:
        credentials = grpc.ssl_channel_credentials(edge.web_ca_file.read_bytes())
        opened = grpc.aio.secure_channel(f"localhost:{edge.tls_port}", credentials)
    async with opened:
        yield opened


async def test_unary_and_stream(channel, edge):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    models = await stub.ListModels(
        chat_pb2.ListModelsRequest(), metadata=AUTHORIZED, timeout=TIMEOUT_S
    )
    assert [model.id for model in models.models] == ["tiny"]
    call = stub.Chat(chat_pb2.ChatRequest(model="tiny"), metadata=AUTHORIZED, timeout=TIMEOUT_S)
    answers = [answer async for answer in call]
    assert answers[0].started.turn_id == "t"
    assert "".join(answer.delta.text for answer in answers) == "Hello world"
    initial = dict(await call.initial_metadata())
    assert initial["x-ratelimit-remaining-requests"] == "59"
    assert "x-request-id" in initial
    assert edge.gateway.calls[-1][2]["x-chatmesh-account"] == "acc-1"


async def test_an_error_keeps_its_details(channel):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Chat(
            chat_pb2.ChatRequest(model="missing"), metadata=AUTHORIZED, timeout=TIMEOUT_S
        ):
            pass
    error = MeshError.from_rpc(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert error.message == "No such model; list the models."


async def test_identity_metadata_cannot_be_spoofed(channel, edge):
    spoofed = (*AUTHORIZED, ("x-chatmesh-account", "evil"), ("x-chatmesh-scopes", "all"))
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    await stub.ListModels(chat_pb2.ListModelsRequest(), metadata=spoofed, timeout=TIMEOUT_S)
    metadata = edge.gateway.calls[-1][2]
    assert metadata["x-chatmesh-account"] == "acc-1"
    assert "x-chatmesh-scopes" not in metadata


async def code_and_text(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_a_refusal_is_a_status_with_a_sentence(channel, edge):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    empty = chat_pb2.ListModelsRequest()
    refused = await code_and_text(stub.ListModels(empty, timeout=TIMEOUT_S))
    assert refused == (grpc.StatusCode.UNAUTHENTICATED, 'Bad key "x\\"; create another.')
    status = MeshError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMIT_EXCEEDED", "Slow.", retry_after_s=3
    ).to_status()
    packed = base64.b64encode(status.SerializeToString()).decode().rstrip("=")
    edge.gateway.denial = denied(
        429, "rate_limit_exceeded", "Slow.", grpc_status_details_bin=packed
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ListModels(empty, timeout=TIMEOUT_S)
    assert caught.value.details() == "Slow."
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert MeshError.from_rpc(caught.value).reason == "RATE_LIMIT_EXCEEDED"


async def test_admission_that_does_not_answer_is_unavailable(channel, edge):
    edge.gateway.check_fails = True
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    call = stub.ListModels(chat_pb2.ListModelsRequest(), metadata=AUTHORIZED, timeout=TIMEOUT_S)
    code, _ = await code_and_text(call)
    assert code == grpc.StatusCode.UNAVAILABLE


async def test_strangers_reach_only_the_public_services(channel, edge):
    """No health, no admission, and not the transcoded service by its own name."""
    options = {"metadata": AUTHORIZED, "timeout": TIMEOUT_S}
    health = health_pb2_grpc.HealthStub(channel)
    openai = gateway_pb2_grpc.OpenAIServiceStub(channel)
    for call in (
        health.Check(health_pb2.HealthCheckRequest(), **options),
        openai.ListModels(gateway_pb2.ListModelsRequest(), **options),
        channel.unary_unary("/envoy.service.auth.v3.Authorization/Check")(b"", **options),
        channel.unary_unary("/chatmesh.billing.v1.KeyService/ResolveKey")(b"", **options),
        channel.unary_unary("/chatmesh.chat.v1.ChatService/Nothing")(b"", **options),
    ):
        code, _ = await code_and_text(call)
        assert code == grpc.StatusCode.UNIMPLEMENTED
    assert edge.gateway.calls == []
    assert edge.gateway.checks == []


async def test_reflection_with_a_key_only(channel, edge):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([request]), metadata=AUTHORIZED, timeout=TIMEOUT_S)
    answer = await anext(aiter(call))
    names = [each.name for each in answer.list_services_response.service]
    assert "chatmesh.chat.v1.ChatService" in names
    call = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
    code, _ = await code_and_text(anext(aiter(call)))
    assert code in (grpc.StatusCode.UNAUTHENTICATED, *RESET_FIRST)


async def test_a_clients_deadline_reaches_the_gateway(channel, edge):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    await stub.ListModels(chat_pb2.ListModelsRequest(), metadata=AUTHORIZED, timeout=TIMEOUT_S)
    assert 0 < edge.gateway.remaining_s[-1] < TIMEOUT_S + 1


async def test_a_client_that_cancels_ends_the_call(edge, channel):
    stub = chat_pb2_grpc.ChatServiceStub(channel)
    request = chat_pb2.ChatRequest(model="wait")
    call = stub.Chat(request, metadata=AUTHORIZED, timeout=TIMEOUT_S)
    await anext(aiter(call))
    call.cancel()
    await asyncio.wait_for(edge.gateway.cancelled.wait(), 10)


# -- gRPC-Web --------------------------------------------------------------------------------


def frames(data):
    """(flag, payload) of each frame of a gRPC-Web body."""
    while data:
        length = int.from_bytes(data[1:5], "big")
        yield data[0], data[5 : 5 + length]
        data = data[5 + length :]


async def web(edge, method, request, headers):
    payload = request.SerializeToString()
    async with httpx.AsyncClient(base_url=edge.url, timeout=TIMEOUT_S) as client:
        return await client.post(
            f"/chatmesh.chat.v1.ChatService/{method}",
            content=b"\0" + len(payload).to_bytes(4, "big") + payload,
            headers={
                "content-type": "application/grpc-web+proto",
                "x-grpc-web": "1",
                **headers,
            },
        )


async def test_grpc_web(edge):
    request = chat_pb2.ChatRequest(model="tiny")
    answer = await web(edge, "Chat", request, {"authorization": KEY})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/grpc-web+proto"
    found = list(frames(answer.content))
    texts = [chat_pb2.ChatResponse.FromString(data).delta.text for flag, data in found if not flag]
    assert "".join(texts) == "Hello world"
    flag, trailers = found[-1]
    assert flag == 0x80
    assert b"grpc-status:0" in trailers.replace(b" ", b"")


async def test_a_refusal_reaches_a_browser_as_grpc(edge):
    answer = await web(edge, "ListModels", chat_pb2.ListModelsRequest(), {})
    assert answer.status_code == 200
    assert answer.headers["grpc-status"] == str(grpc.StatusCode.UNAUTHENTICATED.value[0])
    assert answer.headers["grpc-message"] == 'Bad key "x\\"; create another.'


async def test_json_to_a_grpc_method_is_a_404(edge):
    async with httpx.AsyncClient(base_url=edge.url, timeout=TIMEOUT_S) as client:
        for path in (
            "/chatmesh.chat.v1.ChatService/ListModels",
            "/chatmesh.gateway.v1.OpenAIService/ListModels",
        ):
            answer = await client.post(path, json={}, headers={"authorization": KEY})
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "unknown_url"
    assert edge.gateway.calls == []
