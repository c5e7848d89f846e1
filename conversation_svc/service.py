"""ThreadReadService and ThreadWriteService: the contract over store and hot tail."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc
from ulid import ULID

from chatmesh.content.v1 import content_pb2
from chatmesh.conversation.v1 import conversation_pb2 as pb
from chatmesh.conversation.v1 import conversation_pb2_grpc
from conversation_svc.history import read_history
from conversation_svc.hot_tail import HotTail
from conversation_svc.statements import Request
from conversation_svc.store import Store
from conversation_svc.thread import (
    BadRequestError,
    RequestReusedError,
    Thread,
    ThreadNotFoundError,
    changed,
    check_name,
    check_new_messages,
    check_thread_id,
    checked_title,
    content_digest,
    is_thread_id,
    message_parts,
    page_of,
)
from conversation_svc.wire import (
    message_to_proto,
    new_message_from_proto,
    tail_to_proto,
    thread_to_proto,
)
from mesh.chassis import pages
from mesh.chassis.errors import MeshError
from mesh.chassis.postgres import StoreUnavailableError

THREADS_PAGE_SIZE, THREADS_PAGE_SIZE_MAX = 20, 100
MESSAGES_PAGE_SIZE, MESSAGES_PAGE_SIZE_MAX = 100, 1000
TAIL_MESSAGE_COUNT, TAIL_MESSAGE_COUNT_MAX = 1024, 4096
# A store that is restarted is back in about this time.
RETRY_AFTER_S = 1.0

# What a message of a role may be made of beside its text.
_PARTS = {content_pb2.ROLE_ASSISTANT: "tool_call", content_pb2.ROLE_TOOL: "tool_result"}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


class ThreadReadService(conversation_pb2_grpc.ThreadReadServiceServicer):
    """Reads threads."""

    def __init__(self, store: Store, hot: HotTail) -> None:
        self._store, self._hot = store, hot

    async def GetThread(  # noqa: N802
        self, request: pb.GetThreadRequest, context: Context
    ) -> pb.GetThreadResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_thread_id(request.thread_id)
            thread = await self._store.get_thread(request.account_id, request.thread_id)
        return pb.GetThreadResponse(thread=thread_to_proto(thread))

    async def ListThreads(  # noqa: N802
        self, request: pb.ListThreadsRequest, context: Context
    ) -> pb.ListThreadsResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            size = pages.page_size(request.page_size, THREADS_PAGE_SIZE, THREADS_PAGE_SIZE_MAX)
            list_name = ("threads", request.account_id)
            behind = pages.place_of(list_name, request.page_token, (_time, _thread_id))
            threads = await self._store.list_threads(request.account_id, behind, size + 1)
        page, more = pages.cut(threads, size)
        token = ""
        if more:
            token = pages.page_token(list_name, (page[-1].update_time.isoformat(), page[-1].id))
        return pb.ListThreadsResponse(threads=map(thread_to_proto, page), next_page_token=token)

    async def ListMessages(  # noqa: N802
        self, request: pb.ListMessagesRequest, context: Context
    ) -> pb.ListMessagesResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_thread_id(request.thread_id)
            size = pages.page_size(request.page_size, MESSAGES_PAGE_SIZE, MESSAGES_PAGE_SIZE_MAX)
            list_name = ("messages", request.account_id, request.thread_id)
            (behind,) = pages.place_of(list_name, request.page_token, (_position,)) or (0,)
            # Also tells a deleted thread from an empty page, and where the list ends.
            thread = await self._store.get_thread(request.account_id, request.thread_id)
            found = await self._store.list_messages(
                request.account_id, request.thread_id, behind, size
            )
            page = page_of(found)
        token = ""
        if page and page[-1][0] < thread.message_count:
            token = pages.page_token(list_name, (str(page[-1][0]),))
        messages = [message_to_proto(message) for _, message in page]
        return pb.ListMessagesResponse(messages=messages, next_page_token=token)

    async def GetTail(self, request: pb.GetTailRequest, context: Context) -> pb.GetTailResponse:  # noqa: N802
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_thread_id(request.thread_id)
            if request.message_count_max > TAIL_MESSAGE_COUNT_MAX:
                raise BadRequestError(
                    "message_count_max", f"message_count_max is at most {TAIL_MESSAGE_COUNT_MAX}."
                )
            tail = await read_history(
                self._store,
                self._hot,
                request.account_id,
                request.thread_id,
                token_count_max=request.token_count_max,
                message_count_max=request.message_count_max or TAIL_MESSAGE_COUNT,
            )
        return tail_to_proto(tail)


class ThreadWriteService(conversation_pb2_grpc.ThreadWriteServiceServicer):
    """Changes threads.

    Args:
        clock: tells the time of every change.
    """

    def __init__(self, store: Store, hot: HotTail, clock: Clock = utc_now) -> None:
        self._store, self._hot, self._clock = store, hot, clock

    async def CreateThread(  # noqa: N802
        self, request: pb.CreateThreadRequest, context: Context
    ) -> pb.CreateThreadResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_name("request_id", request.request_id)
            check_name("model", request.model, may_be_empty=True)
            title = checked_title(request.title, may_be_empty=True)
            now = self._clock()
            thread = Thread(f"thr_{ULID.from_datetime(now)}", title, request.model, now, now)
            asked = Request("create", request.request_id, content_digest(title, request.model))
            thread = await self._store.create_thread(request.account_id, thread, asked)
        return pb.CreateThreadResponse(thread=thread_to_proto(thread))

    async def AppendMessages(  # noqa: N802
        self, request: pb.AppendMessagesRequest, context: Context
    ) -> pb.AppendMessagesResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_name("request_id", request.request_id)
            check_name("model", request.model, may_be_empty=True)
            if request.create_if_missing and not is_thread_id(request.thread_id):
                raise BadRequestError("thread_id", 'A new thread is named "thr_" and a ULID.')
            check_thread_id(request.thread_id)
            _check_parts(request.messages)
            new = [new_message_from_proto(message) for message in request.messages]
            check_new_messages(new)
            parts = (request.thread_id, request.model, *message_parts(new))
            thread, messages, before_id = await self._store.append_messages(
                request.account_id,
                request.thread_id,
                new,
                model=request.model,
                request=Request("append", request.request_id, content_digest(*parts)),
                now=self._clock(),
                create_if_missing=request.create_if_missing,
            )
            await self._hot.extend(request.account_id, before_id, thread, messages)
        return pb.AppendMessagesResponse(
            thread=thread_to_proto(thread), messages=map(message_to_proto, messages)
        )

    async def UpdateThread(  # noqa: N802
        self, request: pb.UpdateThreadRequest, context: Context
    ) -> pb.UpdateThreadResponse:
        """See the contract."""
        with _as_mesh_errors():
            changes: dict[str, Any] = {}
            if request.HasField("title"):
                changes["title"] = checked_title(request.title)
            if request.HasField("background"):
                changes["background"] = request.background
            if not changes:
                raise BadRequestError("title", "Nothing is to change: give title or background.")
            thread = await self._change("update", request, **changes)
        return pb.UpdateThreadResponse(thread=thread_to_proto(thread))

    async def RenameThread(  # noqa: N802
        self, request: pb.RenameThreadRequest, context: Context
    ) -> pb.RenameThreadResponse:
        """See the contract."""
        with _as_mesh_errors():
            thread = await self._change("rename", request, title=checked_title(request.title))
        return pb.RenameThreadResponse(thread=thread_to_proto(thread))

    async def DeleteThread(  # noqa: N802
        self, request: pb.DeleteThreadRequest, context: Context
    ) -> pb.DeleteThreadResponse:
        """See the contract."""
        with _as_mesh_errors():
            check_name("account_id", request.account_id)
            check_name("request_id", request.request_id, may_be_empty=True)
            check_thread_id(request.thread_id)
            await self._store.change_thread(
                request.account_id,
                request.thread_id,
                lambda thread: thread,
                Request("delete", request.request_id, content_digest(request.thread_id)),
                self._clock(),
                delete=True,
            )
            await self._hot.drop(request.account_id, request.thread_id)
        return pb.DeleteThreadResponse()

    async def _change(
        self,
        method: str,
        request: pb.UpdateThreadRequest | pb.RenameThreadRequest,
        **changes: Any,
    ) -> Thread:
        """Changes what an owner may set; raises what `checked` methods and the store raise."""
        check_name("account_id", request.account_id)
        check_name("request_id", request.request_id, may_be_empty=True)
        check_thread_id(request.thread_id)
        # A rename is digested as the version before did: it may be repeated across an upgrade.
        parts = changes.values() if method == "rename" else sorted(changes.items())
        return await self._store.change_thread(
            request.account_id,
            request.thread_id,
            lambda thread: changed(thread, **changes),
            Request(method, request.request_id, content_digest(request.thread_id, *parts)),
            self._clock(),
        )


def _check_parts(messages: Sequence[pb.NewMessage]) -> None:
    """What cannot be kept is refused, not lost."""
    for index, message in enumerate(messages):
        kept = _PARTS.get(message.role)
        if any(part.WhichOneof("kind") != kept for part in message.parts):
            raise BadRequestError(
                f"messages[{index}].parts",
                f"messages[{index}] has parts that are no tool calls of an assistant and not the "
                "result of one: give its text as content.",
            )


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("no time zone")
    return time


def _thread_id(text: str) -> str:
    if not is_thread_id(text):
        raise ValueError("no thread id")
    return text


def _position(text: str) -> int:
    position = int(text)
    if not 0 <= position < 1 << 31:
        raise ValueError("no position")
    return position


@contextmanager
def _as_mesh_errors() -> Iterator[None]:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    try:
        yield
    except BadRequestError as error:
        raise MeshError(
            invalid, "BAD_REQUEST", str(error), metadata={"field": error.field}
        ) from error
    except ThreadNotFoundError as error:
        raise MeshError(
            grpc.StatusCode.NOT_FOUND,
            "THREAD_NOT_FOUND",
            f"There is no conversation {error.thread_id!r} in this account.",
            metadata={"thread_id": error.thread_id},
        ) from error
    except RequestReusedError as error:
        raise MeshError(
            grpc.StatusCode.ALREADY_EXISTS,
            "REQUEST_REUSED",
            "The request_id was used for another request; make a new one.",
        ) from error
    except StoreUnavailableError as error:
        raise MeshError(
            grpc.StatusCode.UNAVAILABLE,
            "STORE_UNAVAILABLE",
            "Conversations cannot be reached at the moment; try again soon.",
            retry_after_s=RETRY_AFTER_S,
        ) from error
