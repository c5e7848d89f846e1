"""The typed face of a turn, for gRPC clients; the same turn, limits and reasons as over HTTP."""

import asyncio
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import timestamp_pb2

from chatmesh.billing.v1 import billing_pb2
from chatmesh.chat.v1 import chat_pb2 as pb
from chatmesh.chat.v1 import chat_pb2_grpc
from chatmesh.conversation.v1 import conversation_pb2
from gateway.context.parts import HISTORY, MESSAGES
from gateway.errors import bad_parameter
from gateway.faces.identity import caller_of
from gateway.faces.openai.errors import public_error
from gateway.turn.domain import (
    FINISH_CONTENT_FILTER,
    FINISH_LENGTH,
    FINISH_STOP,
    Ask,
    ChoiceFinished,
    Delta,
    Event,
    LeftOut,
    Logprob,
    Message,
    ModelInfo,
    ResponseFormat,
    Sampling,
    Started,
)
from gateway.turn.observe import observed
from gateway.turn.run import Upstreams, turn
from gateway.upstreams.billing import Billing
from gateway.upstreams.conversation import Conversation

ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}
FINISH_REASONS = {
    FINISH_STOP: pb.FINISH_REASON_STOP,
    FINISH_LENGTH: pb.FINISH_REASON_LENGTH,
    FINISH_CONTENT_FILTER: pb.FINISH_REASON_CONTENT_FILTER,
}
PARTS = {
    HISTORY.name: pb.PROMPT_PART_HISTORY,
    MESSAGES.name: pb.PROMPT_PART_MESSAGES,
}
USER_LENGTH_MAX = 256
TITLE_LENGTH_MAX = 200

Context = grpc.aio.ServicerContext[Any, Any]


def ask_of(request: pb.ChatRequest) -> Ask:
    """The request in the words of a turn.

    Raises:
        MeshError: INVALID_PARAMETER.
    """
    if len(request.user) > USER_LENGTH_MAX:
        raise bad_parameter("user", f"user must have at most {USER_LENGTH_MAX} characters.")
    return Ask(
        model=request.model,
        messages=[Message(ROLES.get(each.role, ""), each.content) for each in request.messages],
        conversation_id=request.conversation_id,
        store=request.store,
        max_tokens=request.max_tokens,
        n=request.n or 1,
        sampling=Sampling(
            temperature=request.temperature if request.HasField("temperature") else None,
            top_p=request.top_p if request.HasField("top_p") else None,
            seed=request.seed if request.HasField("seed") else None,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            top_k=request.top_k,
            min_p=request.min_p,
            logit_bias=dict(request.logit_bias),
        ),
        stop=tuple(request.stop),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        response_format=_format(request.response_format),
    )


def _format(asked: pb.ResponseFormat) -> ResponseFormat | None:
    kind = asked.WhichOneof("format")
    if kind is None or (kind == "json_object" and not asked.json_object):
        return None
    if kind == "choice":
        return ResponseFormat(kind, choices=tuple(asked.choice.texts))
    return ResponseFormat(kind, asked.json_schema or asked.regex)


def response_of(sequence: int, event: Event) -> pb.ChatResponse:
    """An event as the contract has it."""
    if isinstance(event, Delta):
        delta = pb.TextDelta(
            choice_index=event.choice_index,
            text=event.text,
            token_count=event.token_count,
            logprobs=[_logprobs(each) for each in event.logprobs],
        )
        return pb.ChatResponse(sequence=sequence, delta=delta)
    if isinstance(event, Started):
        started = pb.TurnStarted(
            turn_id=event.turn_id,
            model=event.model.id,
            conversation_id=event.conversation_id,
            dropped_message_count=event.dropped_message_count,
            left_out=map(_left_out, event.left_out),
        )
        return pb.ChatResponse(sequence=sequence, started=started)
    if isinstance(event, ChoiceFinished):
        reason = FINISH_REASONS[event.finish_reason]
        ended = pb.ChoiceFinished(
            choice_index=event.choice_index,
            finish_reason=reason,
            filter_category=event.filter_category,
            filter_offset=event.filter_offset,
        )
        return pb.ChatResponse(sequence=sequence, choice_finished=ended)
    usage = pb.Usage(
        prompt_token_count=event.usage.prompt_token_count,
        cached_token_count=event.usage.cached_token_count,
        completion_token_count=event.usage.completion_token_count,
    )
    return pb.ChatResponse(sequence=sequence, finished=pb.TurnFinished(usage=usage))


def _left_out(entry: LeftOut) -> pb.LeftOut:
    return pb.LeftOut(
        part=PARTS[entry.part], message_count=entry.message_count, token_count=entry.token_count
    )


def _logprobs(entry: Logprob) -> pb.PositionLogprobs:
    def one(token: Logprob) -> pb.TokenLogprob:
        return pb.TokenLogprob(text=token.text, logprob=token.logprob)

    return pb.PositionLogprobs(chosen=one(entry), top=[one(token) for token in entry.top])


class ChatService(chat_pb2_grpc.ChatServiceServicer):
    """Talks."""

    def __init__(self, up: Upstreams) -> None:
        self._up = up

    # Written to, not generated: so that a deadline may fall inside a write.
    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Runs a turn."""
        try:
            caller = caller_of(context.invocation_metadata() or ())
            async with asyncio.timeout(self._up.limits.turn_duration_s_max):
                async with aclosing(observed(turn(ask_of(request), caller, self._up))) as events:
                    async for sequence, event in events:
                        await self._write(context, response_of(sequence, event))
        except Exception as error:
            raise public_error(error) from error

    async def _write(self, context: Context, message: pb.ChatResponse) -> None:
        try:
            async with asyncio.timeout(self._up.limits.reader_stall_s_max):
                await context.write(message)
        except TimeoutError as error:
            # A status cannot overtake the message that is stuck.
            raise asyncio.CancelledError from error

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Lists the models."""
        models = await self._up.catalogue.models()
        return pb.ListModelsResponse(models=[_model(each) for each in models])


class ConversationService(chat_pb2_grpc.ConversationServiceServicer):
    """Reads and changes the caller's own conversations."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def ListConversations(  # noqa: N802
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        """Lists them, the most recently used first."""
        caller = caller_of(context.invocation_metadata() or ())
        page = await self._conversation.list(caller, request.page_size, request.page_token)
        return pb.ListConversationsResponse(
            conversations=[_conversation(each) for each in page.threads],
            next_page_token=page.next_page_token,
        )

    async def GetConversation(  # noqa: N802
        self, request: pb.GetConversationRequest, context: Context
    ) -> pb.GetConversationResponse:
        """Returns one with a page of its messages."""
        caller = caller_of(context.invocation_metadata() or ())
        thread, page = await asyncio.gather(
            self._conversation.get(caller, request.conversation_id),
            self._conversation.messages(
                caller, request.conversation_id, request.page_size, request.page_token
            ),
        )
        conversation = _conversation(thread)
        conversation.messages.extend(_message(each) for each in page.messages)
        return pb.GetConversationResponse(
            conversation=conversation, next_page_token=page.next_page_token
        )

    async def RenameConversation(  # noqa: N802
        self, request: pb.RenameConversationRequest, context: Context
    ) -> pb.RenameConversationResponse:
        """Changes its title."""
        caller = caller_of(context.invocation_metadata() or ())
        if not 1 <= len(request.title) <= TITLE_LENGTH_MAX:
            raise bad_parameter("title", f"title must have 1 to {TITLE_LENGTH_MAX} characters.")
        thread = await self._conversation.rename(caller, request.conversation_id, request.title)
        return pb.RenameConversationResponse(conversation=_conversation(thread))

    async def DeleteConversation(  # noqa: N802
        self, request: pb.DeleteConversationRequest, context: Context
    ) -> pb.DeleteConversationResponse:
        """Deletes one."""
        caller = caller_of(context.invocation_metadata() or ())
        await self._conversation.delete(caller, request.conversation_id)
        return pb.DeleteConversationResponse()


class UsageService(chat_pb2_grpc.UsageServiceServicer):
    """Tells what was used."""

    def __init__(self, billing: Billing) -> None:
        self._billing = billing

    async def GetUsage(  # noqa: N802
        self, request: pb.GetUsageRequest, context: Context
    ) -> pb.GetUsageResponse:
        """Sums the caller's account over a month."""
        caller = caller_of(context.invocation_metadata() or ())
        return _usage(await self._billing.usage(caller.account_id, request.period))


def _usage(found: billing_pb2.GetUsageResponse) -> pb.GetUsageResponse:
    return pb.GetUsageResponse(
        period=found.period,
        input_token_count=found.input_token_count,
        cached_input_token_count=found.cached_input_token_count,
        output_token_count=found.output_token_count,
        cost_nanousd=found.cost_nanousd,
        budget_nanousd=found.budget_nanousd,
    )


def _model(found: ModelInfo) -> pb.Model:
    model = pb.Model(id=found.id, context_token_count_max=found.context_token_count_max)
    if found.created_unix_s:
        model.create_time.CopyFrom(timestamp_pb2.Timestamp(seconds=found.created_unix_s))
    return model


def _conversation(found: conversation_pb2.Thread) -> pb.Conversation:
    return pb.Conversation(
        id=found.id,
        title=found.title,
        model=found.model,
        create_time=found.create_time,
        update_time=found.update_time,
        total_token_count=found.total_token_count,
    )


def _message(found: conversation_pb2.Message) -> pb.Message:
    # Both contracts number the roles alike.
    return pb.Message(
        role=pb.Role.Value(conversation_pb2.Role.Name(found.role)),
        content=found.content,
        create_time=found.create_time,
        token_count=found.token_count,
        turn_id=found.turn_id,
        finish_reason=FINISH_REASONS.get(found.finish_reason, pb.FINISH_REASON_UNSPECIFIED),
    )
