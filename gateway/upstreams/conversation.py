"""The memory: threads and their messages, each account's its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from chatmesh.conversation.v1 import conversation_pb2 as pb
from chatmesh.conversation.v1 import conversation_pb2_grpc
from gateway.content import FINISH_REASONS, ROLE_WORDS, ROLES
from gateway.turn.domain import Caller, Message
from gateway.upstreams.contents import call_id_in, calls_in, parts_of
from gateway.upstreams.failures import translated


@dataclass(frozen=True, slots=True)
class History:
    """What was said in a thread: its newest messages, oldest first, and all its system messages."""

    messages: Sequence[Message] = ()
    # Tokens of each message as it was stored; 0: not counted then.
    token_counts: Sequence[int] = ()
    # Older messages that were left where they are, and their tokens.
    omitted_message_count: int = 0
    omitted_token_count: int = 0


@dataclass(frozen=True, slots=True)
class Thread:
    """Where a turn is kept, and what was said there before."""

    # Empty: the turn is not kept.
    id: str = ""
    # The thread does not exist yet.
    is_new: bool = False
    history: History = field(default_factory=History)
    # Its owner asked that turns run to their end although nobody reads.
    background: bool = False


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to keep."""

    message: Message
    token_count: int
    # Why an answer ended and which model wrote it; empty for other roles.
    finish_reason: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What an owner sets of a thread; None: it stays."""

    title: str | None = None
    background: bool | None = None


def to_stored(kept: NewMessage) -> pb.NewMessage:
    """A message as the contract has it."""
    return pb.NewMessage(
        role=ROLES[kept.message.role],
        content=kept.message.content,
        token_count=kept.token_count,
        finish_reason=kept.finish_reason,
        finish=FINISH_REASONS[kept.finish_reason],
        model=kept.model,
        parts=parts_of(kept.message),
    )


class Conversation:
    """Reads and changes threads."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._read = conversation_pb2_grpc.ThreadReadServiceStub(channel)
        self._write = conversation_pb2_grpc.ThreadWriteServiceStub(channel)

    async def history(self, caller: Caller, thread_id: str, token_count_max: int) -> Thread:
        """A thread with its newest messages that have at most so many tokens.

        Raises:
            MeshError: CONVERSATION_NOT_FOUND, also for another account's.
        """
        request = pb.GetTailRequest(
            account_id=caller.account_id, thread_id=thread_id, token_count_max=token_count_max
        )
        with translated("conversation"):
            tail = await self._read.GetTail(request)
        counts = [each.token_count for each in tail.messages]
        omitted = tail.omitted_message_count
        history = History(
            messages=[
                Message(
                    ROLE_WORDS[each.role],
                    each.content,
                    calls=calls_in(each.parts),
                    call_id=call_id_in(each.parts),
                )
                for each in tail.messages
            ],
            token_counts=counts,
            omitted_message_count=omitted,
            omitted_token_count=max(0, tail.thread.total_token_count - sum(counts)) * bool(omitted),
        )
        return Thread(thread_id, history=history, background=tail.thread.background)

    async def append(
        self, caller: Caller, thread: Thread, model: str, messages: Sequence[pb.NewMessage]
    ) -> None:
        """Adds the messages of a turn, all or none. Repeatable: the turn id is the key."""
        request = pb.AppendMessagesRequest(
            account_id=caller.account_id,
            thread_id=thread.id,
            request_id=caller.turn_id,
            model=model,
            create_if_missing=thread.is_new,
            messages=messages,
        )
        with translated("conversation"):
            await self._write.AppendMessages(request)

    async def list(self, caller: Caller, page_size: int, page_token: str) -> pb.ListThreadsResponse:
        """A page of the caller's threads, the most recently used first."""
        request = pb.ListThreadsRequest(
            account_id=caller.account_id, page_size=page_size, page_token=page_token
        )
        with translated("conversation"):
            return await self._read.ListThreads(request)

    async def get(self, caller: Caller, thread_id: str) -> pb.Thread:
        """A thread without its messages."""
        request = pb.GetThreadRequest(account_id=caller.account_id, thread_id=thread_id)
        with translated("conversation"):
            return (await self._read.GetThread(request)).thread

    async def messages(
        self, caller: Caller, thread_id: str, page_size: int, page_token: str
    ) -> pb.ListMessagesResponse:
        """A page of a thread's messages, oldest first."""
        request = pb.ListMessagesRequest(
            account_id=caller.account_id,
            thread_id=thread_id,
            page_size=page_size,
            page_token=page_token,
        )
        with translated("conversation"):
            return await self._read.ListMessages(request)

    async def update(self, caller: Caller, thread_id: str, changes: Changes) -> pb.Thread:
        """Changes what the owner may set of a thread."""
        if changes.background is None:  # a store of the version before knows no more than this
            return await self._rename(caller, thread_id, changes.title or "")
        request = pb.UpdateThreadRequest(
            account_id=caller.account_id,
            thread_id=thread_id,
            title=changes.title,
            background=changes.background,
            request_id=caller.turn_id,
        )
        with translated("conversation"):
            return (await self._write.UpdateThread(request)).thread

    async def _rename(self, caller: Caller, thread_id: str, title: str) -> pb.Thread:
        request = pb.RenameThreadRequest(
            account_id=caller.account_id,
            thread_id=thread_id,
            title=title,
            request_id=caller.turn_id,
        )
        with translated("conversation"):
            return (await self._write.RenameThread(request)).thread

    async def delete(self, caller: Caller, thread_id: str) -> None:
        """Deletes the thread."""
        request = pb.DeleteThreadRequest(
            account_id=caller.account_id, thread_id=thread_id, request_id=caller.turn_id
        )
        with translated("conversation"):
            await self._write.DeleteThread(request)
