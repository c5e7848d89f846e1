"""Domain values as messages of the contract, and back."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from chatmesh.content.v1 import content_pb2
from chatmesh.content.v1.content_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason, Role
from chatmesh.conversation.v1 import conversation_pb2 as pb
from conversation_svc.thread import Message, NewMessage, Tail, Thread
from mesh.chassis.enums import words_of

# Stored as words: the rows of every version so far.
FINISH_WORDS = words_of(FinishReason)
FINISH_REASONS = {word: number for number, word in FINISH_WORDS.items()}


def timestamp(time: datetime) -> Timestamp:
    """A time, to the microsecond."""
    result = Timestamp()
    result.FromDatetime(time)
    return result


def thread_to_proto(thread: Thread) -> pb.Thread:
    """A thread for the wire."""
    return pb.Thread(
        id=thread.id,
        title=thread.title,
        model=thread.model,
        create_time=timestamp(thread.create_time),
        update_time=timestamp(thread.update_time),
        total_token_count=thread.total_token_count,
        message_count=thread.message_count,
        background=thread.background,
    )


def thread_from_proto(thread: pb.Thread) -> Thread:
    """A thread that `thread_to_proto` wrote."""
    return Thread(
        id=thread.id,
        title=thread.title,
        model=thread.model,
        create_time=thread.create_time.ToDatetime(tzinfo=UTC),
        update_time=thread.update_time.ToDatetime(tzinfo=UTC),
        total_token_count=thread.total_token_count,
        message_count=thread.message_count,
        background=thread.background,
    )


def message_to_proto(message: Message) -> pb.Message:
    """A message for the wire."""
    return pb.Message(
        id=message.id,
        role=Role.ValueType(message.role),
        content=message.content,
        token_count=message.token_count,
        turn_id=message.turn_id,
        create_time=timestamp(message.create_time),
        finish_reason=message.finish_reason,
        finish=FINISH_REASONS.get(message.finish_reason, FINISH_REASON_UNSPECIFIED),
        model=message.model,
        parts=content_pb2.Message.FromString(message.parts).parts if message.parts else (),
    )


def message_from_proto(message: pb.Message) -> Message:
    """A message that `message_to_proto` wrote."""
    return Message(
        id=message.id,
        role=message.role,
        content=message.content,
        token_count=message.token_count,
        turn_id=message.turn_id,
        create_time=message.create_time.ToDatetime(tzinfo=UTC),
        finish_reason=_finish_word(message),
        model=message.model,
        parts=_stored_parts(message),
    )


def new_message_from_proto(message: pb.NewMessage) -> NewMessage:
    """A message to add, as a caller sent it."""
    return NewMessage(
        role=message.role,
        content=message.content,
        token_count=message.token_count,
        finish_reason=_finish_word(message),
        model=message.model,
        parts=_stored_parts(message),
    )


def _stored_parts(message: pb.Message | pb.NewMessage) -> bytes:
    return content_pb2.Message(parts=message.parts).SerializeToString() if message.parts else b""


def _finish_word(message: pb.Message | pb.NewMessage) -> str:
    """Why an answer ended, as it is stored; a writer of the version before says the word only."""
    return FINISH_WORDS.get(message.finish, message.finish_reason)


def tail_to_proto(tail: Tail) -> pb.GetTailResponse:
    """A tail for the wire; also the form in which it is kept in Redis."""
    return pb.GetTailResponse(
        thread=thread_to_proto(tail.thread),
        messages=map(message_to_proto, tail.messages),
        omitted_message_count=tail.omitted_message_count,
    )


def tail_from_proto(tail: pb.GetTailResponse) -> Tail:
    """A tail that `tail_to_proto` wrote."""
    return Tail(thread_from_proto(tail.thread), tuple(map(message_from_proto, tail.messages)))
