"""What a conversation may look like: limits of the contract, checked once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatmesh.content.v1.content_pb2 import Message, Part, Role, Tool
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


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates read them: role (a word), content, and where there is one name,
    tool_calls, tool_call_id.

    Raises:
        BadMessagesError: too many, an unknown role, a content or name that is too long, parts that
            are no tool calls and no result of one.
    """
    if len(messages) > MESSAGE_COUNT_MAX:
        raise BadMessagesError("messages", f"At most {MESSAGE_COUNT_MAX} messages are allowed.")
    return [_checked(index, message) for index, message in enumerate(messages)]


def checked_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as templates read them.

    Raises:
        BadMessagesError: the parameters of one are no JSON object.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _object(f"tools[{index}].parameters", tool.parameters_json),
            },
        }
        for index, tool in enumerate(tools)
    ]


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


def length_of(message: Mapping[str, Any]) -> int:
    """Characters of a message, those of its tool calls included."""
    calls = message.get("tool_calls")
    return len(message["content"]) + (len(json.dumps(calls)) if calls else 0)


def _checked(index: int, message: Message) -> dict[str, Any]:
    role = ROLE_WORDS.get(message.role)
    if role is None:
        allowed = ", ".join(ROLE_WORDS.values())
        raise BadMessagesError(
            f"messages[{index}].role", f"Message {index} has an unknown role; use {allowed}."
        )
    _check_size(f"messages[{index}].content", message.content)
    if len(message.name) > NAME_CHARACTER_COUNT_MAX:
        raise BadMessagesError(
            f"messages[{index}].name",
            f"The name of message {index} is longer than {NAME_CHARACTER_COUNT_MAX} characters.",
        )
    checked: dict[str, Any] = {"role": role, "content": message.content}
    if message.name:
        checked["name"] = message.name
    for number, part in enumerate(message.parts):
        _add(checked, f"messages[{index}].parts[{number}]", part)
    return checked


def _add(message: dict[str, Any], field: str, part: Part) -> None:
    if part.WhichOneof("kind") == "tool_call" and message["role"] == "assistant":
        call = part.tool_call
        arguments = _object(f"{field}.arguments_json", call.arguments_json)
        shown = {"id": call.id, "type": "function"}
        shown_call = {"name": call.name, "arguments": arguments}
        message.setdefault("tool_calls", []).append(shown | {"function": shown_call})
    elif part.WhichOneof("kind") == "tool_result" and message["role"] == "tool":
        message["tool_call_id"] = part.tool_result.tool_call_id
    else:
        raise BadMessagesError(field, f"{field} is no tool call of an assistant, and no result.")


def _object(field: str, text: str) -> dict[str, Any]:
    _check_size(field, text)
    try:
        value = json.loads(text or "{}")
        json.dumps(value, ensure_ascii=False).encode()  # an escape may be half of a character
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadMessagesError(field, f"{field} must be a JSON object.")
    return value


def _check_size(field: str, text: str) -> None:
    # UTF-8 has at most 4 bytes a character: most texts need no encoding to be measured.
    if len(text) * 4 > CONTENT_BYTE_COUNT_MAX and len(text.encode()) > CONTENT_BYTE_COUNT_MAX:
        raise BadMessagesError(field, f"{field} is longer than {CONTENT_BYTE_COUNT_MAX} bytes.")
