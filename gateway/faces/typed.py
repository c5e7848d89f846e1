"""The typed face of a turn, for gRPC clients; the same turn, limits and reasons as over HTTP."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import sha256
from typing import Any

import grpc
from google.protobuf import timestamp_pb2

from chatmesh.billing.v1 import billing_pb2
from chatmesh.chat.v1 import chat_pb2 as pb
from chatmesh.chat.v1 import chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2
from gateway.admission.rate import RateExceededError
from gateway.content import FINISH_REASONS, ROLE_WORDS, TOOL_CHOICE_WORDS
from gateway.errors import bad_parameter
from gateway.faces.changes import checked_changes
from gateway.faces.entry import ChatAdmission, token_headers
from gateway.faces.identity import caller_of, checked_key
from gateway.faces.openai.errors import failure_error, public_error
from gateway.settings import TurnLimits
from gateway.turn.calls import read
from gateway.turn.domain import (
    Ask,
    ChoiceFinished,
    Finished,
    Message,
    ModelInfo,
    ResponseFormat,
    Sampling,
    Started,
    TextDelta,
    Tool,
    ToolUse,
    Usage,
)
from gateway.turn.events import Cursor, Numbered
from gateway.turn.follow import Following
from gateway.turn.stored import bound_to_stored, left_out_to_stored, logprobs_to_stored
from gateway.turn.turns import Turns, View
from gateway.upstreams.billing import Billing
from gateway.upstreams.catalogue import Catalogue
from gateway.upstreams.contents import call_id_in, call_of, calls_in
from gateway.upstreams.conversation import Changes, Conversation

USER_LENGTH_MAX = 256
READ_PARTS = {"text", "tool_call", "tool_result"}

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
        messages=[
            _asked_message(f"messages[{index}]", each)
            for index, each in enumerate(request.messages)
        ],
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
        tool_use=_tool_use(request.tool_use) if request.HasField("tool_use") else None,
        background=request.background if request.HasField("background") else None,
    )


def _asked_message(path: str, message: pb.Message) -> Message:
    """A message with the text of its parts, its tool calls, and whose result it is."""
    for index, part in enumerate(message.parts):
        if part.WhichOneof("kind") not in READ_PARTS:
            param = f"{path}.parts[{index}]"
            text = f"{param} must be text, a tool call or a tool result: nothing else is read."
            raise bad_parameter(param, text)
    texts = [
        part.tool_result.content if part.HasField("tool_result") else part.text
        for part in message.parts
        if not part.HasField("tool_call")
    ]
    joined = "".join(texts)
    if texts and message.content not in ("", joined):
        param = f"{path}.content"
        raise bad_parameter(param, f"{param} must be empty or the text of the parts, joined.")
    return Message(
        ROLE_WORDS.get(message.role, ""),
        joined or message.content,
        calls=calls_in(message.parts),
        call_id=call_id_in(message.parts),
    )


def _tool_use(asked: content_pb2.ToolUse) -> ToolUse:
    return ToolUse(
        [
            Tool(tool.name, tool.description, tool.parameters_json, tool.strict)
            for tool in asked.tools
        ],
        TOOL_CHOICE_WORDS.get(asked.choice, "" if asked.choice else "auto"),
        tuple(asked.allowed_names),
        asked.single_call,
    )


def _format(asked: content_pb2.ResponseFormat) -> ResponseFormat | None:
    kind = asked.WhichOneof("format")
    if kind is None or (kind == "json_object" and not asked.json_object):
        return None
    if kind == "choice":
        return ResponseFormat(kind, choices=tuple(asked.choice.texts))
    return ResponseFormat(kind, asked.json_schema or asked.regex)


def response_of(turn_id: str, epoch: int, numbered: Numbered) -> pb.ChatResponse:
    """An event as the contract has it.

    Raises:
        MeshError: the failure that ended the turn.
    """
    number, event = numbered
    cursor = Cursor(epoch, number).of(turn_id)
    response = pb.ChatResponse(sequence=number, cursor=cursor)
    if isinstance(event, TextDelta):
        response.delta.choice_index, response.delta.text = event.choice_index, event.text
        response.delta.token_count = event.token_count
        response.delta.logprobs.extend(logprobs_to_stored(each) for each in event.logprobs)
        for call in event.calls:
            response.delta.calls.add(
                call_index=call.call_index,
                id=call.id,
                name=call.name,
                arguments_json=call.arguments,
            )
    elif isinstance(event, Started):
        response.started.turn_id, response.started.model = event.turn_id, event.model.id
        response.started.conversation_id = event.conversation_id
        response.started.dropped_message_count = event.dropped_message_count
        response.started.left_out.extend(left_out_to_stored(each) for each in event.left_out)
        response.started.journaled = event.journaled
    elif isinstance(event, ChoiceFinished):
        ended = response.choice_finished
        ended.choice_index, ended.finish_reason = (
            event.choice_index,
            FINISH_REASONS[event.finish_reason],
        )
        ended.filter_category, ended.filter_offset = event.filter_category, event.filter_offset
        bound_to_stored(event.bound, ended)
    elif isinstance(event, Finished):
        response.finished.usage.CopyFrom(_usage_of(event.usage))
    else:
        raise failure_error(event)
    return response


def turn_of(view: View) -> pb.Turn:
    """A turn as the contract has it."""
    plan = view.plan.stored
    turn = pb.Turn(
        id=plan.turn_id,
        state=pb.TurnState.Value(f"TURN_STATE_{view.state.upper()}"),
        model=plan.request.model,
        conversation_id=plan.conversation_id,
        cursor=view.cursor.of(plan.turn_id),
        background=plan.background,
        journaled=view.journaled,
    )
    turn.create_time.FromMilliseconds(plan.create_time_ms)
    for answer in view.answers:
        found = read(view.plan, answer)
        turn.choices.add(
            choice_index=answer.choice_index,
            text=found.text,
            finish_reason=FINISH_REASONS[found.finish_reason] if answer.is_finished else 0,
            calls=map(call_of, found.calls),
        )
    if view.usage:
        turn.usage.CopyFrom(_usage_of(view.usage))
    if view.failure:
        turn.failure.reason = pb.Reason.Value(f"REASON_{view.failure.reason}")
        turn.failure.message = view.failure.message
    return turn


def _usage_of(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_token_count=usage.prompt_token_count,
        cached_token_count=usage.cached_token_count,
        completion_token_count=usage.completion_token_count,
    )


class ChatService(chat_pb2_grpc.ChatServiceServicer):
    """Talks."""

    def __init__(
        self, chat_admission: ChatAdmission, turns: Turns, catalogue: Catalogue, limits: TurnLimits
    ) -> None:
        self._chat_admission = chat_admission
        self._turns, self._catalogue, self._limits = turns, catalogue, limits

    # Written to, not generated: so that a deadline may fall inside a write.
    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Begins or joins a turn, and follows it."""
        try:
            caller, headers = await self._chat_admission.admitted(
                context.invocation_metadata() or ()
            )
            key, digest = checked_key(request.idempotency_key), ""
            if key:
                digest = sha256(request.SerializeToString(deterministic=True)).hexdigest()
            try:
                following = await self._turns.begin(ask_of(request), caller, key, digest)
                headers = (*headers, *token_headers(following.plan))
            finally:  # whatever the answer becomes
                if headers:
                    await context.send_initial_metadata(headers)
            async with aclosing(_responses(following)) as responses:
                async for response in responses:
                    await self._write(context, response)
        except RateExceededError as error:
            await context.send_initial_metadata(tuple(error.allowance.headers().items()))
            raise
        except Exception as error:
            raise public_error(error) from error

    async def Follow(self, request: pb.FollowRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Follows a turn behind a cursor."""
        try:
            caller = caller_of(context.invocation_metadata() or ())
            following = await self._turns.follow(request.turn_id, caller.account_id, request.after)
            async with aclosing(_responses(following)) as responses:
                async for response in responses:
                    await self._write(context, pb.FollowResponse(event=response))
        except Exception as error:
            raise public_error(error) from error

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:  # noqa: N802
        """Stops a turn."""
        caller = caller_of(context.invocation_metadata() or ())
        view = await self._turns.stop(request.turn_id, caller.account_id)
        return pb.CancelResponse(turn=turn_of(view))

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:  # noqa: N802
        """Describes a turn as it is now."""
        caller = caller_of(context.invocation_metadata() or ())
        view = await self._turns.view(request.turn_id, caller.account_id)
        return pb.GetTurnResponse(turn=turn_of(view))

    async def _write(self, context: Context, message: pb.ChatResponse | pb.FollowResponse) -> None:
        try:
            async with asyncio.timeout(self._limits.reader_stall_s_max):
                await context.write(message)
        except TimeoutError as error:
            # A status cannot overtake the message that is stuck.
            raise asyncio.CancelledError from error

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Lists the models."""
        models = await self._catalogue.models()
        return pb.ListModelsResponse(models=[_model(each) for each in models])


async def _responses(following: Following) -> AsyncGenerator[pb.ChatResponse, None]:
    turn_id = following.plan.turn_id
    async with aclosing(following.events()) as batches:
        async for batch in batches:
            for numbered in batch:
                yield response_of(turn_id, following.epoch, numbered)


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

    async def UpdateConversation(  # noqa: N802
        self, request: pb.UpdateConversationRequest, context: Context
    ) -> pb.UpdateConversationResponse:
        """Changes its title, or whether its turns run in the background."""
        changes = Changes(
            request.title if request.HasField("title") else None,
            request.background if request.HasField("background") else None,
        )
        changed = await self._update(request.conversation_id, changes, context)
        return pb.UpdateConversationResponse(conversation=changed)

    async def RenameConversation(  # noqa: N802
        self, request: pb.RenameConversationRequest, context: Context
    ) -> pb.RenameConversationResponse:
        """Changes its title."""
        changed = await self._update(request.conversation_id, Changes(request.title), context)
        return pb.RenameConversationResponse(conversation=changed)

    async def DeleteConversation(  # noqa: N802
        self, request: pb.DeleteConversationRequest, context: Context
    ) -> pb.DeleteConversationResponse:
        """Deletes one."""
        caller = caller_of(context.invocation_metadata() or ())
        await self._conversation.delete(caller, request.conversation_id)
        return pb.DeleteConversationResponse()

    async def _update(
        self, conversation_id: str, changes: Changes, context: Context
    ) -> pb.Conversation:
        caller = caller_of(context.invocation_metadata() or ())
        changed = await self._conversation.update(caller, conversation_id, checked_changes(changes))
        return _conversation(changed)


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
        background=found.background,
    )


def _message(found: conversation_pb2.Message) -> pb.Message:
    return pb.Message(
        role=found.role,
        content=found.content,
        create_time=found.create_time,
        token_count=found.token_count,
        turn_id=found.turn_id,
        # A store of the version before says the word only.
        parts=found.parts,
        finish_reason=found.finish
        or FINISH_REASONS.get(found.finish_reason, content_pb2.FINISH_REASON_UNSPECIFIED),
    )
