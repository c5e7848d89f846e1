"""Threads and messages: what they are, what may be added, what a turn gets to read.

Pure: values in, values out; time and ids come in as arguments.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from json.encoder import encode_basestring
from unicodedata import category

from chatmesh.content.v1.content_pb2 import ROLE_SYSTEM, ROLE_USER, Role
from mesh.chassis.enums import words_of

ROLES = words_of(Role)  # stored as the numbers of the contract

TITLE_CHARACTER_COUNT_MAX = 200
# A title that is made from a message is shorter: it stands in a list.
MADE_TITLE_CHARACTER_COUNT_MAX = 80
NAME_CHARACTER_COUNT_MAX = 200
CONTENT_BYTE_COUNT_MAX = 1 << 20
MESSAGES_PER_APPEND_MAX = 256
# Of contents in one answer: gRPC clients take 4 MiB at most unless told otherwise.
ANSWER_BYTE_COUNT_MAX = 3 << 20

_ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
_THREAD_ID = re.compile(f"thr_{_ULID}")


class BadRequestError(Exception):
    """A field is out of its range; `field` is its path."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class ThreadNotFoundError(Exception):
    """The account has no such thread."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.thread_id = thread_id


class RequestReusedError(Exception):
    """The request id was used before, for something else."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation; see the contract.

    Attributes:
        last_message_id: of its newest message; names its state, for no other append has made it.
            Empty: none, or not known (added by a version before, or an answer given before).
    """

    id: str
    title: str
    model: str
    create_time: datetime
    update_time: datetime
    total_token_count: int = 0
    message_count: int = 0
    background: bool = False
    last_message_id: str = ""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to add; see the contract."""

    role: int
    content: str
    token_count: int
    finish_reason: str
    model: str
    # Serialised content.v1.Message with nothing but parts; empty: text only.
    parts: bytes = b""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was added; see the contract."""

    id: str
    role: int
    content: str
    token_count: int
    turn_id: str
    create_time: datetime
    finish_reason: str
    model: str
    parts: bytes = b""

    @property
    def byte_count(self) -> int:
        """Bytes of its text and parts."""
        return utf8_length(self.content) + len(self.parts)


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest messages of a thread and its system messages, oldest first."""

    thread: Thread
    messages: tuple[Message, ...]

    @property
    def omitted_message_count(self) -> int:
        """Messages of the thread that are not in it."""
        return self.thread.message_count - len(self.messages)


def is_thread_id(text: str) -> bool:
    """Whether `text` is "thr_" and a ULID."""
    return _THREAD_ID.fullmatch(text) is not None


def check_thread_id(text: str) -> None:
    """Checks an id that must name an existing thread.

    Raises:
        ThreadNotFoundError: no thread has such an id.
    """
    if not is_thread_id(text):
        raise ThreadNotFoundError(text[:NAME_CHARACTER_COUNT_MAX])


def check_name(field: str, text: str, *, may_be_empty: bool = False) -> None:
    """Checks an id or the name of a model.

    Raises:
        BadRequestError: empty, too long, or with control characters.
    """
    if not text and not may_be_empty:
        raise BadRequestError(field, f"{field} must not be empty.")
    if len(text) > NAME_CHARACTER_COUNT_MAX or not text.isprintable():
        raise BadRequestError(
            field, f"{field} must have at most {NAME_CHARACTER_COUNT_MAX} printable characters."
        )


def checked_title(title: str, *, may_be_empty: bool = False) -> str:
    """The title in one line, without control characters.

    Raises:
        BadRequestError: empty or too long.
    """
    line = _one_line(title)
    if not line and not may_be_empty:
        raise BadRequestError("title", "The title must not be empty.")
    if len(title) > TITLE_CHARACTER_COUNT_MAX:
        raise BadRequestError(
            "title", f"The title must have at most {TITLE_CHARACTER_COUNT_MAX} characters."
        )
    return line


def changed(thread: Thread, title: str | None = None, background: bool | None = None) -> Thread:
    """The thread with what its owner sets; None: it stays.

    Args:
        title: a title that `checked_title` gave.
    """
    return replace(
        thread,
        title=thread.title if title is None else title,
        background=thread.background if background is None else background,
    )


def check_new_messages(messages: Sequence[NewMessage]) -> None:
    """Checks the messages of one append.

    Raises:
        BadRequestError: none, too many, an unknown role, a text that is too long.
    """
    if not 1 <= len(messages) <= MESSAGES_PER_APPEND_MAX:
        raise BadRequestError(
            "messages", f"Between 1 and {MESSAGES_PER_APPEND_MAX} messages can be added at once."
        )
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role not in ROLES:
            raise BadRequestError(f"{path}.role", f"{path} has an unknown role.")
        if utf8_length(message.content) + len(message.parts) > CONTENT_BYTE_COUNT_MAX:
            raise BadRequestError(
                f"{path}.content", f"{path} is longer than {CONTENT_BYTE_COUNT_MAX} bytes."
            )
        check_name(f"{path}.finish_reason", message.finish_reason, may_be_empty=True)
        check_name(f"{path}.model", message.model, may_be_empty=True)


def title_of(messages: Iterable[NewMessage]) -> str:
    """A title from the first user message: its beginning, cut at a word; empty without one."""
    texts = (_one_line(m.content[:4096]) for m in messages if m.role == ROLE_USER)
    text = next(filter(None, texts), "")
    if len(text) <= MADE_TITLE_CHARACTER_COUNT_MAX:
        return text
    start = text[: MADE_TITLE_CHARACTER_COUNT_MAX - 1]
    # A text without spaces, or with one long word, is cut within the word.
    whole_words = start.rpartition(" ")[0] if text[len(start)] != " " else start
    return (whole_words if len(whole_words) > len(start) // 2 else start).rstrip() + "…"


def appended(
    thread: Thread,
    new: Sequence[NewMessage],
    message_ids: Iterable[str],
    *,
    turn_id: str,
    model: str,
    now: datetime,
) -> tuple[Thread, list[Message]]:
    """The thread after messages were added, and the messages as they are stored.

    Args:
        message_ids: an id for each message.
        model: model of the turn; empty: the thread's stays.
        now: time of the change; a thread's times never go back.
    """
    time = max(now, thread.update_time)
    messages = [
        Message(
            id=message_id,
            role=message.role,
            content=message.content,
            token_count=message.token_count,
            turn_id=turn_id,
            create_time=time,
            finish_reason=message.finish_reason,
            model=message.model,
            parts=message.parts,
        )
        for message_id, message in zip(message_ids, new, strict=True)
    ]
    changed = replace(
        thread,
        title=thread.title or title_of(new),
        model=model or thread.model,
        update_time=time,
        total_token_count=thread.total_token_count + sum(m.token_count for m in new),
        message_count=thread.message_count + len(new),
        last_message_id=messages[-1].id,
    )
    return changed, messages


def selected(
    tail: Tail, token_count_max: int, message_count_max: int, *, is_all_there_is: bool
) -> Tail | None:
    """The newest whole messages of a tail that fit; system messages always.

    Args:
        tail: system messages and the newest others.
        token_count_max: most tokens of all messages; 0: any.
        message_count_max: most messages, system messages counted.
        is_all_there_is: older messages cannot be had, so what the tail has is the answer.

    Returns:
        None when older messages, which the tail has not, would fit as well.
    """
    system = [message for message in tail.messages if message.role == ROLE_SYSTEM]
    others = [message for message in tail.messages if message.role != ROLE_SYSTEM]
    tokens = sum(message.token_count for message in system)
    size = sum(message.byte_count for message in system)
    room = max(0, message_count_max - len(system))
    kept = 0
    for message in reversed(others):
        tokens += message.token_count
        size += message.byte_count
        too_many = kept == room or (token_count_max and tokens > token_count_max)
        # One message always fits by its bytes: its size is bounded.
        if too_many or (kept and size > ANSWER_BYTE_COUNT_MAX):
            break
        kept += 1
    ran_out = kept == len(others) and kept < room and tail.omitted_message_count > 0
    if ran_out and not is_all_there_is:
        return None
    newest = set(map(id, others[len(others) - kept :]))
    chosen = (m for m in tail.messages if m.role == ROLE_SYSTEM or id(m) in newest)
    return replace(tail, messages=tuple(chosen))


def page_of(found: Sequence[tuple[int, Message]]) -> Sequence[tuple[int, Message]]:
    """The first of some messages, as many as one answer may have; at least one.

    A page ends as JSON, in which a control character takes six bytes.
    """
    size = 0
    for count, (_, message) in enumerate(found):
        size += len(encode_basestring(message.content).encode())
        if count and size > ANSWER_BYTE_COUNT_MAX:
            return found[:count]
    return found


def content_digest(*parts: object) -> bytes:
    """SHA-256 of what a request asks for: equal only for equal parts in the same order."""
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def message_parts(messages: Iterable[NewMessage]) -> list[object]:
    """The parts of messages, for `content_digest`."""
    return [
        part
        for m in messages
        for part in (
            *(m.role, m.content, m.token_count, m.finish_reason, m.model),
            *([m.parts] if m.parts else ()),
        )
    ]


def utf8_length(text: str) -> int:
    """Bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _one_line(text: str) -> str:
    # Control characters go; joiners, which emoji and scripts need, stay.
    return " ".join("".join(" " if category(c) == "Cc" else c for c in text).split())
