"""The clients of the experiment put answers together and tell a cut from an answer."""

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from chatmesh.chat.v1 import chat_pb2
from chatmesh.content.v1 import content_pb2
from clients.python.resume import Trouble
from tests.chaos.clients import Gathered, Notes, trouble_of
from tests.chaos.verdict import Answer, Choice


class Failed(grpc.RpcError):
    """A call that ended with a status, as a client sees it."""

    def __init__(self, code, trailers=()):
        self._code, self._trailers = code, trailers

    def code(self):
        return self._code

    def details(self):
        return "no"

    def trailing_metadata(self):
        return self._trailers


def with_reason(code, reason):
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="chatmesh"))
    status = status_pb2.Status(code=code, message="no", details=[detail])
    return (("grpc-status-details-bin", status.SerializeToString()),)


BY_THE_EDGE = (("x-request-id", "r"),)


@pytest.mark.parametrize(
    ("code", "trailers", "trouble"),
    [
        (grpc.StatusCode.UNAVAILABLE, (), Trouble(0, "UNAVAILABLE")),
        (grpc.StatusCode.INTERNAL, (), Trouble(0, "INTERNAL")),
        (grpc.StatusCode.CANCELLED, (), Trouble(0, "CANCELLED")),
        (grpc.StatusCode.UNAVAILABLE, BY_THE_EDGE, Trouble(503, "edge")),
        (
            grpc.StatusCode.UNAVAILABLE,
            with_reason(code_pb2.UNAVAILABLE, "OVERLOADED"),
            Trouble(503, "overloaded"),
        ),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            with_reason(code_pb2.DEADLINE_EXCEEDED, "TIMEOUT"),
            Trouble(504, "timeout"),
        ),
        (grpc.StatusCode.NOT_FOUND, with_reason(code_pb2.NOT_FOUND, "TURN_NOT_FOUND"), None),
        (grpc.StatusCode.INVALID_ARGUMENT, BY_THE_EDGE, None),
        (grpc.StatusCode.INTERNAL, BY_THE_EDGE, None),
    ],
)
def test_what_a_failed_call_was(code, trailers, trouble):
    assert trouble_of(Failed(code, trailers)) == trouble


def chunk(index, text="", finish=None, **more):
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return {"choices": [choice | more], "usage": None}


def test_chunks_of_two_answers_are_put_together():
    gathered = Gathered(2)
    entries = {"logprobs": {"content": [{"token": "a"}, {"token": "b"}]}}
    for one in (
        chunk(0, "a", **entries),
        chunk(1, "x"),
        chunk(0, "b"),
        chunk(1, finish="length"),
        chunk(0, finish="stop") | {"conversation_id": "c"},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ):
        gathered.add(one)
    choices = (Choice("ab", "stop", ("a", "b")), Choice("x", "length"))
    assert gathered.answer() == Answer(choices, 3, 4)
    assert gathered.conversation_id == "c"


def test_typed_events_are_put_together():
    gathered = Gathered(1)
    done = chat_pb2.ChoiceFinished(finish_reason=content_pb2.FINISH_REASON_LENGTH)
    usage = chat_pb2.Usage(prompt_token_count=3, completion_token_count=2)
    for event in (
        chat_pb2.ChatResponse(started=chat_pb2.TurnStarted(turn_id="t")),
        chat_pb2.ChatResponse(delta=chat_pb2.TextDelta(text="a")),
        chat_pb2.ChatResponse(delta=chat_pb2.TextDelta(text="b")),
        chat_pb2.ChatResponse(choice_finished=done),
        chat_pb2.ChatResponse(finished=chat_pb2.TurnFinished(usage=usage)),
    ):
        gathered.add_event(event)
    assert gathered.answer() == Answer((Choice("ab", "length"),), 3, 2)


def test_silences_are_noted_when_they_are_long():
    moments = iter([0.0, 0.05, 1.5, 1.52])
    notes = Notes(lambda: next(moments))
    assert list(notes.listened("abc")) == ["a", "b", "c"]
    assert notes.silences == [(0.05, 1.5)]
