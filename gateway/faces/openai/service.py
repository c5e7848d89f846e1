"""The HTTP methods: bodies in, bodies out. Decides nothing."""

import asyncio
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any

import grpc
from google.api import httpbody_pb2

from chatmesh.gateway.v1 import gateway_pb2 as pb
from chatmesh.gateway.v1 import gateway_pb2_grpc
from gateway import errors
from gateway.errors import public
from gateway.faces.entry import ChatAdmission, HeadedContext, token_headers
from gateway.faces.identity import caller_of, idempotency_key, last_event_id
from gateway.faces.openai import listings
from gateway.faces.openai.requests import parse_changes, parse_chat_completion
from gateway.faces.openai.turns import (
    JSON,
    refused,
    turn_body,
    write_completion,
    write_events,
    write_view,
)
from gateway.settings import TurnLimits
from gateway.turn.turns import Turns
from gateway.upstreams.billing import Billing
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.conversation import Conversation

Context = grpc.aio.ServicerContext[Any, Any]


class OpenAIService(gateway_pb2_grpc.OpenAIServiceServicer):
    """What browsers and OpenAI SDKs reach."""

    def __init__(
        self,
        chat_admission: ChatAdmission,
        turns: Turns,
        *,
        catalogue: Catalogue,
        conversation: Conversation,
        billing: Billing,
        limits: TurnLimits,
    ) -> None:
        self._chat_admission = chat_admission
        self._turns, self._catalogue, self._limits = turns, catalogue, limits
        self._conversation, self._billing = conversation, billing

    # Written to, not generated: so that a deadline may fall inside a write.
    async def CreateChatCompletion(  # type: ignore[override]  # noqa: N802
        self, request: pb.CreateChatCompletionRequest, context: Context
    ) -> None:
        """Begins or joins a turn; every failure before the first byte is a status and a body."""
        metadata, body = context.invocation_metadata() or (), request.body.data
        answer: Any = context
        try:
            caller, headers = await self._chat_admission.admitted(metadata)
            answer, key = HeadedContext(context, headers), idempotency_key(metadata)
            wanted = parse_chat_completion(body)
            digest = sha256(body).hexdigest() if key else ""
            following = await self._turns.begin(wanted.ask, caller, key, digest)
            answer.headers = (*headers, *token_headers(following.plan))
            if wanted.ask.background and not wanted.stream:
                view = await self._turns.promised(following.plan.turn_id, caller.account_id)
        except Exception as error:
            await answer.write(await refused(answer, error))
            return
        if wanted.stream:
            await write_events(following, answer, self._limits)
        elif wanted.ask.background:
            await write_view(view, answer)
        else:
            await write_completion(following, answer, self._limits)

    async def FollowTurn(  # type: ignore[override]  # noqa: N802
        self, request: pb.FollowTurnRequest, context: Context
    ) -> None:
        """Writes the events of a turn behind a cursor."""
        metadata = context.invocation_metadata() or ()
        try:
            caller = caller_of(metadata)
            after = request.after or last_event_id(metadata)
            following = await self._turns.follow(request.turn_id, caller.account_id, after)
        except Exception as error:
            await context.write(await refused(context, error))
            return
        await write_events(following, context, self._limits, at_once=True)

    async def GetTurn(  # noqa: N802
        self, request: pb.GetTurnRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Describes a turn as it is now."""
        return await _answered(context, self._view(request.turn_id, context))

    async def CancelTurn(  # noqa: N802
        self, request: pb.CancelTurnRequest, context: Context
    ) -> httpbody_pb2.HttpBody:
        """Stops a turn."""
        return await _answered(context, self._stop(request.turn_id, context))

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

    async def _view(self, turn_id: str, context: Context) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        return turn_body(await self._turns.view(turn_id, caller.account_id))

    async def _stop(self, turn_id: str, context: Context) -> bytes:
        caller = caller_of(context.invocation_metadata() or ())
        return turn_body(await self._turns.stop(turn_id, caller.account_id))

    async def _list_models(self) -> bytes:
        return listings.models(await self._catalogue.models())

    async def _get_model(self, model_id: str) -> bytes:
        if not model_id:
            raise public(errors.MODEL_NOT_FOUND, "Name a model.", param="model")
        return listings.model(await self._catalogue.find(model_id))

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


async def _answered(context: Context, body: Awaitable[bytes]) -> httpbody_pb2.HttpBody:
    try:
        return httpbody_pb2.HttpBody(content_type=JSON, data=await body)
    except Exception as error:
        return await refused(context, error)
