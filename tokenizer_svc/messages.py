"""What a conversation may look like: limits of the contract, checked once."""

from collections.abc import Iterable, Sequence

from chatmesh.content.v1.content_pb2 import Message, Role
from mesh.chassis.enums import words_of

CONTENT_BYTE_COUNT_MAX = 1 << 20
NAME_CHARACTER_COUNT_MAX = 64
MESSAGE_COUNT_MAX = 4096
TEXT_COUNT_MAX = 1024
# Words that templates know, by the numbers of the contract; 0 and unknown ones are refused.
ROLE_WORDS = words_of(Role)


class BadMessagesError(Exception):
    """A message cannot be taken; `field` is its path, such as "messages[3].role"."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as templates read them: role (a word), content, and name where there is one.

    Raises:
        BadMessagesError: too many, an unknown role, a content or name that is too long, parts.
    """
    if len(messages) > MESSAGE_COUNT_MAX:
        raise BadMessagesError("messages", f"At most {MESSAGE_COUNT_MAX} messages are allowed.")
    return [_checked(index, message) for index, message in enumerate(messages)]


def check_texts(texts: Sequence[str]) -> None:
    """Checks texts to count.

    Raises:
        BadMessagesError: too many, or one is too long.
    """
    if len(texts) > TEXT_COUNT_MAX:
        raise BadMessagesError("texts", f"At most {TEXT_COUNT_MAX} texts are allowed.")
    for index, text in enumerate(texts):
        _check_size(f"texts[{index}]", text)


def character_count(parts: Iterable[str]) -> int:
    """Characters of all parts: the measure of how long encoding them takes."""
    return sum(map(len, parts))


def _checked(index: int, message: Message) -> dict[str, str]:
    role = ROLE_WORDS.get(message.role)
    if role is None:
        allowed = ", ".join(ROLE_WORDS.values())
        raise BadMessagesError(
            f"messages[{index}].role", f"Message {index} has an unknown role; use {allowed}."
        )
    if message.parts:
        raise BadMessagesError(
            f"messages[{index}].parts", f"Message {index} has parts: give its text as content."
        )
    _check_size(f"messages[{index}].content", message.content)
    if len(message.name) > NAME_CHARACTER_COUNT_MAX:
        raise BadMessagesError(
            f"messages[{index}].name",
            f"The name of message {index} is longer than {NAME_CHARACTER_COUNT_MAX} characters.",
        )
    checked = {"role": role, "content": message.content}
    if message.name:
        checked["name"] = message.name
    return checked


def _check_size(field: str, text: str) -> None:
    # UTF-8 has at most 4 bytes a character: most texts need no encoding to be measured.
    if len(text) * 4 > CONTENT_BYTE_COUNT_MAX and len(text.encode()) > CONTENT_BYTE_COUNT_MAX:
        raise BadMessagesError(field, f"{field} is longer than {CONTENT_BYTE_COUNT_MAX} bytes.")
