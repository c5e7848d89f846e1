"""A small gateway behind the edge: admission, the HTTP face and the chat service."""

# ruff: noqa: N802 - methods are called as their contracts say

import asyncio
import json
import uuid
from typing import Any

import grpc
from cryptography import x509
from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.type.v3 import http_status_pb2
from google.api import httpbody_pb2
from google.rpc import code_pb2, status_pb2

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.gateway.v1 import gateway_pb2_grpc
from mesh.chassis import server
from mesh.chassis.errors import MeshError

KEY = "Bearer cm-good"


class Gateway(
    external_auth_pb2_grpc.AuthorizationServicer,
    gateway_pb2_grpc.OpenAIServiceServicer,
    chat_pb2_grpc.ChatServiceServicer,
):
    """A small gateway; the body of a completion says what to do: {"do": "json" | "sse" | …}."""

    def __init__(self) -> None:
        self.checks: list[dict[str, str]] = []
        self.calls: list[tuple[str, Any, dict[str, str]]] = []
        self.remaining_s: list[float | None] = []
        self.peer_serial = 0
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.denial: external_auth_pb2.CheckResponse | None = None
        self.check_fails = False
        self.check_delay_s = 0.0
        self.unavailable_left = 0

    def reset(self) -> None:
        """Forgets what was seen."""
        self.__init__()

    def _note(self, request: Any, context: Any) -> dict[str, str]:
        metadata = dict(context.invocation_metadata())
        assert server.spiffe_ids(context) == ["spiffe://chatmesh/edge"]
        pem = context.auth_context()["x509_pem_cert"][0]
        self.peer_serial = x509.load_pem_x509_certificate(pem).serial_number
        self.remaining_s.append(context.time_remaining())
        self.calls.append((request.DESCRIPTOR.full_name, request, metadata))
        return metadata

    async def Check(self, request, context):
        headers = dict(request.attributes.request.http.headers)
        self.checks.append(headers)
        await asyncio.sleep(self.check_delay_s)
        if self.check_fails:
            raise MeshError(grpc.StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE", "Redis is away.")
        if self.denial is not None:
            return self.denial
        if headers.get("authorization") != KEY:
            return denied(401, "invalid_api_key", 'Bad key "x\\"; create another.')
        ok = external_auth_pb2.OkHttpResponse(
            headers=[
                _set("x-chatmesh-account", "acc-1"),
                _set("x-chatmesh-tier", "pro"),
                _set("x-chatmesh-turn", uuid.uuid4().hex),
            ],
            response_headers_to_add=[_set("x-ratelimit-remaining-requests", "59")],
        )
        return external_auth_pb2.CheckResponse(status=status_pb2.Status(), ok_response=ok)

    async def CreateChatCompletion(self, request, context):
        self._note(request, context)
        try:
            wanted = json.loads(request.body.data)
        except ValueError:
            wanted = {"do": "count"}
        async for body in getattr(self, "_" + wanted["do"])(wanted, request, context):
            yield body

    async def ListModels(self, request, context):
        self._note(request, context)
        if self.unavailable_left > 0:
            self.unavailable_left -= 1
            raise MeshError(grpc.StatusCode.UNAVAILABLE, "OVERLOADED", "Not now.")
        if isinstance(request, chat_pb2.ListModelsRequest):
            return chat_pb2.ListModelsResponse(models=[chat_pb2.Model(id="tiny")])
        # 2**53 and more would come out as a string, were it a proto field.
        return _json(b'{"object":"list","created":1700000000123456789,"data":[]}')

    async def GetModel(self, request, context):
        self._note(request, context)
        return _json(json.dumps({"id": request.model}).encode())

    async def DeleteConversation(self, request, context):
        self._note(request, context)
        return _json(b'{"deleted":true}')

    async def ListConversations(self, request, context):
        self._note(request, context)
        return _json(json.dumps({"size": request.page_size}).encode())

    async def Chat(self, request, context):
        self._note(request, context)
        if request.model == "missing":
            text = "No such model; list the models."
            raise MeshError(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", text)
        yield chat_pb2.ChatResponse(started=chat_pb2.TurnStarted(turn_id="t", model="tiny"))
        if request.model == "wait":
            await self._wait()
        for index, word in enumerate(("Hello", " world")):
            yield chat_pb2.ChatResponse(sequence=index + 1, delta=chat_pb2.TextDelta(text=word))

    async def _json(self, wanted, request, context):
        yield _json(b'{"id":"c","text":"' + b"a" * wanted.get("size", 1) + b'"}')

    async def _count(self, wanted, request, context):
        yield _json(json.dumps({"bytes": len(request.body.data)}).encode())

    async def _sse(self, wanted, request, context):
        events = wanted.get("events", 3)
        for number in range(events):
            yield _event(f'id: t-{number}\ndata: {{"n":{number}}}\n\n'.encode())
            if number == 0 and wanted.get("wait"):
                await self._wait()
            if wanted.get("gap_s"):
                await asyncio.sleep(wanted["gap_s"])
        yield _event(b"data: [DONE]\n\n")

    async def _wait(self):
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _openai_error(self, wanted, request, context):
        sent = (("x-http-status", "429"), ("retry-after", "7"))
        await context.send_initial_metadata(sent)
        yield _json(
            b'{"error":{"message":"m","type":"t","param":null,"code":"insufficient_quota"}}'
        )

    async def _mesh_error(self, wanted, request, context):
        raise MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OVERLOADED",
            'Full, says "node\\1","details":[]; wait.',
            metadata={"param": "max_tokens"},
            retry_after_s=1.5,
        )
        yield

    async def _unavailable(self, wanted, request, context):
        raise MeshError(grpc.StatusCode.UNAVAILABLE, "OVERLOADED", "Not now.")
        yield

    async def _crash(self, wanted, request, context):
        raise RuntimeError("secret prompt")
        yield

    async def _silent(self, wanted, request, context):
        await self.go_on.wait()
        yield _json(b"{}")

    async def _late_error(self, wanted, request, context):
        yield _event(b'id: t-0\ndata: {"n":0}\n\n')
        yield _event(b'data: {"error":{"message":"x","code":"overloaded"}}\n\n')
        yield _event(b"data: [DONE]\n\n")

    async def _late_abort(self, wanted, request, context):
        yield _event(b'id: t-0\ndata: {"n":0}\n\n')
        raise MeshError(grpc.StatusCode.UNAVAILABLE, "OVERLOADED", "gone")


def add_to(server_: grpc.aio.Server, gateway: Gateway) -> None:
    """Lets a server serve all three of its contracts."""
    for add in (
        external_auth_pb2_grpc.add_AuthorizationServicer_to_server,
        gateway_pb2_grpc.add_OpenAIServiceServicer_to_server,
        chat_pb2_grpc.add_ChatServiceServicer_to_server,
    ):
        add(gateway, server_)


def denied(status: int, code: str, message: str, **headers: str) -> external_auth_pb2.CheckResponse:
    """A refusal as admission makes it."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return external_auth_pb2.CheckResponse(
        status=status_pb2.Status(code=code_pb2.PERMISSION_DENIED),
        denied_response=external_auth_pb2.DeniedHttpResponse(
            status=http_status_pb2.HttpStatus(code=status),
            headers=[
                _set("content-type", "application/json"),
                *(_set(key.replace("_", "-"), value) for key, value in headers.items()),
            ],
            body=json.dumps({"error": error}),
        ),
    )


def _set(key: str, value: str) -> base_pb2.HeaderValueOption:
    return base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key=key, value=value),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _json(data: bytes) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="application/json", data=data)


def _event(data: bytes) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="text/event-stream", data=data)
