"""Clients that come back after every cut, and note what they met on the way.

HTTP clients are `clients/python/resume.py`; the typed one does the same with Chat and Follow.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chatmesh.chat.v1 import chat_pb2, chat_pb2_grpc
from chatmesh.content.v1 import content_pb2
from clients.python.resume import AGAIN, BACK_OFF_S_MAX, BACK_OFF_S_MIN, Server, Trouble, TurnError
from tests.chaos.verdict import Answer, Choice, Outcome, Seen
from tests.chaos.wishes import STREAMED, Wish

SILENCE_S_MIN = 0.1
PATIENCE_S = 60.0
# What failures of a server are in HTTP.
HTTP_OF = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.INTERNAL: 500,
}
FINISH = {
    content_pb2.FINISH_REASON_STOP: "stop",
    content_pb2.FINISH_REASON_LENGTH: "length",
    content_pb2.FINISH_REASON_CONTENT_FILTER: "content_filter",
    content_pb2.FINISH_REASON_CANCELLED: "cancelled",
}
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class Place:
    """Where the copy is, and with whose keys it is asked.

    Attributes:
        url: of the plain listener.
        tls_address: host:port for gRPC.
        ca_pem: root of its certificate.
        keys: API key for each shape.
    """

    url: str
    tls_address: str
    ca_pem: bytes
    keys: Mapping[str, str]


class Gathered:
    """Puts the chunks of a streamed turn together."""

    def __init__(self, n: int) -> None:
        self._texts: list[list[str]] = [[] for _ in range(n)]
        self._tokens: list[list[str]] = [[] for _ in range(n)]
        self._finish = [""] * n
        self._usage = (0, 0)
        self.conversation_id = ""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes one chunk of the HTTP face."""
        self.conversation_id = chunk.get("conversation_id", self.conversation_id)
        for choice in chunk["choices"]:
            index = choice["index"]
            self._texts[index].append(choice["delta"].get("content") or "")
            self._finish[index] = choice["finish_reason"] or self._finish[index]
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                self._tokens[index].append(entry["token"])
        if usage := chunk.get("usage"):
            self._usage = usage["prompt_tokens"], usage["completion_tokens"]

    def add_event(self, event: chat_pb2.ChatResponse) -> None:
        """Takes one event of the typed face."""
        match event.WhichOneof("event"):
            case "delta":
                self._texts[event.delta.choice_index].append(event.delta.text)
            case "choice_finished":
                done = event.choice_finished
                self._finish[done.choice_index] = FINISH[done.finish_reason]
            case "finished":
                usage = event.finished.usage
                self._usage = usage.prompt_token_count, usage.completion_token_count

    def answer(self) -> Answer:
        """All of it."""
        choices = (
            Choice("".join(texts), finish, tuple(tokens))
            for texts, finish, tokens in zip(self._texts, self._finish, self._tokens, strict=True)
        )
        return Answer(tuple(choices), *self._usage)


@dataclass
class Notes:
    """What a client meets while it has one wish."""

    clock: Callable[[], float]
    troubles: list[Seen] = field(default_factory=list)
    silences: list[tuple[float, float]] = field(default_factory=list)
    turn_ids: list[str] = field(default_factory=list)

    def trouble(self, trouble: Trouble) -> None:
        """Something went wrong and is tried again."""
        self.troubles.append(Seen(self.clock(), trouble.status, trouble.code))

    def listened(self, events: Iterable[Any]) -> Iterator[Any]:
        """The events as they come; the silences before them are noted."""
        last_s = self.clock()
        for event in events:
            now_s = self.clock()
            if now_s - last_s > SILENCE_S_MIN:
                self.silences.append((last_s, now_s))
            last_s = now_s
            yield event


def fulfil(wish: Wish, place: Place, clock: Callable[[], float]) -> Outcome:
    """One wish from first to last; never raises for what a server does."""
    begin_s, notes, answers, failure = clock(), Notes(clock), [], ""
    try:
        for answer in _answers(wish, place, notes):
            answers.append(answer)
    except (TurnError, grpc.RpcError, LookupError, ValueError, TypeError) as error:
        failure = f"{type(error).__name__}: {error}"[:300]
    silences = tuple(notes.silences) if wish.shape in STREAMED else ()
    return Outcome(
        wish.number, wish.shape, begin_s, clock(), tuple(answers), failure,
        tuple(notes.troubles), silences,
    )  # fmt: skip


def _answers(wish: Wish, place: Place, notes: Notes) -> Iterator[Answer]:
    server = Server(place.url, place.keys[wish.shape], PATIENCE_S, notes.trouble)
    if wish.shape == "typed":
        yield from (_typed(body, place, notes) for body in wish.bodies)
        return
    conversation: dict[str, str] = {}
    for body in wish.bodies:
        whole = {**body, **conversation}
        if wish.shape == "whole":
            yield _whole(server.call("POST", "/v1/chat/completions", whole))
            continue
        if wish.shape == "background":
            turn = server.call("POST", "/v1/chat/completions", whole)
            events = server.follow(turn["id"])
        else:
            whole["stream_options"] = {"include_usage": True}
            events = server.stream(whole)
        gathered = Gathered(int(body.get("n", 1)))
        for chunk in notes.listened(events):
            gathered.add(chunk)
        conversation = {"conversation_id": gathered.conversation_id}
        answer = gathered.answer()
        if wish.shape == "background":  # its stream was not asked for the usage
            usage = _ended(server, turn["id"])["usage"]
            answer = Answer(answer.choices, usage["prompt_tokens"], usage["completion_tokens"])
        yield answer


def _ended(server: "Server", turn_id: str) -> Any:
    """A turn whose end was heard; its state may come later when the journal was away."""
    end = time.monotonic() + PATIENCE_S
    while True:
        turn = server.call("GET", f"/api/turns/{turn_id}")
        if turn["status"] != "running" or time.monotonic() > end:
            return turn
        time.sleep(SILENCE_S_MIN)


def _whole(body: Mapping[str, Any]) -> Answer:
    gathered = Gathered(len(body["choices"]))
    gathered.add(
        {
            "choices": [
                {**choice, "delta": {"content": choice["message"]["content"]}}
                for choice in body["choices"]
            ],
            "usage": body["usage"],
        }
    )
    return gathered.answer()


def _typed(body: Mapping[str, Any], place: Place, notes: Notes) -> Answer:
    gathered = Gathered(body["n"])
    for event in notes.listened(_followed(_request(body), place, notes)):
        gathered.add_event(event)
    return gathered.answer()


def _request(body: Mapping[str, Any]) -> chat_pb2.ChatRequest:
    fields = {name: body[name] for name in ("model", "max_tokens", "temperature", "seed", "n")}
    messages = [
        chat_pb2.Message(role=content_pb2.ROLE_USER, content=one["content"])
        for one in body["messages"]
    ]
    return chat_pb2.ChatRequest(messages=messages, idempotency_key=str(uuid.uuid4()), **fields)


def _followed(
    request: chat_pb2.ChatRequest, place: Place, notes: Notes
) -> Iterator[chat_pb2.ChatResponse]:
    """The events of a typed turn, each once: Chat, and after a cut Follow from the last cursor."""
    turn_id = cursor = ""
    delay_s, end = 0.0, time.monotonic() + PATIENCE_S
    while True:
        with _channel(place) as channel:
            stub = chat_pb2_grpc.ChatServiceStub(channel)
            metadata = (("authorization", f"Bearer {place.keys['typed']}"),)
            if turn_id:
                follow = chat_pb2.FollowRequest(turn_id=turn_id, after=cursor)
                call = stub.Follow(follow, metadata=metadata, timeout=PATIENCE_S)
            else:
                call = stub.Chat(request, metadata=metadata, timeout=PATIENCE_S)
            try:
                for answer in call:
                    event = answer.event if isinstance(answer, chat_pb2.FollowResponse) else answer
                    turn_id = event.started.turn_id or turn_id
                    yield event
                    cursor = event.cursor
                    delay_s, end = 0.0, time.monotonic() + PATIENCE_S
                    if event.WhichOneof("event") == "finished":
                        return
                trouble = Trouble(0, "ended without its last event")
            except grpc.RpcError as error:
                trouble = trouble_of(error)
                if trouble is None or time.monotonic() > end:
                    raise
        notes.trouble(trouble)
        time.sleep(delay_s)
        delay_s = min(max(2 * delay_s, BACK_OFF_S_MIN), BACK_OFF_S_MAX)


def _channel(place: Place) -> grpc.Channel:
    address = place.tls_address.replace("127.0.0.1", "localhost")
    credentials = grpc.ssl_channel_credentials(place.ca_pem)
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def trouble_of(error: grpc.RpcError) -> Trouble | None:
    """What a failed call was; None when it must not be tried again.

    A status with a reason, or one that the edge answered by itself, is an answer; without either
    the connection broke, and the status is gRPC's own word for that.
    """
    reason = _reason(error)
    trailers = {key for key, _ in error.trailing_metadata() or ()}
    if reason or "x-request-id" in trailers:
        status = HTTP_OF.get(error.code(), 0)
        return Trouble(status, reason or "edge") if status in AGAIN else None
    cuts = (*HTTP_OF, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
    return Trouble(0, error.code().name) if error.code() in cuts else None


def _reason(error: grpc.RpcError) -> str:
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason.lower()
    return ""


class Crowd:
    """Clients that have one wish after the other, until they are told to stop.

    Args:
        wishes: taken in turn, over and over.
        count: how many clients.
    """

    def __init__(
        self,
        wishes: Sequence[Wish],
        place: Place,
        count: int,
        clock: Callable[[], float],
        *,
        rounds: int | None = None,
    ) -> None:
        self._wishes, self._place, self._clock = wishes, place, clock
        self._left = None if rounds is None else rounds * len(wishes)
        self._next, self._lock, self._stop = 0, threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        self._current: dict[int, tuple[Wish, float]] = {}
        self.outcomes: list[Outcome] = []

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets every client have its present wish and no further one."""
        self._stop.set()

    def join(self, timeout_s: float) -> list[Outcome]:
        """Waits; returns what those clients are at that have not ended."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        now_s = self._clock()
        with self._lock:
            return [
                Outcome(wish.number, wish.shape, begin_s, now_s, (), "has not ended")
                for wish, begin_s in self._current.values()
            ]

    def _run(self) -> None:
        while (wish := self._take()) is not None:
            outcome = fulfil(wish, self._place, self._clock)
            with self._lock:
                self.outcomes.append(outcome)
                del self._current[threading.get_ident()]

    def _take(self) -> Wish | None:
        with self._lock:
            if self._stop.is_set() or (self._left is not None and self._next >= self._left):
                return None
            wish = self._wishes[self._next % len(self._wishes)]
            self._next += 1
            self._current[threading.get_ident()] = wish, self._clock()
            return wish
