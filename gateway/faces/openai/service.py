"""The HTTP methods: bodies in, bodies out. Decides nothing."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import structlog
from google.api import httpbody_pb2

from chatmesh.gateway.v1 import gateway_pb2 as pb
from chatmesh.gateway.v1 import gateway_pb2_grpc
from gateway import errors
from gateway.errors import public
from gateway.faces.identity import caller_of
from gateway.faces.openai import listings
from gateway.faces.openai.chunks import ChunkWriter, Completion
from gateway.faces.openai.errors import http_error, public_error
from gateway.faces.openai.requests import ChatCompletion, parse_changes, parse_chat_completion
from gateway.faces.openai.stream import ClientWriter, EventBody
from gateway.turn.domain import Caller, Started
from gateway.turn.observe import observed
from gateway.turn.run import EPOCH, Upstreams, turn
from gateway.upstreams.billing import Billing
from gateway.upstreams.conversation import Conversation
from mesh.chassis.errors import MeshError

JSON = "application/json"
STATUS_KEY = "x-http-status"
NO_CACHE = ("cache-control", "no-cache")

Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger()


class OpenAIService(gateway_pb2_grpc.OpenAIServiceServicer):
    """What browsers and OpenAI SDKs reach."""

    def __init__(self, up: Upstreams, conversation: Conversation, billing: Billing) -> None:
        self._up, self._conversation, self._billing = up, conversation, billing

    # Written to, not generated: so that a deadline may fall inside a write.
    async def CreateChatCompletion(  # type: ignore[override]  # noqa: N802
        self, request: pb.CreateChatCompletionRequest, context: Context
    ) -> None:
        """Runs a turn; every failure before the first byte is an HTTP status and a body."""
        try:
            caller = caller_of(context.invocation_metadata() or ())
            wanted = parse_chat_completion(request.body.data)
        except MeshError as error:
            await context.write(await _refused(context, error))
            return
        await (self._stream if wanted.stream else self._whole)(wanted, caller, context)

    async def _whole(self, wanted: ChatCompletion, caller: Caller, context: Context) -> None:
        completion = Completion(int(time.time()), wanted.ask.n)
        started: Started | None = None
        try:
            async with asyncio.timeout(self._up.limits.turn_duration_s_max):
                events = observed(turn(wanted.ask, caller, self._up))
                async with aclosing(events):
                    async for _, event in events:
                        completion.add(event)
                        started = event if isinstance(event, Started) else started
        except Exception as error:
            await context.write(await _refused(context, error))
            return
        assert started
        await context.send_initial_metadata(_headers(started))
        await context.write(httpbody_pb2.HttpBody(content_type=JSON, data=completion.body()))

    async def _stream(self, wanted: ChatCompletion, caller: Caller, context: Context) -> None:
        limits = self._up.limits
        chunks = ChunkWriter(int(time.time()), wanted.ask.n, wanted.include_usage, EPOCH)
        body = EventBody(context)
        client = ClientWriter(body.write, limits.heartbeat_s, limits.reader_stall_s_max)
        sequence = 0
        try:
            async with (
                asyncio.timeout(limits.turn_duration_s_max) as limit,
                client.guarded(limit),
                aclosing(observed(turn(wanted.ask, caller, self._up))) as events,
            ):
                async for sequence, event in events:
                    data = chunks.events(sequence, event)
                    if isinstance(event, Started):
                        body.begin(_headers(event), data)
                    else:
                        await client.write(data)
        except Exception as error:
            if not body.is_open:
                await context.write(await _refused(context, error))
            elif client.is_stuck:
                # A status cannot overtake the message that is stuck; the call ends with the client
                # or at the edge. What it cost has ended already.
                log.warning("reader_stalled", turn_id=caller.turn_id)
                raise asyncio.CancelledError from error
            else:
                await client.write(chunks.error(sequence + 1, _public(error)))

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Lists the models."""
        return await _answered(context, self._list_models())

    async def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Describes one model."""
        return await _answered(context, self._get_model(request.model))

    async def ListConversations(  # noqa: N802
        self, request: pb.ListConversationsRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Lists the caller's conversations."""
        return await _answered(context, self._list_conversations(request, context))

    async def GetConversation(  # noqa: N802
        self, request: pb.GetConversationRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Returns one conversation with a page of its messages."""
        return await _answered(context, self._get_conversation(request, context))

    async def RenameConversation(  # noqa: N802
        self, request: pb.RenameConversationRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Changes a conversation."""
        return await _answered(context, self._update(request, context))

    async def DeleteConversation(  # noqa: N802
        self, request: pb.DeleteConversationRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Deletes one conversation."""
        return await _answered(context, self._delete(request, context))

    async def GetUsage(  # noqa: N802
        self, request: pb.GetUsageRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Sums the caller's usage over a month."""
        return await _answered(context, self._usage(request, context))

    async def _list_models(self) -> bytes:
        return listings.models(await self._up.catalogue.models())

    async def _get_model(self, model_id: str) -> bytes:
        if not model_id:
            raise public(errors.MODEL_NOT_FOUND, "Name a model.", param="model")
        return listings.model(await self._up.catalogue.find(model_id))

    async def _list_conversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        size = listings.page_size(request.page_size, listings.THREADS_PAGE_SIZE_MAX)
        page = await self._conversation.list(caller, size, request.page_token)
        return listings.threads(page)

    async def _get_conversation(
        self, request: pb.GetConversationRequest, context: Context
    ) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        size = listings.page_size(request.page_size, listings.MESSAGES_PAGE_SIZE_MAX)
        thread, page = await asyncio.gather(
            self._conversation.get(caller, request.conversation_id),
            self._conversation.messages(caller, request.conversation_id, size, request.page_token),
        )
        return listings.thread(thread, page)

    async def _update(self, request: pb.RenameConversationRequest, context: Context) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        changes = parse_changes(request.body.data)
        return listings.thread(
            await self._conversation.update(caller, request.conversation_id, changes)
        )

    async def _delete(self, request: pb.DeleteConversationRequest, context: Context) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        await self._conversation.delete(caller, request.conversation_id)
        return listings.deleted(request.conversation_id)

    async def _usage(self, request: pb.GetUsageRequest, context: Context) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        return listings.usage(await self._billing.usage(caller.account_id, request.period))


def _headers(started: Started) -> Sequence[tuple[str, str]]:
    headers = [NO_CACHE, ("x-turn-id", started.turn_id)]
    if started.conversation_id:
        headers.append(("x-conversation-id", started.conversation_id))
    return headers


def _public(error: Exception) -> MeshError:
    shown = public_error(error)
    if shown.reason == errors.INTERNAL_ERROR:
        # The type only: the text of an unknown error may hold a prompt.
        log.error("turn_crashed", error=type(error).__name__)
    return shown


async def _refused(context: Context, error: Exception) -> httpbody_pb2.HttpBody:
    refusal = http_error(_public(error))
    await context.send_initial_metadata(
        ((STATUS_KEY, str(refusal.status)), NO_CACHE, *refusal.headers)
    )
    return httpbody_pb2.HttpBody(content_type=JSON, data=refusal.body)


async def _answered(context: Context, body: Awaitable[bytes]) -> httpbody_pb2.HttpBody:
    try:
        return httpbody_pb2.HttpBody(content_type=JSON, data=await body)
    except Exception as error:
        return await _refused(context, error)
